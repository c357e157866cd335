//! The traits of futures-io.

use crate::shared_methods::{buffered_reads, write_to_socket};
use crate::{Compat, Socket};
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
