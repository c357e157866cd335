//! Simulated machines: runtimes, services and clients on virtual time, in one thread, with faults
//! that follow from a seed. For tests; only with the feature `sim`.
//!
//! ```
//! use std::time::Duration;
//! use twinring::sim::{Faults, World};
//! use twinring::{Runtime, TcpListener, TcpStream};
//!
//! let world = World::new(7, Faults::none());
//! let runtime = Runtime::builder().build()?;
//! let hello = runtime.start(|_| async {
//!     let listener = TcpListener::bind("127.0.0.1:0".parse().unwrap())?;
//!     let client = TcpStream::connect(listener.local_addr()).await?;
//!     let server = listener.accept().await?;
//!     server.send("hello").await?;
//!     Ok::<_, std::io::Error>(client.recv().await?.to_vec())
//! })?;
//! assert!(world.run_until(Duration::from_secs(1), || hello.is_over()));
//! assert_eq!(hello.outcome()?.remove(0).unwrap()?, b"hello");
//! world.finish();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! With the feature, this library answers calls of the C library in the whole program
//! (`clock_gettime`, `socket`, `close` and a few more). On threads outside a world they work as
//! usual, a little slower, so programs that are measured must not have the feature.

pub use crate::sys::faults::{ENVIRONMENT, Fault, Faults, inject};
pub use crate::sys::machine::world::{Place, Running, Summary, World};

use crate::config::{
    Buffers, EngineChoice, EpollFeatures, EpollOptions, Features, FileOperations, Split, TaskRun,
    Trigger, UdpReads, UringFeatures, UringOptions,
};

/// The features of an engine in the world of this thread: the requested ones, and otherwise those
/// that the seed of the world chooses, tiny pools as well as large ones. There is no probing: a
/// simulated kernel has all features.
pub(crate) fn features(
    engine: EngineChoice,
    epoll: &EpollOptions,
    uring: &UringOptions,
) -> Features {
    let ring = match engine {
        EngineChoice::Auto => choose(2) == 0,
        engine => engine == EngineChoice::IoUring,
    };
    match ring {
        true => Features::IoUring(ring_features(uring)),
        false => Features::Epoll(epoll_features(epoll, uring)),
    }
}

/// A number below `limit` that the seed chooses.
fn choose(limit: u64) -> u64 {
    World::current().map_or(0, |world| world.choose(limit))
}

fn epoll_features(epoll: &EpollOptions, uring: &UringOptions) -> EpollFeatures {
    let (bytes, count) = (64 << choose(11), 4 << choose(5));
    let trigger = if choose(2) == 0 { Trigger::Edge } else { Trigger::Level };
    let gather = [0, 1, 8, 512][choose(4) as usize];
    let buffer_bytes = epoll.buffer_bytes.or(uring.buffer_bytes);
    let buffer_count = epoll.buffer_count.or(uring.buffer_count);
    EpollFeatures {
        edge_triggered: epoll.trigger.unwrap_or(trigger) == Trigger::Edge,
        buffer_bytes: buffer_bytes.map_or(bytes, |bytes| bytes as usize),
        buffer_count: buffer_count.map_or(count, |count| count as u16),
        gather: epoll.gather.or(uring.gather).unwrap_or(gather),
    }
}

fn ring_features(wanted: &UringOptions) -> UringFeatures {
    let (bytes, count) = (64 << choose(11), 4 << choose(5));
    let taskrun = [TaskRun::Defer, TaskRun::Coop, TaskRun::None][choose(3) as usize];
    let buffers = [Buffers::Ring, Buffers::Incremental, Buffers::Legacy][choose(3) as usize];
    let split = [Split::Auto, Split::On, Split::Off][choose(3) as usize];
    let files = [FileOperations::Ring, FileOperations::Threads][choose(2) as usize];
    let udp = [UdpReads::Auto, UdpReads::Ring, UdpReads::Calls][choose(3) as usize];
    let gather = [0, 1, 8, 512][choose(4) as usize];
    UringFeatures {
        multishot: wanted.multishot.unwrap_or(choose(4) > 0),
        buffers: wanted.buffers.unwrap_or(buffers),
        buffer_bytes: wanted.buffer_bytes.map_or(bytes, |bytes| bytes as usize),
        buffer_count: wanted.buffer_count.map_or(count, |count| count as u16),
        taskrun: wanted.taskrun.unwrap_or(taskrun),
        single_issuer: true,
        // A submission thread is not simulated.
        sqpoll_idle_ms: 0,
        registered_ring: false,
        no_sqarray: false,
        submit_all: true,
        skip_success: wanted.skip_success.unwrap_or(choose(4) > 0),
        gather: wanted.gather.unwrap_or(gather),
        split: wanted.split.unwrap_or(split),
        min_wait_us: 0,
        no_iowait: false,
        ext_arg: true,
        direct: wanted.direct.unwrap_or(choose(2) == 0),
        files: wanted.files.unwrap_or(files),
        udp: wanted.udp.unwrap_or(udp),
        sq_entries: wanted.sq_entries.unwrap_or(8 << choose(6)),
        cq_entries: wanted.cq_entries.unwrap_or(512 << choose(4)),
    }
}
