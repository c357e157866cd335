//! A small thread-per-core runtime for Linux: the same sockets, timers and tasks on io_uring or
//! on epoll, chosen when the runtime is built.
//!
//! Each worker is a thread with its own executor and its own ring or epoll set; tasks do not move
//! between threads. Received data is in buffers of a pool ([`RecvBuf`]), sends take ownership of
//! their buffers ([`SendBuf`]), and both engines give the same guarantees: no data is lost or
//! reordered, and a slow peer slows down only itself. What needs a worker panics outside a runtime.
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
pub mod config;
pub mod confine;
mod counters;
mod datagram;
mod driver;
mod event;
pub mod fs;
pub mod measure;
pub mod net;
pub mod probe;
mod race;
mod runtime;
mod slots;
mod sync;
mod sys;
pub mod task;
pub mod time;

pub use blocking::spawn_blocking;
pub use buf::{RecvBuf, SendBuf};
pub use config::{Engine, EngineChoice};
pub use datagram::{Datagram, Received};
pub use event::Event;
pub use net::{TcpListener, TcpStream, UdpSocket, UnixListener, UnixStream};
pub use race::{Either, race};
pub use runtime::{Builder, Handle, Runtime, shutdown_requested, submit};
pub use task::{JoinHandle, spawn, yield_now};
pub use time::{sleep, sleep_until, timeout, timeout_at};
