//! Sockets: the only API that services see.

mod listener;
mod stream;

pub use listener::{BoundListener, ListenOptions, TcpListener};
pub use stream::{Connect, Recv, Send, TcpStream};

use crate::driver::slots::Key;
use crate::runtime::Worker;
use socket2::SockRef;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

/// Asks the kernel something about a socket of the driver.
fn with_socket<R>(
    worker: &Rc<Worker>,
    key: Key,
    ask: impl FnOnce(SockRef<'_>) -> io::Result<R>,
) -> io::Result<R> {
    let driver = worker.driver.borrow();
    let fd = driver.fd(key).ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
    // SAFETY: the driver owns the descriptor and stays borrowed until `ask` has returned.
    ask(SockRef::from(&unsafe { BorrowedFd::borrow_raw(fd) }))
}

fn internet_address(address: socket2::SockAddr) -> io::Result<SocketAddr> {
    let not_internet = || io::Error::new(io::ErrorKind::InvalidData, "not an IPv4 or IPv6 address");
    address.as_socket().ok_or_else(not_internet)
}
