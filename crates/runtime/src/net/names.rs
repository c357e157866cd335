//! Names of hosts, and connecting to them.

use super::TcpStream;
use crate::runtime::current;
use crate::sys::socket::Socket;
use std::any::Any;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;

/// The addresses of a name such as `"example.org:443"` or `("example.org", 443)`, in the order in
/// which they should be tried. The system's resolver is called on one of the threads of
/// [`spawn_blocking`](crate::spawn_blocking), so the worker continues. The resolver has time limits
/// of its own, of many seconds; use [`timeout`](crate::timeout) for a shorter one. Dropping the
/// future discards the answer. Fails as the resolver does, and with EAGAIN if no thread can be
/// started.
pub async fn resolve<N>(name: N) -> io::Result<Vec<SocketAddr>>
where
    N: ToSocketAddrs + Send + 'static,
{
    if let Some(address) = literal(&name) {
        return Ok(vec![address]);
    }
    let lookup = move || name.to_socket_addrs().map(Iterator::collect);
    current().shared.spawned.run(lookup).await?
}

fn literal(name: &dyn Any) -> Option<SocketAddr> {
    if let Some(address) = name.downcast_ref::<SocketAddr>() {
        return Some(*address);
    }
    let text = name.downcast_ref::<&'static str>().copied();
    text.or_else(|| name.downcast_ref::<String>().map(String::as_str))?.parse().ok()
}

/// The first address of a name for which `bind` works. Names that are no addresses block on the system's
/// resolver.
pub(super) fn bind_first<T>(
    name: impl ToSocketAddrs,
    mut bind: impl FnMut(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let mut failed = no_address();
    for address in name.to_socket_addrs()? {
        match bind(address) {
            Ok(bound) => return Ok(bound),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the name has no address")
}

impl TcpStream {
    /// Connects to an address, or to the first address of a name that accepts, see [`resolve`]; with
    /// TCP_NODELAY set.
    ///
    /// ```no_run
    /// # async fn example() -> std::io::Result<()> {
    /// let stream = twinring::TcpStream::connect("example.org:80").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Fails as [`resolve`], or as the last address did.
    pub async fn connect<N>(to: N) -> io::Result<TcpStream>
    where
        N: ToSocketAddrs + Send + 'static,
    {
        let mut failed = no_address();
        for address in resolve(to).await? {
            match TcpStream::connect_from(None, address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// Connects a socket that the program has made, with the options that it has set, such as a mark or
    /// an interface.
    pub async fn connect_socket(
        socket: impl Into<OwnedFd>,
        address: SocketAddr,
    ) -> io::Result<TcpStream> {
        let socket = Socket::from(socket.into());
        socket.set_nonblocking(true)?;
        TcpStream::connect_with(socket, &address.into()).await
    }
}
