//! Arbitrary bytes as ancillary data and addresses, for the fuzz targets of `fuzz/` and for tests.

use super::{
    NAME_BYTES, RECV_CONTROL_BYTES_MAX, RecvControl, SEND_CONTROL_BYTES_MAX, SendControl,
    UNIX_NAME_BYTES, Writer, decode_address, decode_control, decode_unix_address, encode_address,
    messages,
};
use std::net::IpAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;

/// The maximum number of bytes that are parsed: several times the space of a receive.
const INPUT_BYTES_MAX: usize = 512;

/// Parses `input` as ancillary data and as a socket address.
///
/// # Panics
/// When writing the parsed values and parsing them again gives other values, or when the result depends
/// on bytes that were cut off.
pub fn check_ancillary(input: &[u8]) {
    let input = &input[..input.len().min(INPUT_BYTES_MAX)];
    let told = decode_control(input);
    for ipv6 in [false, true] {
        assert_eq!(decode_control(&written_by_the_kernel(&told, ipv6)), told);
    }
    let whole: Vec<_> = messages(input).collect();
    for end in 0..input.len() {
        let cut: Vec<_> = messages(&input[..end]).collect();
        assert!(whole.starts_with(&cut), "cut at {end}");
    }
    if let Some(address) = decode_address(input) {
        let mut name = [0xa5; NAME_BYTES];
        let length = encode_address(&address, &mut name);
        assert_eq!(decode_address(&name[..length]), Some(address));
        let reference = socket2::SockAddr::from(address);
        assert_eq!(reference.as_socket(), Some(address));
        assert_eq!(reference.len() as usize, length);
    }
    check_unix_address(input);
    check_sent(&told);
}

/// The address of a Unix socket is the same when it was written and read again.
fn check_unix_address(input: &[u8]) {
    let Some(address) = decode_unix_address(input) else { return };
    let name = match (address.as_pathname(), address.as_abstract_name()) {
        (Some(path), None) => [path.as_os_str().as_bytes(), &[0]].concat(),
        (None, Some(name)) => [&[0], name].concat(),
        _ => panic!("a name that is neither a path nor abstract: {address:?}"),
    };
    let mut bytes = (libc::AF_UNIX as u16).to_ne_bytes().to_vec();
    bytes.extend_from_slice(&name);
    assert!(bytes.len() <= UNIX_NAME_BYTES);
    let again = decode_unix_address(&bytes).expect("a name");
    assert_eq!(again.as_pathname(), address.as_pathname());
    assert_eq!(again.as_abstract_name(), address.as_abstract_name());
}

/// Sending a reply with the ancillary data of a datagram gives the receiver the same data.
fn check_sent(told: &RecvControl) {
    let RecvControl { to, segment_bytes, traffic_class, .. } = *told;
    let control = SendControl { from: to, segment_bytes, traffic_class };
    for ipv6 in [false, true] {
        let mut bytes = [0xa5; SEND_CONTROL_BYTES_MAX];
        let length = control.encode(ipv6, &mut bytes);
        let told = decode_control(&bytes[..length]);
        assert_eq!(told.to, to);
        // What is sent as an int of the host's order is received as one byte: its first.
        if cfg!(target_endian = "little") {
            assert_eq!(told.traffic_class, traffic_class);
        }
        assert_eq!(told.segment_bytes, None, "UDP_SEGMENT is no UDP_GRO");
    }
}

/// Ancillary data as the kernel writes it for these facts, on a socket of this family.
pub(crate) fn written_by_the_kernel(told: &RecvControl, ipv6: bool) -> Vec<u8> {
    let mut bytes = vec![0; RECV_CONTROL_BYTES_MAX];
    let mut writer = Writer { into: &mut bytes, at: 0 };
    if let Some(ns) = told.received_ns {
        let seconds = (ns / 1_000_000_000).to_ne_bytes();
        let timespec = [seconds, (ns % 1_000_000_000).to_ne_bytes()].concat();
        writer.put(libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS, &timespec);
    }
    if let Some(drops) = told.kernel_drops {
        writer.put(libc::SOL_SOCKET, libc::SO_RXQ_OVFL, &drops.to_ne_bytes());
    }
    match told.to {
        Some(IpAddr::V4(ip)) => {
            let pktinfo = [[1, 0, 0, 0], ip.octets(), [224, 0, 0, 1]].concat();
            writer.put(libc::IPPROTO_IP, libc::IP_PKTINFO, &pktinfo);
        }
        Some(IpAddr::V6(ip)) => {
            let pktinfo = [ip.octets().as_slice(), &[1, 0, 0, 0]].concat();
            writer.put(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &pktinfo);
        }
        None => {}
    }
    match told.traffic_class {
        Some(class) if ipv6 => {
            let class = i32::from(class).to_ne_bytes();
            writer.put(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &class);
        }
        Some(class) => writer.put(libc::IPPROTO_IP, libc::IP_TOS, &[class]),
        None => {}
    }
    if let Some(segment) = told.segment_bytes {
        writer.put(libc::SOL_UDP, libc::UDP_GRO, &i32::from(segment).to_ne_bytes());
    }
    let length = writer.at;
    bytes.truncate(length);
    bytes
}
