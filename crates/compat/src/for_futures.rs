//! The traits of futures-io.

use crate::shared_methods::{buffered_reads, write_to_inner, write_to_socket};
use crate::{Compat, Socket, ThreadBound};
use futures_io::{AsyncBufRead, AsyncRead, AsyncWrite};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

impl<S: Socket + Unpin> AsyncRead for Compat<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_read_with(cx, buf.len(), |bytes| {
            buf[..bytes.len()].copy_from_slice(bytes);
        })
    }
}

buffered_reads!();

impl<S: Socket + Unpin> AsyncWrite for Compat<S> {
    write_to_socket!(poll_close);
}

impl<T: AsyncRead + Unpin> AsyncRead for ThreadBound<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.project().poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for ThreadBound<T> {
    write_to_inner!(poll_close);
}
