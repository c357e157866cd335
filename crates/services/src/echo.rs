//! Echo over TCP: every byte is sent back to its sender, in order.

use crate::Connection;
use std::io;

/// Serves one connection until the peer sends FIN: then all data is sent back, followed by FIN.
///
/// # Errors
/// When the connection breaks, or is asked to end.
pub async fn echo(connection: &Connection) -> io::Result<()> {
    loop {
        let chunk = connection.recv().await?;
        if chunk.is_empty() {
            return connection.shutdown_write().await;
        }
        connection.send(chunk).await?;
    }
}
