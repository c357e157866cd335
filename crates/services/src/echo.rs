//! Echo over TCP: every byte goes back to where it came from, in order.

use crate::Connection;
use std::io;

/// Serves one connection until the peer finishes: then everything is sent back, and FIN after it.
///
/// # Errors
/// When the connection breaks, or is asked to end.
pub async fn echo(connection: &Connection) -> io::Result<()> {
    loop {
        let piece = connection.recv().await?;
        if piece.is_empty() {
            return connection.finish().await;
        }
        connection.send(piece).await?;
    }
}
