//! Sockets: the only API that services see.

mod listener;
mod stream;
mod udp;
mod udp_options;

pub use listener::{BoundListener, ListenOptions, TcpListener};
pub use stream::{Connect, Recv, Send, TcpStream};
pub use udp::{RecvBatch, SendBatch, UdpSocket};
pub use udp_options::{BoundUdp, Granted, UdpOptions};

use crate::driver::slots::Key;
use crate::runtime::{Worker, is_serving};
use socket2::SockRef;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How often binding is tried again while the address is in use. The port of an io_uring process
/// that was killed stays bound for 9 to 12 ms, until the kernel has torn its rings down.
const BIND_PATIENCE: Duration = Duration::from_millis(100);

/// Repeats `bind` for a moment while the address is in use; once only on a worker that serves, which
/// would keep all its connections waiting.
fn patiently<T>(mut bind: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let patience = if is_serving() { Duration::ZERO } else { BIND_PATIENCE };
    let began = Instant::now();
    loop {
        match bind() {
            Err(error)
                if error.kind() == io::ErrorKind::AddrInUse && began.elapsed() < patience =>
            {
                std::thread::sleep(Duration::from_millis(3));
            }
            other => return other,
        }
    }
}

/// Asks the kernel something about a socket of the driver.
fn with_socket<R>(
    worker: &Rc<Worker>,
    key: Key,
    ask: impl FnOnce(SockRef<'_>) -> io::Result<R>,
) -> io::Result<R> {
    let driver = worker.driver.borrow();
    let fd = driver.fd(key).ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
    ask(SockRef::from(&fd))
}

fn internet_address(address: socket2::SockAddr) -> io::Result<SocketAddr> {
    let not_internet = || io::Error::new(io::ErrorKind::InvalidData, "not an IPv4 or IPv6 address");
    address.as_socket().ok_or_else(not_internet)
}
