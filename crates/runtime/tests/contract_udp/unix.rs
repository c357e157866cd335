//! Unix datagram sockets: datagrams stay whole and in order, a full receiver makes its sender wait and
//! no other, and a refusal is reported to the sender of the datagram.

use crate::peers::*;
use crate::support::*;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram as Peer};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;
use twinring::net::UnixDatagramOptions;
use twinring::{net::UnixDatagram, spawn, timeout};

pub(crate) const RULES: &[Rule] = rules![
    datagrams_keep_their_bounds_and_their_senders,
    names_may_be_abstract,
    datagrams_of_several_tasks_arrive_once_and_whole,
    a_full_receiver_makes_its_sender_wait_and_no_other,
    a_connected_sender_waits_for_a_full_receiver,
    a_refusal_is_reported_to_its_sender,
    a_dropped_receive_loses_nothing,
];

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

fn peer_at(path: &Path) -> Peer {
    let peer = Peer::bind(path).expect("a new path");
    peer.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
    peer
}

fn next_of(peer: &Peer) -> Vec<u8> {
    let mut bytes = vec![0; 300_000];
    let length = peer.recv(&mut bytes).expect("a datagram");
    bytes.truncate(length);
    bytes
}

fn datagrams_keep_their_bounds_and_their_senders(configuration: Configuration) {
    configuration.run(async {
        let directory = directory();
        let (here, there) = (directory.path().join("here"), directory.path().join("there"));
        let socket = UnixDatagram::bind(&here).expect("a new path");
        assert_eq!(socket.local_addr().expect("bound").as_pathname(), Some(&*here));
        assert_eq!(errno(&socket.peer_addr()), libc::ENOTCONN);
        let (named, unnamed) = (peer_at(&there), Peer::unbound().expect("a socket"));
        for (number, bytes) in [0, 1, 7, 4000, 60_000, 65_536].into_iter().enumerate() {
            let seed = number as u64;
            named.send_to(&pattern(seed, 0..bytes), &here).expect("room");
            let received = socket.recv_from().await.expect("a datagram");
            assert_eq!((received.data.len(), received.truncated), (bytes, false));
            assert_pattern(seed, 0, &received.data);
            assert_eq!(received.from.as_pathname(), Some(&*there));
            socket.send_to(received.data, &received.from).await.expect("room");
            assert_eq!(next_of(&named), pattern(seed, 0..bytes));
        }
        unnamed.send_to(b"from nobody", &here).expect("room");
        let received = socket.recv_from().await.expect("a datagram");
        assert!(received.from.is_unnamed(), "{:?}", received.from);
        assert_eq!(&received.data[..], b"from nobody");
        // A longer one is cut, and the next is whole again.
        named.send_to(&pattern(9, 0..70_000), &here).expect("room");
        named.send_to(&pattern(9, 0..70_000), &here).expect("room");
        named.send_to(b"whole", &here).expect("room");
        let cut = socket.recv_from().await.expect("a datagram");
        assert_eq!((cut.data.len(), cut.truncated), (65_536, true));
        assert_pattern(9, 0, &cut.data);
        let told = socket.recv().await.expect_err("its end is missing").to_string();
        assert!(told.contains("buffer_bytes"), "{told}");
        assert_eq!(&socket.recv().await.expect("a datagram")[..], b"whole");
        assert!(here.exists(), "the path is the program's");
    });
}

fn names_may_be_abstract(configuration: Configuration) {
    configuration.run(async {
        // The process and the thread make it unique.
        let name = format!("twinring-{}-{:?}\0x", std::process::id(), std::thread::current().id());
        let address = SocketAddr::from_abstract_name(&name).expect("short enough");
        let socket = UnixDatagram::bind(&address).expect("a new name");
        let local = socket.local_addr().expect("bound");
        assert_eq!(local.as_abstract_name(), Some(name.as_bytes()));
        let taken = UnixDatagram::bind(&address).expect_err("it is in use").to_string();
        assert!(taken.contains("twinring-"), "{taken}");
        let other = UnixDatagram::unbound().expect("a socket");
        other.connect(&address).expect("it is bound");
        let peer = other.peer_addr().expect("connected");
        assert_eq!(peer.as_abstract_name(), Some(name.as_bytes()));
        other.send("connected").await.expect("room");
        assert_eq!(&socket.recv().await.expect("a datagram")[..], b"connected");
        socket.send_to("to itself", &address).await.expect("room");
        let received = socket.recv_from().await.expect("a datagram");
        assert_eq!(received.from.as_abstract_name(), Some(name.as_bytes()));
    });
}

fn datagrams_of_several_tasks_arrive_once_and_whole(configuration: Configuration) {
    const TASKS: usize = 12;
    const EACH: usize = 100;
    configuration.run(async {
        let (from, to) = UnixDatagram::pair().expect("a pair");
        let from = Rc::new(from);
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let from = Rc::clone(&from);
                spawn(async move {
                    for number in 0..EACH {
                        let bytes = 36 + 37 * number;
                        from.send(numbered(task as u64, number, bytes)).await.expect("room");
                    }
                })
            })
            .collect();
        // Long enough that the bytes tell the tasks apart.
        let mut due: Vec<Vec<Vec<u8>>> = (0..TASKS)
            .map(|task| {
                (0..EACH)
                    .rev()
                    .map(|number| numbered(task as u64, number, 36 + 37 * number))
                    .collect()
            })
            .collect();
        for _ in 0..TASKS * EACH {
            let data = to.recv().await.expect("a datagram");
            let sender = due.iter_mut().find(|due| due.last().is_some_and(|next| **next == *data));
            sender.expect("the next of one of the tasks").pop();
        }
        for task in tasks {
            task.await.expect("no panic");
        }
        assert!(poll_once(to.recv()).await.is_none(), "more came than was sent");
    });
}

/// Fills the queue of a receiver with numbered datagrams; returns their senders and how many they are.
/// A sender's own buffer may be full before the queue is, so that it takes several.
fn fill(path: &Path) -> (Vec<Peer>, usize) {
    let (mut senders, mut number) = (Vec::new(), 0);
    loop {
        let (sender, before) = (Peer::unbound().expect("a socket"), number);
        sender.set_nonblocking(true).expect("a socket");
        while sender.send_to(&numbered(3, number, 200), path).is_ok() {
            number += 1;
            assert!(number < 100_000, "there is no end of it");
        }
        senders.push(sender);
        if number == before {
            return (senders, number);
        }
    }
}

fn a_full_receiver_makes_its_sender_wait_and_no_other(configuration: Configuration) {
    configuration.run(async {
        let directory = directory();
        let (full, free) = (directory.path().join("full"), directory.path().join("free"));
        let (full_peer, free_peer) = (peer_at(&full), peer_at(&free));
        let (_senders, sent) = fill(&full);
        let socket = Rc::new(UnixDatagram::unbound().expect("a socket"));
        let given_up = timeout(Duration::from_millis(20), socket.send_to("given up", &full));
        assert!(given_up.await.is_err(), "there is no room");
        let waiting = spawn({
            let (socket, full) = (Rc::clone(&socket), full.clone());
            async move { socket.send_to(numbered(3, sent, 200), full).await }
        });
        settle().await;
        assert!(!waiting.is_finished(), "there is no room");
        socket.send_to("meanwhile", &free).await.expect("room");
        assert_eq!(next_of(&free_peer), b"meanwhile");
        let reading = on_thread(move || {
            for number in 0..=sent {
                assert_eq!(assert_numbered(3, &next_of(&full_peer)), number);
            }
            full_peer
        });
        waiting.await.expect("no panic").expect("room at last");
        let full_peer = reading.await;
        socket.send_to("the last", &full).await.expect("room");
        assert_eq!(next_of(&full_peer), b"the last");
    });
}

fn a_connected_sender_waits_for_a_full_receiver(configuration: Configuration) {
    configuration.run(async {
        let directory = directory();
        let path = directory.path().join("socket");
        let peer = peer_at(&path);
        let socket = Rc::new(UnixDatagram::unbound().expect("a socket"));
        socket.connect(&path).expect("it is bound");
        assert_eq!(socket.peer_addr().expect("connected").as_pathname(), Some(&*path));
        let (_senders, sent) = fill(&path);
        let more = 500;
        let sending = spawn({
            let socket = Rc::clone(&socket);
            async move {
                for number in sent..sent + more {
                    socket.send(numbered(3, number, 200)).await.expect("the peer reads");
                }
            }
        });
        settle().await;
        assert!(!sending.is_finished(), "there is no room");
        let reading = on_thread(move || {
            for number in 0..sent + more {
                assert_eq!(assert_numbered(3, &next_of(&peer)), number);
            }
            peer
        });
        sending.await.expect("no panic");
        let peer = reading.await;
        // A sender that waits learns that the receiver is gone.
        let (_senders, _sent) = fill(&path);
        let waiting = spawn(async move { socket.send("too late").await });
        settle().await;
        drop(peer);
        assert_eq!(errno(&waiting.await.expect("no panic")), libc::ECONNREFUSED);
    });
}

fn a_refusal_is_reported_to_its_sender(configuration: Configuration) {
    configuration.run(async {
        let directory = directory();
        let (path, other) = (directory.path().join("socket"), directory.path().join("other"));
        let socket = UnixDatagram::bind(&path).expect("a new path");
        let error = UnixDatagram::bind(&path).expect_err("it exists");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(error.to_string().contains(&*path.to_string_lossy()), "{error}");
        assert_eq!(errno(&socket.send_to("x", &other).await), libc::ENOENT);
        assert_eq!(errno(&socket.send("x").await), libc::ENOTCONN);
        assert_eq!(errno(&socket.connect(&other)), libc::ENOENT);
        drop(peer_at(&other));
        assert_eq!(errno(&socket.send_to("nobody is there", &other).await), libc::ECONNREFUSED);
        assert_eq!(errno(&socket.send_to(vec![0; 8 << 20], &path).await), libc::EMSGSIZE);
        let too_long = socket.send_to("x", "x".repeat(200)).await.expect_err("108 bytes at most");
        assert_eq!(too_long.kind(), io::ErrorKind::InvalidInput);
        let nobody = UnixDatagram::unbound().expect("a socket").local_addr().expect("a socket");
        let unnamed = socket.send_to("x", &nobody).await.expect_err("it has no name");
        assert_eq!(unnamed.kind(), io::ErrorKind::InvalidInput);
        // None of these is in the way of the next.
        socket.send_to("to itself", &path).await.expect("room");
        assert_eq!(&socket.recv().await.expect("a datagram")[..], b"to itself");
        let options = UnixDatagramOptions { buffer_count: 3, ..UnixDatagramOptions::default() };
        let wrong = options.from_std(Peer::unbound().expect("a socket")).expect_err("3");
        assert!(wrong.to_string().contains("buffer_count 3"), "{wrong}");
    });
}

fn a_dropped_receive_loses_nothing(configuration: Configuration) {
    configuration.run(async {
        let (ours, theirs) = Peer::pair().expect("a pair");
        let options = UnixDatagramOptions { buffer_bytes: 64, buffer_count: 4 };
        let socket = Rc::new(options.from_std(ours).expect("a socket"));
        for number in 0..300 {
            assert!(poll_once(socket.recv()).await.is_none());
            theirs.send(&numbered(4, number, 60)).expect("room");
            if number % 50 == 0 {
                settle().await;
            }
            assert_eq!(assert_numbered(4, &socket.recv().await.expect("a datagram")), number);
        }
        let waiting = spawn({
            let socket = Rc::clone(&socket);
            async move { socket.recv().await.map(drop) }
        });
        settle().await;
        socket.cancel();
        assert_eq!(errno(&waiting.await.expect("no panic")), libc::ECANCELED);
        theirs.send(b"afterwards").expect("room");
        assert_eq!(&socket.recv().await.expect("a datagram")[..], b"afterwards");
    });
}
