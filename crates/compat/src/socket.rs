//! The connections that can be adapted.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};
use twinring::{RecvBuf, SendBuf, TcpStream, UnixStream};

type Polled<T> = Poll<io::Result<T>>;

/// A connection that [`Compat`](crate::Compat) adapts: a stream of twinring, or an [`Rc`] of one.
/// Implement it for a layer above a stream, such as TLS, and libraries run above that layer.
///
/// All methods take `&self`, and wake the task that called them last.
pub trait Socket {
    /// The next received bytes; empty at the end of the stream.
    fn poll_recv(&self, cx: &mut Context<'_>) -> Polled<RecvBuf>;

    /// Ready when [`poll_send`](Socket::poll_send) would take a buffer.
    fn poll_send_ready(&self, cx: &mut Context<'_>) -> Polled<()>;

    /// Takes `buf` once it can be queued, and leaves it in place until then.
    fn poll_send(&self, cx: &mut Context<'_>, buf: &mut Option<SendBuf>) -> Polled<()>;

    /// Sends the end of the stream behind all queued bytes; ready when the kernel has all of it.
    fn poll_shutdown(&self, cx: &mut Context<'_>) -> Polled<()>;
}

macro_rules! operations {
    ([$($generic:tt)*] $for:ty => $by:ty) => {
        impl<$($generic)*> Socket for $for {
            #[inline]
            fn poll_recv(&self, cx: &mut Context<'_>) -> Polled<RecvBuf> {
                <$by>::poll_recv(self, cx)
            }

            #[inline]
            fn poll_send_ready(&self, cx: &mut Context<'_>) -> Polled<()> {
                <$by>::poll_send_ready(self, cx)
            }

            #[inline]
            fn poll_send(&self, cx: &mut Context<'_>, buf: &mut Option<SendBuf>) -> Polled<()> {
                <$by>::poll_send(self, cx, buf)
            }

            #[inline]
            fn poll_shutdown(&self, cx: &mut Context<'_>) -> Polled<()> {
                <$by>::poll_shutdown(self, cx)
            }
        }
    };
}

operations!([] TcpStream => TcpStream);
operations!([] UnixStream => TcpStream);
operations!([S: Socket] Rc<S> => S);
