//! Simulated machines: runtimes, services and clients on virtual time, in one thread, with faults
//! that come from a seed. For tests; only with the feature `sim`.
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
//! (`clock_gettime`, `socket`, `close` and a few more). On threads that are in no world they do what
//! they always do, a little slower, so the feature has no place in a program that is measured.

pub use crate::driver::faults::{ENVIRONMENT, Fault, Faults};
pub use crate::driver::sim::{Place, Running, Summary, World};
