//! The two halves of a connection, owned by two tasks.

use super::TcpStream;
use super::stream::{Recv, Send, SendVectored};
use crate::buf::SendBuf;
use std::io;
use std::rc::Rc;

impl TcpStream {
    /// Splits the connection into its two halves, for two tasks of the worker. All methods of a
    /// stream take `&self`, so tasks may as well share it in an [`Rc`]; the halves differ in that
    /// dropping the sending one ends the stream for the peer.
    pub fn into_split(self) -> (RecvHalf, SendHalf) {
        let stream = Rc::new(self);
        (RecvHalf { stream: Rc::clone(&stream) }, SendHalf { stream })
    }
}

/// The receiving half of a connection, see [`TcpStream::into_split`]. The connection is closed when
/// both halves are dropped.
#[derive(Debug)]
pub struct RecvHalf {
    stream: Rc<TcpStream>,
}

impl RecvHalf {
    /// As [`TcpStream::recv`].
    pub fn recv(&self) -> Recv<'_> {
        self.stream.recv()
    }

    /// The whole connection, for its addresses and options.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }
}

/// The sending half of a connection, see [`TcpStream::into_split`]. Dropping it sends FIN behind
/// all queued data.
#[derive(Debug)]
pub struct SendHalf {
    stream: Rc<TcpStream>,
}

impl SendHalf {
    /// As [`TcpStream::send`].
    pub fn send(&self, buf: impl Into<SendBuf>) -> Send<'_> {
        self.stream.send(buf)
    }

    /// As [`TcpStream::send_vectored`].
    pub fn send_vectored<B: Into<SendBuf>>(
        &self,
        bufs: impl IntoIterator<Item = B>,
    ) -> SendVectored<'_> {
        self.stream.send_vectored(bufs)
    }

    /// As [`TcpStream::flush`].
    ///
    /// # Errors
    /// As there.
    pub async fn flush(&self) -> io::Result<()> {
        self.stream.flush().await
    }

    /// The whole connection, for its addresses and options.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }
}

impl Drop for SendHalf {
    fn drop(&mut self) {
        self.stream.finish();
    }
}
