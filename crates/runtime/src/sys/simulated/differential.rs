//! The same calls on sockets of the real kernel and on simulated ones have the same results.

use super::poll::{Epoll, Event};
use super::{peek, recv, send, shutdown_write};
use crate::sys::faults::Faults;
use crate::sys::machine::world::World;
use crate::sys::socket::{SockRef, Socket};
use proptest::prelude::*;
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

/// The calls at one end of a connection.
#[derive(Clone, Copy, Debug)]
enum Call {
    Send(usize),
    Recv(usize),
    Peek(usize),
    Finish,
    Close,
    Reset,
    TakeError,
    PeerAddress,
}

/// At the first or the second end; between two of them all data arrives.
type Script = Vec<(usize, Call)>;

fn any_script() -> impl Strategy<Value = Script> {
    let call = prop_oneof![
        4 => (1usize..2000).prop_map(Call::Send),
        4 => (1usize..3000).prop_map(Call::Recv),
        1 => (1usize..3000).prop_map(Call::Peek),
        2 => Just(Call::Finish),
        1 => Just(Call::Close),
        1 => Just(Call::Reset),
        1 => Just(Call::TakeError),
        1 => Just(Call::PeerAddress),
    ];
    proptest::collection::vec((0usize..2, call), 1..16)
}

/// Runs a script on a connection, watched by edges or by levels; returns the results of the calls
/// and the waits behind them.
fn run(script: &Script, edge: bool, settle: impl Fn()) -> Vec<String> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let listener = std::net::TcpListener::bind(address).unwrap();
    let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    drop(listener);
    near.set_nodelay(true).unwrap();
    far.set_nodelay(true).unwrap();
    let mut ends = [Some(OwnedFd::from(near)), Some(OwnedFd::from(far))];
    let epoll = Epoll::new().unwrap();
    let trigger = if edge { libc::EPOLLET } else { 0 };
    let interest = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | trigger;
    for (number, end) in ends.iter().enumerate() {
        epoll.add(end.as_ref().unwrap().as_raw_fd(), interest, number as u64).unwrap();
    }
    let mut said = Vec::new();
    let mut events = Vec::<Event>::with_capacity(8);
    let mut last = [0; 2];
    let mut wait = |said: &mut Vec<String>, finished: [bool; 2]| {
        settle();
        epoll.wait(&mut events, Some(Duration::ZERO)).unwrap();
        let mut reports: Vec<(u64, u32)> = events.iter().map(|e| (e.u64, e.events)).collect();
        reports.sort_unstable();
        reports.retain(|(number, bits)| {
            // The acknowledgement of a FIN is reported as well, some time later: the same once
            // more.
            let no_data = bits & libc::EPOLLIN as u32 == 0 || bits & libc::EPOLLRDHUP as u32 != 0;
            let in_vain = no_data || finished[*number as usize];
            let again = std::mem::replace(&mut last[*number as usize], *bits) == *bits;
            !(edge && again && in_vain)
        });
        said.push(format!("{reports:x?}"));
    };
    let mut finished = [false; 2];
    wait(&mut said, finished);
    for (number, call) in script {
        finished[*number] |= matches!(call, Call::Finish);
        let told = act(&mut ends[*number], *call);
        said.push(format!("{number} {call:?}: {told}"));
        wait(&mut said, finished);
    }
    said
}

fn act(end: &mut Option<OwnedFd>, call: Call) -> String {
    let Some(socket) = end else { return "closed".into() };
    let fd = socket.as_raw_fd();
    match call {
        Call::Send(bytes) => format!("{:?}", send(fd, &vec![7; bytes], false).map_err(errno)),
        Call::Recv(bytes) => {
            let mut into = vec![MaybeUninit::uninit(); bytes];
            format!("{:?}", recv(fd, &mut into).map_err(errno))
        }
        Call::Peek(bytes) => format!("{:?}", peek(fd, &mut vec![0; bytes]).map_err(errno)),
        Call::Finish => format!("{:?}", shutdown_write(fd).map_err(errno)),
        Call::TakeError => {
            let error = SockRef::from(&*socket).take_error();
            format!("{:?}", error.unwrap().map(errno))
        }
        Call::PeerAddress => {
            let peer = SockRef::from(&*socket).peer_addr();
            format!("{:?}", peer.map(drop).map_err(errno))
        }
        Call::Reset => {
            let linger = SockRef::from(&*socket).set_linger(Some(Duration::ZERO));
            drop(end.take());
            format!("{linger:?}")
        }
        Call::Close => {
            drop(end.take());
            "()".into()
        }
    }
}

fn errno(error: std::io::Error) -> i32 {
    crate::driver::errno(&error)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn streams_of_both_kernels_do_the_same(script in any_script(), edge: bool) {
        // Loopback delivers within the call that sends, unless a busy machine delays that.
        let on_real = |settle_us| {
            run(&script, edge, || std::thread::sleep(Duration::from_micros(settle_us)))
        };
        let world = World::new(1, Faults::none());
        world.set_latency(Duration::from_micros(1));
        let settle = || {
            world.run_until(Duration::from_millis(1), || false);
        };
        let simulated = run(&script, edge, settle);
        world.finish();
        let real = on_real(100);
        let real = if real == simulated { real } else { on_real(10_000) };
        prop_assert_eq!(real, simulated);
    }
}

/// A socket that is not connected reports that it is hung up.
#[test]
fn fresh_sockets_of_both_kernels_do_the_same() {
    use crate::sys::socket::{Domain, Type};
    let ask = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let epoll = Epoll::new().unwrap();
        let interest = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP;
        epoll.add(socket.as_raw_fd(), interest, 7).unwrap();
        let again = epoll.add(socket.as_raw_fd(), interest, 8).map_err(errno);
        let mut events = Vec::<Event>::with_capacity(8);
        epoll.wait(&mut events, Some(Duration::ZERO)).unwrap();
        let reports: Vec<(u64, u32)> = events.iter().map(|e| (e.u64, e.events)).collect();
        (again, reports)
    };
    let real = ask();
    let world = World::new(1, Faults::none());
    let simulated = ask();
    world.finish();
    assert_eq!(real, simulated);
}
