//! A small thread-per-core runtime for Linux: the same sockets, timers and tasks on io_uring or
//! on epoll, chosen when the runtime is built.
//!
//! Each worker is a thread with its own executor and its own ring or epoll set; tasks do not move
//! between threads. Received data is in buffers of a pool ([`RecvBuf`]), sends take ownership of
//! their buffers ([`SendBuf`]), and both engines give the same guarantees: no data is lost or
//! reordered, and a slow peer slows down only itself.
//!
//! ```no_run
//! use twinring::{Runtime, TcpListener};
//!
//! let runtime = Runtime::builder().build()?;
//! println!("engine: {}", runtime.features().engine());
//! runtime.block_on(async {
//!     let listener = TcpListener::bind("127.0.0.1:7000")?;
//!     loop {
//!         let stream = listener.accept().await?;
//!         twinring::spawn(async move {
//!             while let Ok(data) = stream.recv().await
//!                 && !data.is_empty()
//!                 && stream.send(data).await.is_ok()
//!             {}
//!         });
//!     }
//!     # #[allow(unreachable_code)]
//!     # Ok::<(), std::io::Error>(())
//! })??;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod blocking;
mod buf;
mod calls;
mod config;
pub mod confine;
mod counters;
mod datagram;
mod driver;
pub mod fs;
#[doc(hidden)]
pub mod fuzzing;
pub mod net;
mod notice;
pub mod probe;
mod race;
mod runtime;
mod slots;
mod spawn_blocking;
mod sync;
mod sys;
pub mod task;
pub mod time;

pub use buf::{RecvBuf, SendBuf};
pub use calls::CallTime;
pub use config::{
    Engine, EngineChoice, EpollFeatures, EpollOptions, Features, OptionError, UringFeatures,
    UringOptions,
};
pub use counters::{CounterSnapshot, OverrunSummary};
pub use datagram::{Datagram, Ecn, Received, SendErrors, UdpStats};
pub use net::{
    BoundListener, BoundUdp, Keepalive, ListenOptions, TcpListener, TcpStream, UdpOptions,
    UdpSocket, UnixDatagram, UnixListener, UnixStream,
};
pub use notice::Notice;
pub use race::{Either, race};
pub use runtime::{
    Builder, Handle, Runtime, RuntimeError, ShutdownRequested, call_times, restart_call_times,
    shutdown_requested, submit,
};
pub use spawn_blocking::spawn_blocking;
pub use task::{JoinError, JoinHandle, RemoteHandle, spawn, spawn_named, task_name, yield_now};
pub use time::{Elapsed, Sleep, Tick, Ticker, sleep, sleep_until, timeout, timeout_at};

/// CLOCK_MONOTONIC in nanoseconds: the clock that all processes of one machine share, for time
/// stamps that another process compares with its own.
pub fn monotonic_ns() -> u64 {
    sys::monotonic_ns()
}

/// Lets the C library keep up to 64 MiB of freed memory at the end of each heap for reuse. Call it
/// once, at the start of a program, before it has further threads.
///
/// Buffers that io_uring sends are freed by the hundred, after the system call that sends them.
/// glibc then returned them to the system and allocated them again, page fault by page fault: 20
/// for a file of 100 KB over TLS. Has no effect with other C libraries.
pub fn keep_freed_memory() {
    sys::heap::keep_freed_memory();
}

/// CPU time that the calling thread has used, in nanoseconds, exact to the moment.
pub fn thread_cpu_clock_ns() -> u64 {
    sys::thread_cpu_clock_ns()
}

/// CPU time that the calling thread has used: user and system, in nanoseconds.
pub fn thread_cpu_time_ns() -> (u64, u64) {
    sys::thread_cpu_time_ns()
}
