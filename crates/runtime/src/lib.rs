#![doc = include_str!("../README.md")]

mod blocking;
mod buf;
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
