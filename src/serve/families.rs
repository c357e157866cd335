//! Addresses to listen on: each once, and of a family that this machine has (not IPv6 under `ipv6.disable=1`).

use crate::output::complain;
use std::net::{Ipv6Addr, SocketAddr, UdpSocket};

/// An address that stands twice: binding it again would blame another process.
pub(super) fn once(mut addresses: Vec<SocketAddr>) -> Result<(), String> {
    addresses.sort_unstable();
    let twice = addresses.windows(2).find(|pair| pair[0] == pair[1] && pair[0].port() != 0);
    twice.map_or(Ok(()), |pair| Err(format!("{} stands twice among the addresses", pair[0])))
}

/// These addresses without those whose family the machine lacks, with a warning for each. If no
/// address remains, all of them: binding them returns the error.
pub(super) fn available<const LISTS: usize>(
    lists: [&[SocketAddr]; LISTS],
) -> [Vec<SocketAddr>; LISTS] {
    let all = || lists.iter().copied().flatten();
    if all().all(|address| lacks_family(*address)) {
        return lists.map(<[SocketAddr]>::to_vec);
    }
    for address in all().filter(|address| lacks_family(**address)) {
        complain(&format!(
            "twinring: not listening on {address}: this machine has no IPv6; the other addresses \
             are served"
        ));
    }
    lists.map(|list| {
        let listed = list.iter().copied();
        listed.filter(|address| !lacks_family(*address)).collect()
    })
}

/// True if this address cannot be bound because there is no IPv6. If `::1` can be bound, the reason
/// is another one, such as an address that this machine does not have.
fn lacks_family(address: SocketAddr) -> bool {
    let refusal = |mut address: SocketAddr| {
        address.set_port(0);
        UdpSocket::bind(address).err().and_then(|error| error.raw_os_error())
    };
    let loopback = SocketAddr::from((Ipv6Addr::LOCALHOST, 0));
    address.is_ipv6()
        && match refusal(address) {
            Some(libc::EAFNOSUPPORT) => true,
            Some(libc::EADDRNOTAVAIL) => refusal(loopback) == Some(libc::EADDRNOTAVAIL),
            _ => false,
        }
}
