//! The futures of [`TcpStream`] that have a name.

use super::TcpStream;
use crate::buf::{RecvBuf, SendBuf};
use crate::driver::Side;
use crate::task::WaitToken;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The future of [`TcpStream::recv`]. Dropping it loses no data.
#[derive(Debug)]
#[must_use = "receives nothing unless awaited"]
pub struct Recv<'a> {
    stream: &'a TcpStream,
    cancels: u32,
    token: WaitToken,
}

impl<'a> Recv<'a> {
    pub(super) fn new(stream: &'a TcpStream) -> Recv<'a> {
        Recv { stream, cancels: stream.socket.cancels.get(), token: WaitToken::default() }
    }
}

impl Future for Recv<'_> {
    type Output = io::Result<RecvBuf>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Recv { stream, cancels, token } = self.get_mut();
        stream.socket.check_cancelled(*cancels)?;
        stream.recv_or_wait(cx, token)
    }
}

impl Drop for Recv<'_> {
    fn drop(&mut self) {
        self.stream.socket.forget_waiter(Side::Receive, &mut self.token);
    }
}

/// The future of [`TcpStream::send`] and those like it. If it is dropped before it was
/// ready, it has sent nothing, and drops the buffer: see [`into_buffer`](Send::into_buffer).
#[derive(Debug)]
#[must_use = "sends nothing unless awaited"]
pub struct Send<'a> {
    stream: &'a TcpStream,
    buf: Option<SendBuf>,
    more: bool,
    cancels: u32,
    token: WaitToken,
}

impl<'a> Send<'a> {
    pub(super) fn new(stream: &'a TcpStream, buf: SendBuf, more: bool) -> Send<'a> {
        let (cancels, token) = (stream.socket.cancels.get(), WaitToken::default());
        Send { stream, buf: Some(buf), more, cancels, token }
    }

    /// Abandons the send and returns the buffer; `None` if it was queued.
    pub fn into_buffer(mut self) -> Option<SendBuf> {
        self.buf.take()
    }
}

impl Future for Send<'_> {
    type Output = io::Result<()>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.stream.socket.check_cancelled(self.cancels)?;
        let Send { stream, buf, more, token, .. } = &mut *self;
        stream.send_or_wait(cx, token, buf, *more)
    }
}

impl Drop for Send<'_> {
    fn drop(&mut self) {
        self.stream.socket.forget_waiter(Side::Send, &mut self.token);
    }
}
