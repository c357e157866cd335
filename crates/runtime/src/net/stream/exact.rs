//! Receiving into memory of the caller, an exact number of bytes, or up to a separator. Nothing is
//! lost with a future that is dropped: what it has taken goes back to the stream.

use super::TcpStream;
use crate::buf::RecvBuf;
use std::io;

impl TcpStream {
    /// Returns received bytes to the stream: the next receive yields them first. For a parser that
    /// has read too far. Bytes from a receive buffer are copied.
    pub fn put_back(&self, data: impl Into<RecvBuf>) {
        self.worker.driver.borrow_mut().put_back(&self.stream, data.into());
    }

    /// Receives at least one byte into `into`; 0 is the end of the stream, or says that `into` is
    /// empty. What does not fit stays in the stream. Copies each byte; [`recv`](Self::recv) does
    /// not. Dropping the future loses no data.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub async fn recv_into(&self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        let mut chunk = self.recv().await?;
        let bytes = chunk.len().min(into.len());
        into[..bytes].copy_from_slice(&chunk[..bytes]);
        chunk.advance(bytes);
        if !chunk.is_empty() {
            self.put_back(chunk);
        }
        Ok(bytes)
    }

    /// Fills `into`. If the future is dropped or fails, what it has received goes back to the stream.
    ///
    /// # Errors
    /// UnexpectedEof if the stream ends before; otherwise as [`recv`](Self::recv).
    pub async fn recv_exact(&self, into: &mut [u8]) -> io::Result<()> {
        let mut filling = Filling { stream: self, into, filled: 0 };
        while filling.filled < filling.into.len() {
            let bytes = self.recv_into(&mut filling.into[filling.filled..]).await?;
            if bytes == 0 {
                let (filled, wanted) = (filling.filled, filling.into.len());
                let what = format!("the stream ended after {filled} of {wanted} bytes");
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
            }
            filling.filled += bytes;
        }
        filling.filled = 0;
        Ok(())
    }

    /// Receives up to and including the next `separator`, such as `b'\n'` for lines. At the end of
    /// the stream it returns the rest, without a separator, and then nothing. At most `limit` bytes
    /// are kept while it waits. If the future is dropped or fails, what it has received goes back to
    /// the stream.
    ///
    /// # Errors
    /// InvalidData if the first `limit` bytes contain no separator; otherwise as
    /// [`recv`](Self::recv).
    pub async fn recv_until(&self, separator: u8, limit: usize) -> io::Result<Vec<u8>> {
        let mut found = Collecting { stream: self, bytes: Vec::new() };
        loop {
            let mut chunk = self.recv().await?;
            if chunk.is_empty() {
                return Ok(std::mem::take(&mut found.bytes));
            }
            let within = chunk.len().min(limit - found.bytes.len());
            let end = chunk[..within].iter().position(|byte| *byte == separator);
            let taken = end.map_or(within, |at| at + 1);
            found.bytes.extend_from_slice(&chunk[..taken]);
            chunk.advance(taken);
            if !chunk.is_empty() {
                self.put_back(chunk);
            }
            if end.is_some() {
                return Ok(std::mem::take(&mut found.bytes));
            }
            if found.bytes.len() == limit {
                let what = format!("no separator in {limit} bytes");
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
        }
    }
}

/// Returns what was received when it is dropped, unless `filled` is 0.
struct Filling<'a> {
    stream: &'a TcpStream,
    into: &'a mut [u8],
    filled: usize,
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        if self.filled > 0 {
            self.stream.put_back(self.into[..self.filled].to_vec());
        }
    }
}

/// The same for bytes in memory of its own.
struct Collecting<'a> {
    stream: &'a TcpStream,
    bytes: Vec<u8>,
}

impl Drop for Collecting<'_> {
    fn drop(&mut self) {
        if !self.bytes.is_empty() {
            self.stream.put_back(std::mem::take(&mut self.bytes));
        }
    }
}
