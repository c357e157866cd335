//! Runs libraries written for tokio, futures or hyper, unmodified, on the [`twinring`] runtime, on
//! io_uring and epoll alike.
//!
//! [`Compat`] wraps a connection and implements the traits such libraries read and write through:
//!
//! | feature | traits of `Compat` | for |
//! |---|---|---|
//! | `tokio` | `tokio::io::AsyncRead`, `AsyncBufRead`, `AsyncWrite` | tokio-rustls, tokio-util |
//! | `futures` | `futures_io::AsyncRead`, `AsyncBufRead`, `AsyncWrite` | async-tungstenite, futures-rustls |
//! | `hyper` | `hyper::rt::Read`, `Write` | hyper 1 |
//!
//! With the feature `hyper`, `Timer` and `Executor` are hyper's timer and executor. All three
//! features are on by default. None of them brings another runtime along: of tokio, only the traits
//! are compiled.
//!
//! # One thread
//!
//! A twinring task stays on the thread of its worker, so [`Compat`], the futures that use it, and
//! what `Executor` runs are not `Send`. Most libraries accept that: hyper (HTTP/1 and HTTP/2),
//! tokio-rustls, async-tungstenite.
//!
//! # Bounds
//!
//! A connection holds at most 256 KiB and one write of at most [`WRITE_BYTES_MAX`] that the kernel
//! has not taken yet; writing then waits for the peer. Of received bytes, it holds at most one
//! buffer that the reader has not taken (64 KiB by default), besides what the runtime itself bounds.
//!
//! # Example
//!
//! ```no_run
//! use futures_util::{AsyncBufReadExt, AsyncWriteExt, StreamExt};
//! use twinring::{Runtime, TcpStream};
//! use twinring_compat::Compat;
//!
//! Runtime::builder().build()?.block_on(async {
//!     let stream = TcpStream::connect("127.0.0.1:7000").await?;
//!     let mut stream = Compat::new(stream);
//!     stream.write_all(b"hello\n").await?;
//!     let mut lines = stream.lines();
//!     while let Some(line) = lines.next().await {
//!         println!("{}", line?);
//!     }
//!     Ok(())
//! })?
//! # as std::io::Result<()>;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

// Without a feature there is nothing to adapt to.
#![cfg_attr(
    not(any(feature = "tokio", feature = "futures", feature = "hyper")),
    allow(dead_code, unused_imports)
)]

mod compat;
#[cfg(feature = "futures")]
mod for_futures;
#[cfg(feature = "hyper")]
mod for_hyper;
#[cfg(feature = "tokio")]
mod for_tokio;
mod shared_methods;
mod socket;

pub use compat::{Compat, WRITE_BYTES_MAX};
#[cfg(feature = "hyper")]
pub use for_hyper::{Executor, Timer};
pub use socket::Socket;
