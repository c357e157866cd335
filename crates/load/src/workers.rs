//! The worker threads of a load, and their engine.

use crate::run::LINGER;
use twinring::{
    Builder, EngineChoice, Runtime,
    config::{EpollOptions, UringOptions},
};

/// Worker threads, each with an engine of its own.
#[derive(Clone, Debug)]
pub struct Workers {
    /// How many.
    pub threads: usize,
    /// CPUs for the threads, in turn; empty leaves them to the scheduler.
    pub pin: Vec<usize>,
    /// The engine.
    pub engine: EngineChoice,
    /// Features of io_uring.
    pub uring: UringOptions,
    /// Features of epoll.
    pub epoll: EpollOptions,
}

impl Workers {
    /// A runtime of these workers with these features of io_uring. A panic ends it: one connection or
    /// socket less is less load than requested.
    pub(crate) fn builder(&self, uring: UringOptions) -> Builder {
        Runtime::builder()
            .engine(self.engine)
            .uring(uring)
            .epoll(self.epoll.clone())
            .workers(self.threads)
            .pin(self.pin.clone())
            .linger(LINGER)
            .stop_on_panic(true)
    }

    /// The features of io_uring with receive buffers of this size and number, unless configured.
    /// Buffers of another size have a suitable number by default.
    pub(crate) fn uring_with_buffers(&self, bytes: u32, count: u32) -> UringOptions {
        let mut options = self.uring.clone();
        if options.buffer_bytes.is_none() {
            options.buffer_bytes = Some(bytes);
            options.buffer_count = options.buffer_count.or(Some(count));
        }
        options
    }
}
