//! Streams of RTP packets to a reflector, like those of a media server: thousands with a few packets
//! per second each, or one with very many. Each has its own socket.
//!
//! Each worker thread has its own engine and its share of the streams, and wakes once per tick. It
//! sends the packets due by a [schedule](crate::schedule), then processes the replies. Packets are
//! sent regardless of missing replies: it is an open loop. For the counts, see
//! [`UdpResult`] and `docs/json.md`:
//!
//! - A packet belongs to the measured window if its *intended* time does.
//! - Lateness is the time from there to the moment directly before the kernel gets the packet, with
//!   one stamp for a few dozen packets; on io_uring before the enter that submits them, on epoll
//!   before the first of their system calls.
//! - A round trip is the time from that stamp until the worker processes the reply, which it does
//!   once per tick; so it includes up to a tick of waiting on this side.
//! - Jitter is the estimate of RFC 3550, section 6.4.1, with the intended times as the senders'
//!   timestamps, in nanoseconds instead of units of 125 us. Duplicates do not count.

mod client;
#[doc(hidden)]
pub mod fuzzing;
mod packet;
mod report;
mod settings;
mod stream;
mod traffic;

pub use packet::RTP_HEADER_BYTES;
pub(crate) use report::Table;
pub use settings::Settings;

use crate::observer::Observer;
use crate::run::{LoadError, run};
use std::io;
use std::sync::Arc;
use twinring::config::Features;
use twinring_wire::UdpResult;

/// A load that is ready to run.
pub type Load = crate::Load<Settings>;

impl Load {
    /// Chooses the engine. The settings must have been [checked](Settings::check).
    ///
    /// # Errors
    /// When the engine or a requested feature is refused.
    pub fn new(settings: Settings) -> io::Result<Load> {
        let builder = settings.common.workers.builder(settings.tuned_uring());
        let runtime = builder.call_times(settings.calls).build()?;
        Ok(Load::of(settings, runtime))
    }

    /// Opens sockets, loads, measures. Returns when all of it has ended.
    ///
    /// # Errors
    /// When the engine fails or no socket can be opened.
    pub fn run(self, observer: &mut dyn Observer) -> Result<UdpResult, LoadError> {
        // With a submission thread the kernel may take packets before the enter.
        let submits = matches!(
            self.runtime.features(), Features::IoUring(uring) if uring.sqpoll_idle_ms == 0
        );
        let settings = Arc::new(self.settings);
        let (common, stopper) = (&settings.common, &self.stopper);
        let (counts, ran) = run(self.runtime, stopper, common, observer, |index, control| {
            client::run_thread(index, Arc::clone(&settings), control, submits)
        })?;
        let result = report::report(&settings, &ran, counts);
        if result.streams.opened == 0 && !result.head.interrupted {
            let why = result.first_error.unwrap_or_else(|| "no reason is known".into());
            return Err(LoadError::Unreachable { target: result.head.target, why });
        }
        Ok(result)
    }
}
