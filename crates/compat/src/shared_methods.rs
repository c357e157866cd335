//! The methods that the traits of tokio, futures-io and hyper have in common. Each expands to those of one
//! implementation, with the name that its trait gives to closing.

#![allow(unused_macros, unused_imports, reason = "each feature needs some of them")]

/// The methods of a writer, for a [`Compat`](crate::Compat).
macro_rules! write_to_socket {
    ($close:ident) => {
        fn poll_write(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buf: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.poll_write_slices(cx, &[IoSlice::new(buf)])
        }

        fn poll_write_vectored(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            bufs: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            self.poll_write_slices(cx, bufs)
        }

        fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn $close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.socket.poll_shutdown(cx)
        }
    };
}

/// `AsyncBufRead` of tokio and of futures-io.
macro_rules! buffered_reads {
    () => {
        impl<S: Socket + Unpin> AsyncBufRead for Compat<S> {
            fn poll_fill_buf(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
            ) -> Poll<io::Result<&[u8]>> {
                self.get_mut().poll_fill(cx)
            }

            fn consume(self: Pin<&mut Self>, amt: usize) {
                self.get_mut().consume_filled(amt);
            }
        }
    };
}

pub(crate) use {buffered_reads, write_to_socket};
