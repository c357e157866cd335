//! The connections that can be adapted.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};
use twinring::{RecvBuf, SendBuf, TcpStream, UnixStream};

/// A connection that [`Compat`](crate::Compat) adapts: a stream of twinring, or an [`Rc`] of one.
/// Sealed: programs use it in bounds only.
pub trait Socket: Operations {}

impl<S: Operations> Socket for S {}

type Polled<T> = Poll<io::Result<T>>;

/// The operations of a stream, for hand-written futures.
#[allow(unreachable_pub, reason = "public only as a bound of the sealed trait")]
pub trait Operations {
    fn poll_recv(&self, cx: &mut Context<'_>) -> Polled<RecvBuf>;
    fn poll_send_ready(&self, cx: &mut Context<'_>) -> Polled<()>;
    fn poll_send(&self, cx: &mut Context<'_>, buf: &mut Option<SendBuf>) -> Polled<()>;
    fn poll_shutdown_write(&self, cx: &mut Context<'_>) -> Polled<()>;
}

macro_rules! operations {
    ([$($generic:tt)*] $for:ty => $by:ty) => {
        impl<$($generic)*> Operations for $for {
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
            fn poll_shutdown_write(&self, cx: &mut Context<'_>) -> Polled<()> {
                <$by>::poll_shutdown_write(self, cx)
            }
        }
    };
}

operations!([] TcpStream => TcpStream);
operations!([] UnixStream => UnixStream);
operations!([S: Operations] Rc<S> => S);
