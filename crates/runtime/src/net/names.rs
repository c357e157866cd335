//! Names of hosts.

use super::TcpStream;
use crate::runtime::current;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

/// The addresses of a name such as `"example.org:443"` or `("example.org", 443)`, in the order in
/// which they should be tried. The system's resolver is called on one of the threads of
/// [`spawn_blocking`](crate::spawn_blocking), so the worker continues. The resolver has time limits
/// of its own, of many seconds; use [`timeout`](crate::timeout) for a shorter one. Dropping the
/// future discards the answer.
///
/// # Errors
/// Those of the resolver; EAGAIN if no thread can be started.
///
/// # Panics
/// Outside a twinring runtime.
pub async fn resolve<N>(name: N) -> io::Result<Vec<SocketAddr>>
where
    N: ToSocketAddrs + Send + 'static,
{
    let lookup = move || name.to_socket_addrs().map(Iterator::collect);
    current().spawned().run(lookup).await?
}

impl TcpStream {
    /// Connects to the first address of a name that accepts, see [`resolve`].
    ///
    /// ```no_run
    /// # async fn example() -> std::io::Result<()> {
    /// let stream = twinring::TcpStream::connect_to(("example.org", 80)).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`resolve`], or that of the last address.
    ///
    /// # Panics
    /// Outside a twinring runtime.
    pub async fn connect_to<N>(name: N) -> io::Result<TcpStream>
    where
        N: ToSocketAddrs + Send + 'static,
    {
        let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in resolve(name).await? {
            match TcpStream::connect(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }
}
