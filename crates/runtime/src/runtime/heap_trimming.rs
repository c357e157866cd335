//! When to return free memory to the system: after most of the connections have closed.
//!
//! The C library keeps freed memory for reuse, unless it is at the end of the heap. After thousands
//! of connections with slow peers that can be hundreds of megabytes of whole pages.

use std::cell::Cell;

/// A peak of fewer sockets than this is not worth a trim.
const PEAK_MIN: usize = 64;

/// The share of the peak that may still be open when a trim is due: an eighth.
const SHARE_LEFT: usize = 8;

/// Watches the number of sockets of a worker. Operations in flight do not count: they come and go
/// by the hundred in each turn, and only on io_uring.
#[derive(Debug, Default)]
pub(super) struct HeapTrimming {
    /// The most sockets since the last trim.
    peak: Cell<usize>,
}

impl HeapTrimming {
    /// Records the number of sockets. True once for each time that it falls to an eighth of the
    /// peak.
    pub(super) fn is_due(&self, sockets: usize) -> bool {
        let peak = self.peak.get().max(sockets);
        let due = peak >= PEAK_MIN && sockets <= peak / SHARE_LEFT;
        self.peak.set(if due { sockets } else { peak });
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::heap::tests::TRIMS;
    use crate::{Datagram, EngineChoice, Runtime, UdpSocket, sleep};
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    /// On io_uring each datagram operation in flight was counted as a socket, so the pause after a
    /// burst trimmed the heaps.
    #[test]
    fn a_burst_of_datagrams_trims_nothing() {
        crate::keep_freed_memory();
        for engine in [EngineChoice::IoUring, EngineChoice::Epoll] {
            let runtime = Runtime::builder().engine(engine).build().expect("the engine");
            let sent = runtime.block_on(async {
                let target = std::net::UdpSocket::bind("127.0.0.1:0")?;
                let socket = UdpSocket::bind("127.0.0.1:0".parse().unwrap())?;
                for _ in 0..3 {
                    let to = target.local_addr()?;
                    let mut burst = (0..500).map(|_| Datagram::to(to, vec![0; 16])).collect();
                    socket.send_batch(&mut burst).await?;
                    sleep(Duration::from_millis(5)).await;
                }
                std::io::Result::Ok(())
            });
            sent.expect("the engine works").expect("loopback takes datagrams");
        }
        assert_eq!(TRIMS.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_trim_is_due_once_for_each_time_that_the_sockets_fall_to_an_eighth() {
        let trimming = HeapTrimming::default();
        let due_at = |numbers: &[usize]| -> Vec<usize> {
            numbers.iter().copied().filter(|sockets| trimming.is_due(*sockets)).collect()
        };
        assert_eq!(due_at(&[0, 63, 0, 60, 0]), [0; 0], "too low a peak");
        assert_eq!(due_at(&[10, 4000, 600, 500, 400, 62, 61, 0]), [500, 62]);
        assert_eq!(due_at(&[300, 38, 37, 300, 37]), [37, 37]);
    }
}
