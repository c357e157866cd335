//! Threads in a world: blocking programs that talk to runtimes and to each other, in virtual time
//! and the same way each time.

use crate::{anywhere, echo};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};
use twinring::sim::{Fault, Faults, Summary, World};
use twinring::{Either, Runtime, TcpListener, race, shutdown_requested};

/// They would hit the clients too, which create sockets and send without checks.
const OF_ANYBODY: &[Fault] =
    &[Fault::NoDescriptor, Fault::FileTableFull, Fault::NoMemory, Fault::NoBuffers];

fn talk(address: SocketAddr, seed: u8) {
    let mut stream = TcpStream::connect(address).expect("a listener");
    let mut writer = stream.try_clone().expect("a descriptor");
    let bytes: Vec<u8> = (0..200_000u32).map(|at| (at / 3) as u8 ^ seed).collect();
    let sent = bytes.clone();
    let writing = spawn(move || {
        writer.write_all(&sent).expect("the other reads");
        writer.shutdown(std::net::Shutdown::Write).expect("connected");
    });
    let mut received = Vec::new();
    stream.read_to_end(&mut received).expect("no reset");
    assert!(received == bytes, "the echo differs");
    writing.join().expect("no panic");
}

/// A runtime with two workers on threads, and five blocking clients.
fn echo_run(seed: u64) -> Summary {
    let world = World::new(seed, Faults::harmless(seed).without(OF_ANYBODY));
    let bound = loop {
        if let Ok(bound) = twinring::ListenOptions::default().bind(anywhere(), 2) {
            break bound;
        }
    };
    let address = bound[0].local_addr();
    let bound = Mutex::new(bound);
    let runtime =
        Runtime::builder().stop_on_panic(true).workers(2).build().expect("the simulated engine");
    let handle = runtime.handle();
    let clients = spawn(move || {
        let clients: Vec<_> = (0..5).map(|seed| spawn(move || talk(address, seed))).collect();
        clients.into_iter().for_each(|client| client.join().expect("a right answer"));
        handle.shutdown();
    });
    let served = runtime.run(|_| {
        let bound = bound.lock().expect("no panic").pop().expect("one each");
        async move {
            let listener = TcpListener::from_bound(bound).expect("a listener");
            let mut served = 0;
            while let Either::Left(stream) = race(listener.accept(), shutdown_requested()).await {
                twinring::spawn(echo(stream.expect("a connection")));
                served += 1;
            }
            served
        }
    });
    clients.join().expect("no panic");
    let served = served.expect("the engine works");
    assert_eq!(served.into_iter().flatten().sum::<usize>(), 5);
    world.finish()
}

#[test]
fn threads_take_turns_the_same_way_each_time() {
    for seed in [0, 1, 2] {
        assert_eq!(echo_run(seed), echo_run(seed), "seed {seed}");
    }
    assert_ne!(echo_run(1).trace_hash, echo_run(2).trace_hash);
}

/// The waits of the standard library: all of them by the clock of the world.
#[test]
fn locks_channels_and_sleep_wait_in_virtual_time() {
    const HOUR: Duration = Duration::from_secs(3600);
    let world = World::new(3, Faults::none());
    let began = Instant::now();
    let (sender, receiver) = channel::<u32>();
    assert_eq!(receiver.recv_timeout(HOUR), Err(RecvTimeoutError::Timeout));
    assert!(began.elapsed() >= HOUR);
    let pair = Arc::new((Mutex::new(0), Condvar::new()));
    let barrier = Arc::new(Barrier::new(4));
    let threads: Vec<_> = (1..=3)
        .map(|number| {
            let (pair, barrier, sender) = (Arc::clone(&pair), Arc::clone(&barrier), sender.clone());
            spawn(move || {
                sleep(HOUR * number);
                sender.send(number).expect("a receiver exists");
                let (count, changed) = &*pair;
                let mut count = count.lock().expect("no panic");
                *count += number;
                // Others wait for the lock meanwhile.
                sleep(HOUR);
                changed.notify_all();
                drop(count);
                barrier.wait();
            })
        })
        .collect();
    let (count, changed) = &*pair;
    let whole = changed.wait_while(count.lock().expect("no panic"), |count| *count < 6);
    assert_eq!(*whole.expect("no panic"), 6);
    barrier.wait();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    drop(sender);
    assert_eq!(receiver.iter().collect::<Vec<_>>(), [1, 2, 3]);
    assert!(began.elapsed() >= 4 * HOUR);
    world.finish();
}

#[test]
fn blocking_sockets_keep_their_promises() {
    let world = World::new(4, Faults::none());
    let (one, other) = (UdpSocket::bind(anywhere()), UdpSocket::bind(anywhere()));
    let (one, other) = (one.expect("a free port"), other.expect("a free port"));
    one.set_read_timeout(Some(Duration::from_secs(5))).expect("a socket");
    let began = Instant::now();
    let late = one.recv(&mut [0; 10]).expect_err("no sender");
    assert_eq!(late.kind(), std::io::ErrorKind::WouldBlock);
    assert!(began.elapsed() >= Duration::from_secs(5));
    other.send_to(b"hello", one.local_addr().expect("bound")).expect("room");
    let mut bytes = [0; 10];
    let (length, from) = one.recv_from(&mut bytes).expect("a datagram");
    assert_eq!((&bytes[..length], from), (&b"hello"[..], other.local_addr().expect("bound")));
    one.set_nonblocking(true).expect("a socket");
    assert!(one.recv(&mut bytes).is_err());
    drop((one, other));
    let listener = std::net::TcpListener::bind(anywhere()).expect("a free port");
    let address = listener.local_addr().expect("bound");
    let server = spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut first = [0; 3];
        assert_eq!(stream.peek(&mut first).expect("bytes"), 3);
        let mut whole = Vec::new();
        stream.read_to_end(&mut whole).expect("no reset");
        assert_eq!(whole, b"abcdef");
    });
    let mut client = TcpStream::connect(address).expect("it listens");
    client.write_all(b"abc").expect("room");
    sleep(Duration::from_secs(1));
    client.write_all(b"def").expect("room");
    drop(client);
    server.join().expect("no panic");
    world.finish();
}
