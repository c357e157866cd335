//! Discard over TCP (RFC 863): every byte is read, and none is answered.

use crate::Connection;
use std::io;

/// Serves one connection until the peer sends FIN, which is answered by FIN: a peer that sees it knows
/// that all its bytes were read.
///
/// # Errors
/// When the connection breaks, or is asked to end.
pub async fn discard(connection: &Connection) -> io::Result<()> {
    while !connection.recv().await?.is_empty() {}
    connection.shutdown_write().await
}
