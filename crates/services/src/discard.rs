//! Discard over TCP (RFC 863): every byte is read, and none is answered.

use crate::{Connection, Limits, TcpService};
use std::io;
use std::net::SocketAddr;
use twinring::{Handle, net::ListenOptions};

/// The service, bound: see [`TcpService::bind`].
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
    TcpService::bind(discard, addresses, options, limits, workers, handle)
}

/// Serves one connection until the peer sends FIN, which is answered by FIN: a peer that sees it knows
/// that all its bytes were read.
///
/// # Errors
/// When the connection breaks, or is asked to end.
pub async fn discard(connection: &Connection) -> io::Result<()> {
    while !connection.recv().await?.is_empty() {}
    connection.shutdown().await
}
