//! Nothing is written into a released buffer, or into one with a reader, while sockets and runtimes
//! end in the middle of a flood: for datagrams what the suite of the same name is for streams.

use crate::peers::*;
use crate::support::*;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use twinring::{Received, UdpSocket, net::UdpOptions, spawn};

pub(crate) const RULES: &[Rule] = rules![nothing_is_written_late_while_sockets_and_runtimes_go];

/// An address that no other test binds, and might get datagrams on that were for a socket before it.
const OWN_ADDRESS: ([u8; 4], u16) = ([127, 78, 0, 1], 0);

/// Sends numbered datagrams to all of `targets`, in use or not, until told to stop.
fn flood(targets: Vec<SocketAddr>, over: Arc<AtomicBool>) -> Outcome<()> {
    on_thread(move || {
        let peer = peer();
        let mut number = 0;
        while !over.load(Ordering::Relaxed) {
            for target in &targets {
                // Refused where a socket is gone.
                let _or_refused = peer.send_to(&numbered(40, number, 200), target);
            }
            number += 1;
            std::thread::sleep(Duration::from_micros(50));
        }
    })
}

/// Receives without end, and keeps the last batch, which must not change.
async fn receive_and_keep(socket: Rc<UdpSocket>) {
    let (mut kept, mut received) = (Vec::new(), Vec::new());
    while socket.recv_batch(&mut received).await.is_ok() {
        assert_intact(&kept);
        std::mem::swap(&mut kept, &mut received);
        received.clear();
    }
    assert_intact(&kept);
}

fn assert_intact(received: &[Received]) {
    for received in received {
        assert_numbered(40, &received.data);
    }
}

fn nothing_is_written_late_while_sockets_and_runtimes_go(configuration: Configuration) {
    const RUNTIMES: usize = 4;
    for options in ways() {
        let options = UdpOptions { buffer_count: 16, buffer_bytes: 256, ..options };
        for number in 0..RUNTIMES {
            let options = options.clone();
            let (kept, over, flooding) = configuration.run(async move {
                let mut random = Random::new(number as u64);
                let open = || Rc::new(bind_to(&options, SocketAddr::from(OWN_ADDRESS)));
                let sockets: Vec<_> = (0..6).map(|_| open()).collect();
                let targets = sockets.iter().map(|socket| socket.local_addr()).collect();
                let over = Arc::new(AtomicBool::new(false));
                let flooding = flood(targets, Arc::clone(&over));
                let first = sockets[0].recv_from().await.expect("a datagram");
                for (number, socket) in sockets.into_iter().enumerate() {
                    let task = spawn(receive_and_keep(Rc::clone(&socket)));
                    for _ in 0..random.below(6) {
                        yield_now().await;
                    }
                    match number % 3 {
                        // Closed with its receives armed, cancelled, or left to the runtime's end.
                        0 => task.abort(),
                        1 => socket.cancel(),
                        _ => {}
                    }
                }
                twinring::sleep(Duration::from_millis(2)).await;
                (first, over, flooding)
            });
            assert_intact(&[kept]);
            over.store(true, Ordering::Relaxed);
            configuration.run(flooding);
        }
    }
}
