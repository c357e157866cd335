//! From one connection to another.

use super::TcpStream;
use std::io;

/// Sends all that `from` receives to `to`, until the end of the stream; returns how many bytes. Nothing
/// is copied in memory, and a slow receiver slows down the sender. It does not end the stream of `to`:
/// call [`shutdown`](TcpStream::shutdown) for that.
pub async fn copy(from: &TcpStream, to: &TcpStream) -> io::Result<u64> {
    let mut copied = 0;
    loop {
        let bytes = from.recv().await?;
        if bytes.is_empty() {
            return Ok(copied);
        }
        copied += bytes.len() as u64;
        to.send(bytes).await?;
    }
}
