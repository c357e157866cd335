//! The two halves of a connection, owned by two tasks.

use super::TcpStream;
use std::ops::Deref;
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

/// The receiving half of a connection, see [`TcpStream::into_split`]: all methods that receive are
/// those of the stream. The connection is closed when both halves are dropped.
#[derive(Debug)]
pub struct RecvHalf {
    stream: Rc<TcpStream>,
}

impl Deref for RecvHalf {
    type Target = TcpStream;

    fn deref(&self) -> &TcpStream {
        &self.stream
    }
}

/// The sending half of a connection, see [`TcpStream::into_split`]: all methods that send are those of
/// the stream. Dropping it sends FIN behind all queued data.
#[derive(Debug)]
pub struct SendHalf {
    stream: Rc<TcpStream>,
}

impl Deref for SendHalf {
    type Target = TcpStream;

    fn deref(&self) -> &TcpStream {
        &self.stream
    }
}

impl Drop for SendHalf {
    fn drop(&mut self) {
        self.stream.finish();
    }
}
