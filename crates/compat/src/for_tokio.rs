//! The traits of tokio.

use crate::shared_methods::{buffered_reads, write_to_socket};
use crate::{Compat, Socket};
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
