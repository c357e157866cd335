//! The traits of tokio.

use crate::shared_methods::{buffered_reads, write_to_inner, write_to_socket};
use crate::{Compat, Socket, ThreadBound};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};

impl<S: Socket + Unpin> AsyncRead for Compat<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = self.get_mut().poll_read_with(cx, buf.remaining(), |bytes| buf.put_slice(bytes));
        read.map_ok(drop)
    }
}

buffered_reads!();

impl<S: Socket + Unpin> AsyncWrite for Compat<S> {
    write_to_socket!(poll_shutdown);

    fn is_write_vectored(&self) -> bool {
        true
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for ThreadBound<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.project().poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for ThreadBound<T> {
    write_to_inner!(poll_shutdown);

    fn is_write_vectored(&self) -> bool {
        self.get().is_write_vectored()
    }
}
