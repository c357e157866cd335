//! The rules. Each returns whether it held, and what was seen.

use crate::Subject;
use crate::quarantine;
use crate::support::*;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::pin::pin;
use std::thread;
use std::time::Duration;

const ROUNDS: u32 = 50;
const RECORD_BYTES: usize = size_of::<u32>();

/// Numbered records; each arrives while a receive waits that is dropped before the runtime's next
/// turn. What follows is received, and gaps are counted.
pub(crate) fn received_bytes<S: Subject>(subject: &S) -> (bool, String) {
    let received = subject.run(async {
        let (ours, mut peer) = pair();
        let (mut stream, mut received) = (subject.stream(ours).expect("a socket"), Vec::new());
        for round in 0..ROUNDS {
            let early = {
                let mut receive = pin!(subject.recv(&mut stream));
                let early = poll_for(subject, receive.as_mut(), Duration::from_millis(2)).await;
                peer.write_all(&round.to_be_bytes()).expect("room");
                thread::sleep(ARRIVAL);
                early
            };
            // Left over from the round before.
            received.extend(early.into_iter().flat_map(|bytes| bytes.expect("no error")));
        }
        drop(peer);
        loop {
            let bytes = subject.recv(&mut stream).await.expect("no error");
            if bytes.is_empty() {
                return received;
            }
            received.extend(bytes);
        }
    });
    let sent: Vec<u8> = (0..ROUNDS).flat_map(u32::to_be_bytes).collect();
    let lost = (sent.len() - received.len().min(sent.len())) / RECORD_BYTES;
    let seen = match (received == sent, lost) {
        (true, _) => format!("all bytes of {ROUNDS} dropped receives arrived"),
        (false, 0) => "bytes arrived in another order".to_owned(),
        (false, lost) => format!("{lost} of {ROUNDS} dropped receives took their bytes with them"),
    };
    (received == sent, seen)
}

/// Numbered connections, which arrive while an accept waits that is dropped then.
pub(crate) fn accepted_connections<S: Subject>(subject: &S) -> (bool, String) {
    let served = subject.run(async {
        let listener = listen();
        let address = address_of(&listener);
        let listener = subject.listener(listener).expect("a socket");
        let (mut peers, mut accepted, mut served) = (Vec::new(), Vec::new(), Vec::new());
        let connect = |number: u32| {
            let mut peer = TcpStream::connect(address).expect("the backlog has room");
            peer.write_all(&number.to_be_bytes()).expect("room");
            peer
        };
        for round in 0..ROUNDS {
            let mut accept = pin!(subject.accept(&listener));
            accepted.extend(poll_for(subject, accept.as_mut(), Duration::from_millis(2)).await);
            peers.push(connect(round));
            thread::sleep(ARRIVAL);
        }
        // Connections are accepted in order: when the last one is here, none follows.
        peers.push(connect(ROUNDS));
        loop {
            for stream in accepted.drain(..) {
                let mut stream = stream.expect("no error");
                let bytes = subject.recv(&mut stream).await.expect("no error");
                served.push(u32::from_be_bytes(bytes.try_into().expect("a number")));
            }
            if served.last() == Some(&ROUNDS) {
                return served;
            }
            accepted.push(subject.accept(&listener).await);
        }
    });
    let lost = (0..ROUNDS).filter(|number| !served.contains(number)).count();
    let seen = match lost {
        0 => format!("all {ROUNDS} connections that met a dropped accept were served"),
        lost => format!("{lost} of {ROUNDS} connections that met a dropped accept were lost"),
    };
    (lost == 0, seen)
}

/// A send that waits for its peer is dropped; then the peer reads, and a marker is sent.
pub(crate) fn sent_bytes<S: Subject>(subject: &S) -> (bool, String) {
    const MESSAGE_BYTES: usize = 1 << 20;
    const MARKER: &[u8] = &[0xFF; 16];
    let of_dropped = subject.run(async {
        let (ours, mut peer) = pair();
        let mut stream = subject.stream(ours).expect("a socket");
        let mut whole = 0;
        // Each message is of one byte value, so that parts show.
        loop {
            let number = u8::try_from(whole + 1).expect("less than 255 MiB fit into buffers");
            let message = vec![number; MESSAGE_BYTES];
            let send = subject.send(&mut stream, message);
            // Loopback takes a megabyte in far less; a message that was slow is dropped all the
            // same, with the same rule.
            match poll_for(subject, send, Duration::from_millis(100)).await {
                Some(sent) => sent.expect("no error"),
                None => break,
            }
            whole += 1;
        }
        let reader = thread::spawn(move || {
            let mut received = Vec::new();
            peer.read_to_end(&mut received).expect("no reset");
            received
        });
        subject.send(&mut stream, MARKER.to_vec()).await.expect("no error");
        // A runtime may send the marker in the background.
        subject.sleep(Duration::from_millis(5)).await;
        drop(stream);
        assert!(wait_until(subject, || reader.is_finished()).await, "the peer sees no end");
        let received = reader.join().expect("no panic");
        assert!(received.len() >= whole * MESSAGE_BYTES + MARKER.len(), "a finished send is lost");
        received.iter().filter(|byte| usize::from(**byte) == whole + 1).count()
    });
    match of_dropped {
        0 => (true, "nothing of a dropped send was sent".to_owned()),
        MESSAGE_BYTES => (true, "all of a dropped send was sent".to_owned()),
        _ => {
            (false, "a part of a dropped send was sent, and what follows it comes next".to_owned())
        }
    }
}

/// Operations of each kind are dropped with their sockets, while the runtime runs on.
pub(crate) fn descriptors<S: Subject>(subject: &S) -> (bool, String) {
    const EACH: usize = 40;
    let left = subject.run(async {
        let (busy, _listener, _fillers) = full_backlog();
        // What the runtime opens on demand is open now.
        let warm_up = subject.stream(pair().0).expect("a socket");
        subject.sleep(Duration::from_millis(5)).await;
        drop(warm_up);
        subject.sleep(Duration::from_millis(5)).await;
        let before = open_descriptors();
        for _ in 0..EACH {
            let connect = subject.connect(busy);
            let connected = poll_for(subject, connect, Duration::from_millis(1)).await;
            assert!(connected.is_none_or(|connected| connected.is_err()), "the backlog is full");
        }
        for _ in 0..EACH {
            let (ours, _peer) = pair();
            let mut stream = subject.stream(ours).expect("a socket");
            let receive = subject.recv(&mut stream);
            let _waits = poll_for(subject, receive, Duration::from_millis(1)).await;
        }
        for _ in 0..EACH {
            let listener = subject.listener(listen()).expect("a socket");
            let accept = subject.accept(&listener);
            let _waits = poll_for(subject, accept, Duration::from_millis(1)).await;
        }
        let _all_closed = wait_until(subject, || open_descriptors() <= before).await;
        open_descriptors().saturating_sub(before)
    });
    let operations = 3 * EACH;
    let seen = match left {
        0 => format!("all descriptors of {operations} dropped operations were closed"),
        left => format!("{left} descriptors of {operations} dropped operations stayed open"),
    };
    (left == 0, seen)
}

/// A stream is dropped with its waiting receive; its peer waits for the end.
pub(crate) fn close<S: Subject>(subject: &S) -> (bool, String) {
    let ended = subject.run(async {
        let (ours, mut peer) = pair();
        let mut stream = subject.stream(ours).expect("a socket");
        let _waits = poll_for(subject, subject.recv(&mut stream), Duration::from_millis(2)).await;
        drop(stream);
        peer.set_nonblocking(true).expect("a socket");
        let blocks = |error: std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
        wait_until(subject, || !peer.read(&mut [0]).is_err_and(blocks)).await
    });
    let seen = match ended {
        true => "the peer of a dropped stream saw its end".to_owned(),
        false => format!("the peer of a dropped stream saw no end in {PATIENCE:?}"),
    };
    (ended, seen)
}

/// Receives are dropped, some of them last before the runtime ends; then bytes arrive for them.
pub(crate) fn buffers<S: Subject>(subject: &S) -> (bool, String) {
    assert!(
        quarantine::is_installed(),
        "Quarantine is not the global allocator of this program: see the crate's documentation"
    );
    let mut peers = subject.run(async {
        let (mut streams, mut peers) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let (ours, peer) = pair();
            let mut stream = subject.stream(ours).expect("a socket");
            let receive = subject.recv(&mut stream);
            let _waits = poll_for(subject, receive, Duration::from_millis(1)).await;
            let mut sender = peer.try_clone().expect("a descriptor");
            sender.write_all(&[1; 1000]).expect("room");
            peers.push(peer);
            streams.push(stream);
        }
        subject.sleep(Duration::from_millis(5)).await;
        // The runtime ends right behind these.
        for stream in &mut streams {
            let receive = subject.recv(stream);
            let _maybe = poll_for(subject, receive, Duration::from_millis(1)).await;
        }
        peers
    });
    for peer in &mut peers {
        // Refused by a peer that is closed.
        let _maybe = peer.write_all(&[2; 1000]);
    }
    thread::sleep(Duration::from_millis(20));
    match quarantine::written() {
        0 => (true, format!("none of {} freed buffers was written to", quarantine::freed())),
        written => (false, format!("{written} freed buffers were written to by the kernel")),
    }
}
