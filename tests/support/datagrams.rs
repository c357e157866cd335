//! Clients of the reflector.

use super::{Ended, PATIENCE, pattern};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// A client on a free port of the address family of `server`, connected: it receives only from the
/// address to which it sends.
pub(crate) fn client(server: SocketAddr) -> UdpSocket {
    let local =
        if server.is_ipv6() { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
    client_from(local, server)
}

/// The same with a local address.
pub(crate) fn client_from(local: IpAddr, server: SocketAddr) -> UdpSocket {
    let client = UdpSocket::bind((local, 0)).expect("a free port");
    client.connect(server).expect("a route");
    client.set_read_timeout(Some(PATIENCE)).expect("a socket");
    client
}

/// The next datagram. A ring that the thread had may interrupt it once.
pub(crate) fn next(client: &UdpSocket) -> Vec<u8> {
    let mut bytes = vec![0; 65_536];
    let length = client.recv(&mut bytes).or_else(|_| client.recv(&mut bytes)).expect("an answer");
    bytes.truncate(length);
    bytes
}

/// Sends `bytes` and expects them back.
pub(crate) fn reflected(client: &UdpSocket, bytes: &[u8]) {
    client.send(bytes).expect("room");
    assert!(next(client) == bytes, "{} bytes came back changed", bytes.len());
}

/// Datagram `number` of a source: its number, then a pattern.
pub(crate) fn numbered(source: u64, number: u32, bytes: usize) -> Vec<u8> {
    let mut datagram = number.to_be_bytes().to_vec();
    datagram.extend(pattern(source << 32 | u64::from(number), bytes.max(4) - 4));
    datagram
}

/// Checks a datagram of [`numbered`] and returns its number.
pub(crate) fn number_of(source: u64, datagram: &[u8]) -> u32 {
    let number = u32::from_be_bytes(*datagram.first_chunk().expect("a number"));
    assert!(datagram == numbered(source, number, datagram.len()), "{number} came back changed");
    number
}

/// Every datagram that arrived is accounted for. Returns how many were sent.
pub(crate) fn assert_balanced(ended: &Ended) -> u64 {
    let errors = ended.last["service_counters"]["send_errors"].as_object().expect("an object");
    let errors: u64 = errors.values().map(|count| count.as_u64().expect("a count")).sum();
    let dropped = ["truncated", "from_self", "bad_source", "not_allowed", "over_rate"];
    let left = ["waiting"].into_iter().chain(dropped);
    let left: u64 = left.map(|name| ended.count(name)).sum();
    assert_eq!(ended.count("received"), ended.count("sent") + left + errors, "{}", ended.last);
    ended.count("sent")
}
