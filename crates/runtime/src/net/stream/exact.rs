//! Receiving into memory of the caller, an exact number of bytes, or up to a separator. Nothing is
//! lost with a future that is dropped: what it has taken goes back to the stream.

use super::TcpStream;
use crate::buf::RecvBuf;
use std::io;

impl TcpStream {
    /// Returns received bytes to the stream: the next receive yields them first. For a parser that
    /// has read too far. Bytes from a receive buffer are copied.
    pub fn put_back(&self, data: impl Into<RecvBuf>) {
        self.socket.worker.driver.borrow_mut().put_back(&self.stream, data.into());
    }

    /// Receives at least one byte into `into`; 0 is the end of the stream, or says that `into` is
    /// empty. What does not fit stays in the stream. Copies each byte; [`recv`](Self::recv) does
    /// not. Dropping the future loses no data.
    pub async fn recv_into(&self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        let chunk = self.recv().await?;
        let bytes = chunk.len().min(into.len());
        into[..bytes].copy_from_slice(&chunk[..bytes]);
        self.put_back_behind(chunk, bytes);
        Ok(bytes)
    }

    /// Fills `into`. If the future is dropped or fails, what it has received goes back to the
    /// stream. Fails with UnexpectedEof if the stream ends before.
    pub async fn recv_exact(&self, into: &mut [u8]) -> io::Result<()> {
        let mut taken = Taken { stream: self, bytes: Vec::new() };
        while taken.bytes.len() < into.len() {
            let chunk = self.recv().await?;
            if chunk.is_empty() {
                let (filled, wanted) = (taken.bytes.len(), into.len());
                let what = format!("the stream ended after {filled} of {wanted} bytes");
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
            }
            let bytes = chunk.len().min(into.len() - taken.bytes.len());
            taken.add(chunk, bytes);
        }
        into.copy_from_slice(&std::mem::take(&mut taken.bytes));
        Ok(())
    }

    /// Returns to the stream what is behind the first bytes of a chunk.
    fn put_back_behind(&self, mut chunk: RecvBuf, bytes: usize) {
        chunk.advance(bytes);
        if !chunk.is_empty() {
            self.put_back(chunk);
        }
    }

    /// Receives up to and including the next `separator`, such as `b'\n'` for lines. At the end of
    /// the stream it returns the rest, without a separator, and then nothing. At most `limit` bytes
    /// are kept while it waits. If the future is dropped or fails, what it has received goes back
    /// to the stream. Fails with InvalidData if the first `limit` bytes contain no separator.
    pub async fn recv_until(&self, separator: u8, limit: usize) -> io::Result<Vec<u8>> {
        let mut taken = Taken { stream: self, bytes: Vec::new() };
        loop {
            let chunk = self.recv().await?;
            let within = chunk.len().min(limit - taken.bytes.len());
            let found = chunk[..within].iter().position(|byte| *byte == separator);
            let is_over = found.is_some() || chunk.is_empty();
            taken.add(chunk, found.map_or(within, |at| at + 1));
            if is_over {
                return Ok(std::mem::take(&mut taken.bytes));
            }
            if taken.bytes.len() == limit {
                let what = format!("no separator in {limit} bytes");
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
        }
    }
}

/// Bytes that go back to the stream when this is dropped.
struct Taken<'a> {
    stream: &'a TcpStream,
    bytes: Vec<u8>,
}

impl Taken<'_> {
    /// Takes the first bytes of a chunk; the others go back.
    fn add(&mut self, chunk: RecvBuf, bytes: usize) {
        self.bytes.extend_from_slice(&chunk[..bytes]);
        self.stream.put_back_behind(chunk, bytes);
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if !self.bytes.is_empty() {
            self.stream.put_back(std::mem::take(&mut self.bytes));
        }
    }
}
