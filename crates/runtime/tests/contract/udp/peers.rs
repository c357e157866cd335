//! Peers of the standard library, sets of socket options, and patterned datagrams.

use crate::support::*;
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket as Peer};
use std::process::Command;
use twinring::{Datagram, Received, net::UdpOptions};

/// A millisecond.
pub(crate) const MS: Duration = Duration::from_millis(1);

/// Ways of receiving that all keep the same promises. On epoll there is one.
pub(crate) fn ways() -> [UdpOptions; 2] {
    [UdpOptions::default(), UdpOptions { pending: 8, ..UdpOptions::default() }]
}

/// A rule for each way of receiving.
impl<F: AsyncFn(UdpOptions)> Check<UdpOptions> for F {
    fn check(self, configuration: Configuration) {
        in_all_ways(configuration, async |options, _| self(options).await);
    }
}

/// Runs `rule` for each way of receiving.
pub(crate) fn in_all_ways(configuration: Configuration, rule: impl AsyncFn(UdpOptions, Handle)) {
    for options in ways().into_iter().take(if configuration.is_epoll() { 1 } else { 2 }) {
        run_on(configuration.builder(), async |handle| rule(options.clone(), handle).await);
    }
}

/// Ends the test on a machine without IPv6.
pub(crate) fn any_v6() -> SocketAddr {
    testing::needs_ipv6();
    SocketAddr::from((Ipv6Addr::LOCALHOST, 0))
}

pub(crate) fn on_loopback(last: u8) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::new(127, 0, 0, last), 0))
}

pub(crate) fn bind(options: &UdpOptions) -> UdpSocket {
    bind_to(options, loopback())
}

pub(crate) fn bind_to(options: &UdpOptions, address: SocketAddr) -> UdpSocket {
    UdpSocket::from_bound(options.bind(address).expect("a free port")).expect("room")
}

pub(crate) fn connect(options: &UdpOptions, peer: SocketAddr) -> UdpSocket {
    UdpSocket::from_bound(options.connect(None, peer).expect("a route")).expect("room")
}

/// A datagram for this receiver, whether the sender is connected to it or not.
pub(crate) fn datagram(from: &UdpSocket, to: SocketAddr, data: Vec<u8>) -> Datagram {
    Datagram { to: from.peer_addr().is_none().then_some(to), ..Datagram::new(data) }
}

/// Datagrams `0..count` of the sequence that `seed` names, for the peer of a connected socket.
pub(crate) fn sequence(seed: u64, count: usize, bytes: usize) -> Vec<Datagram> {
    (0..count).map(|number| Datagram::new(numbered(seed, number, bytes))).collect()
}

/// A blocking peer on an address of its own, which gives up waiting before the watchdog does.
pub(crate) fn peer_at(address: SocketAddr) -> Peer {
    let peer = Peer::bind(address).expect("a free port");
    peer.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
    peer
}

pub(crate) fn peer() -> Peer {
    peer_at(loopback())
}

pub(crate) fn address_of(peer: &Peer) -> SocketAddr {
    peer.local_addr().expect("a bound socket")
}

/// The next datagram of a blocking peer.
pub(crate) fn next(peer: &Peer) -> Vec<u8> {
    let mut bytes = vec![0; 70_000];
    let length = peer.recv(&mut bytes).expect("a datagram");
    bytes.truncate(length);
    bytes
}

/// Receives exactly `count` datagrams, coalesced ones counted one by one.
pub(crate) async fn receive(socket: &UdpSocket, count: usize) -> Vec<Received> {
    let mut received = Vec::new();
    let mut datagrams = 0;
    while datagrams < count {
        let before = received.len();
        let came = socket.recv_batch(&mut received).await.expect("datagrams");
        assert_eq!(came, received.len() - before, "what recv_batch says");
        assert!((1..=64).contains(&came), "{came} in one batch");
        datagrams += received[before..].iter().map(Received::datagrams).sum::<usize>();
    }
    assert_eq!(datagrams, count, "more came than was sent");
    received
}

/// Runs `body` in a process of its own, in a network of its own whose loopback lets 5 MB/s
/// through: what waits counts against the sender's buffer, as it would in a device. On one CPU,
/// because with two such a loopback changes the order of datagrams by itself: what the sender and
/// the timer of the queue take out at the same time goes up through the queues of two CPUs.
/// Skipped, if that is allowed, where the rights or the tools for that are missing.
pub(crate) fn on_a_slow_path(body: impl FnOnce()) {
    if testing::is_rerun() {
        return body();
    }
    const REFUSED: i32 = 77;
    let script = format!(
        "ip link set lo up mtu 1500 && tc qdisc add dev lo root tbf rate 40mbit burst 4kb limit 99mb \
         && cpu=$(taskset -cp $$ | sed 's/.*: //; s/[,-].*//') \
         || exit {REFUSED}; exec taskset -c $cpu \"$0\" \"$@\""
    );
    let mut unshare = Command::new("unshare");
    unshare.args(["--net", "sh", "-c", &script]);
    match testing::rerun(unshare) {
        Ok(output)
            if output.status.code() != Some(REFUSED) && !output.stderr.starts_with(b"unshare:") =>
        {
            testing::assert_passed(&output);
        }
        _ => testing::needs("namespaces", "no rights or tools for a network of its own"),
    }
}

/// Datagram `number` of the sequence that `seed` names: its number, then a pattern.
pub(crate) fn numbered(seed: u64, number: usize, bytes: usize) -> Vec<u8> {
    let mut datagram = (number as u32).to_be_bytes().to_vec();
    datagram.extend(pattern(seed, number..number + bytes.max(4) - 4));
    datagram
}

/// Checks a datagram of `numbered` and returns its number.
pub(crate) fn assert_numbered(seed: u64, datagram: &[u8]) -> usize {
    let number = u32::from_be_bytes(*datagram.first_chunk().expect("at least a number")) as usize;
    assert_pattern(seed, number, &datagram[4..]);
    number
}

/// Checks that these are all datagrams of `numbered` below `count`; in order, unless receives were kept in
/// flight, which may swap them.
pub(crate) fn assert_all(seed: u64, received: &[Received], count: usize, options: &UdpOptions) {
    let mut numbers: Vec<_> = received.iter().map(|r| assert_numbered(seed, &r.data)).collect();
    if options.pending > 0 {
        numbers.sort_unstable();
    }
    assert!(numbers.iter().copied().eq(0..count), "{numbers:?}");
}

/// Reflects for ever.
pub(crate) async fn reflect(socket: UdpSocket) {
    let (mut received, mut replies) = (Vec::new(), Vec::new());
    loop {
        socket.recv_batch(&mut received).await.expect("a usable socket");
        replies.extend(received.drain(..).map(Received::into_reply));
        socket.send_batch(&mut replies).await.expect("a usable socket");
    }
}
