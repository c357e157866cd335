//! Echo over TCP (RFC 862).
//!
//! It is bound here, so that the tasks of connections are compiled here, for speed; the command is compiled for size.

use crate::{Connection, Limits, TcpService};
use std::io;
use std::net::SocketAddr;
use twinring::{Handle, net::ListenOptions};

/// The echo, bound: see [`TcpService::bind`].
///
/// # Errors
/// When an address cannot be bound; the message names it.
pub fn bind(
    addresses: &[SocketAddr],
    options: &ListenOptions,
    limits: Limits,
    workers: usize,
    handle: Handle,
) -> io::Result<TcpService> {
    TcpService::bind(echo, addresses, options, limits, workers, handle)
}

/// Serves one connection until the peer sends FIN: then all data is sent back, followed by FIN.
///
/// # Errors
/// When the connection breaks, or is asked to end.
pub async fn echo(connection: &Connection) -> io::Result<()> {
    loop {
        let chunk = connection.recv().await?;
        if chunk.is_empty() {
            break;
        }
        connection.send(chunk).await?;
    }
    connection.shutdown().await
}
