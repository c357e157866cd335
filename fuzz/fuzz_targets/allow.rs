//! `--allow`: a network is parsed correctly or not at all, and an address outside all networks is
//! not admitted. The first 16 bytes are the address of a client; then one value per line.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use twinring_cli::fuzzing::Allowed;

/// Whether the two begin with the same bits; an address of the other family is never in.
fn begins_alike(address: IpAddr, network: IpAddr, bits: u32) -> bool {
    match (address, network) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros() >= bits,
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros() >= bits,
        _ => false,
    }
}

/// Parses an accepted value with the standard library only.
fn is_in(address: IpAddr, value: &str) -> bool {
    let (network, bits) = match value.split_once('/') {
        Some((network, bits)) => (network, Some(bits.parse::<u32>().expect("a number of bits"))),
        None => (value, None),
    };
    let network: IpAddr = network.parse().expect("an address");
    let all = if network.is_ipv4() { 32 } else { 128 };
    let bits = bits.unwrap_or(all);
    assert!(bits <= all);
    begins_alike(address, network, bits)
}

fuzz_target!(|bytes: &[u8]| {
    let Some((address, text)) = bytes.split_first_chunk::<16>() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let address = IpAddr::V6(Ipv6Addr::from(*address)).to_canonical();
    let values: Vec<&str> = text.lines().take(16).collect();
    let listen = |text: &str| -> SocketAddr { text.parse().expect("an address") };
    let here = Allowed::read(values.iter().copied(), listen("127.0.0.1:9"));
    let open = Allowed::read(values.iter().copied(), listen("0.0.0.0:9"));
    let (Some(here), Some(open)) = (here, open) else { return };
    assert_eq!(here.list, open.list);
    let is_any = values.contains(&"any");
    if values.is_empty() {
        let expected = (Some(address.is_loopback()), None);
        assert_eq!((here.admits(address), open.admits(address)), expected);
        return;
    }
    let expected =
        is_any || address.is_loopback() || values.iter().any(|value| is_in(address, value));
    assert_eq!(open.admits(address), Some(expected), "{address} {values:?}");
    assert_eq!(here.admits(address), Some(expected), "{address} {values:?}");
    // The list of the ready line can be parsed again.
    let told = if is_any { &open.list[..] } else { &open.list[1..] };
    let again = Allowed::read(told.iter().map(String::as_str), listen("0.0.0.0:9"));
    let again = again.expect("it is told as it is read");
    assert_eq!((&again.list, again.admits(address)), (&open.list, Some(expected)));
});
