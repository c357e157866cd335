//! Sending a file.

use super::TcpStream;
use crate::driver::stream::Sending;
use crate::driver::{Side, errno};
use crate::fs::File;
use crate::net::Operation;
use crate::sys;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::pin::pin;

/// Bytes of one sendfile(2); behind two of them other tasks have their turn. If the network is faster
/// than the disk, a large one would run for seconds without ever finding the socket full.
const CHUNK_BYTES: usize = 128 * 1024;
/// Bytes that are read and sent at once if sendfile(2) cannot be used.
const COPY_BYTES: usize = 64 * 1024;

impl TcpStream {
    /// Sends `len` bytes of `file` from `offset` behind all queued data, with non-blocking
    /// sendfile(2), and returns how many: fewer only if the file ends before. The kernel then has
    /// all of them. Waits for the peer. Parts of the file that are not in memory are first read
    /// into it, without blocking the worker. Files of a remote filesystem (see [`crate::fs`]), or
    /// of one without sendfile, are read and sent instead.
    ///
    /// Other sends, a [`shutdown`](Self::shutdown) and further files wait until this one is done, so do
    /// not await them while holding this future unpolled. If it is dropped or cancelled before its
    /// first byte was sent, it has no effect. If it is dropped, cancelled or fails in the middle of
    /// the file, the sending half is broken: later sends return that error (ECANCELED after a
    /// drop), and the close is a reset, so that the peer does not take the part for the whole.
    ///
    /// sendfile(2) raises SIGPIPE on a closed connection. Rust programs ignore that signal by
    /// default; this requires it to be ignored. Fails also as reading the file does.
    pub async fn send_file(&self, file: &File, offset: u64, len: u64) -> io::Result<u64> {
        let cancels = self.socket.cancels.get();
        let mut watch = self.sends();
        let mut sending = pin!(self.send_chunks(file, offset, len));
        poll_fn(|cx| {
            self.socket.check_cancelled(cancels)?;
            let polled = sending.as_mut().poll(cx);
            if polled.is_pending() {
                // It may wait for a disk, and a cancellation must end that too.
                watch.poll(cx, |driver, key, waiter| driver.watch_sends(key, waiter));
            }
            polled
        })
        .await
    }

    /// Bytes of files that the kernel has accepted so far, including those of a
    /// [`send_file`](Self::send_file) that failed or was dropped in the middle, which are not
    /// reported otherwise.
    pub fn sent_of_files(&self) -> u64 {
        self.sent_of_files.get()
    }

    fn sends(&self) -> Operation<'_> {
        self.socket.operation(Side::Send)
    }

    async fn send_chunks(&self, file: &File, offset: u64, len: u64) -> io::Result<u64> {
        let mut turn = Turn::begin(self, len).await?;
        file.check_readable(offset)?;
        while turn.sent < len {
            self.socket.worker.executor.spend_or_yield().await;
            let at = offset.saturating_add(turn.sent);
            let most = (len - turn.sent).min(CHUNK_BYTES as u64) as usize;
            let sent = match file.may_sendfile() {
                true => turn.send_from_cache(file, at, most).await,
                false => turn.send_copied(file, at, most).await,
            };
            match sent {
                Ok(0) => {
                    turn.breaks = None;
                    break;
                }
                Ok(_) => {}
                Err(error) if file.may_sendfile() && is_refusal(&error) => {
                    file.refuses_sendfile.set(true);
                }
                Err(error) => return Err(turn.fail(error)),
            }
        }
        Ok(turn.sent)
    }
}

/// The errors of sendfile(2) for an unsupported file, before anything was sent.
fn is_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP))
}

/// The sending half of a stream, while a file has it to itself.
struct Turn<'a> {
    stream: &'a TcpStream,
    len: u64,
    sent: u64,
    /// If this ends now, it is in the middle of the file, or the connection has ended: the error of later
    /// sends.
    breaks: Option<i32>,
}

impl<'a> Turn<'a> {
    async fn begin(stream: &'a TcpStream, len: u64) -> io::Result<Turn<'a>> {
        let mut begin = stream.sends();
        poll_fn(|cx| {
            begin.poll(cx, |driver, _, waiter| {
                driver.poll_sending(&stream.stream, waiter, Sending::begin_file)
            })
        })
        .await?;
        Ok(Turn { stream, len, sent: 0, breaks: None })
    }

    /// Sends a part of a chunk, at least a byte unless the file has ended.
    async fn send_from_cache(&mut self, file: &File, at: u64, most: usize) -> io::Result<usize> {
        loop {
            if !file.is_cached(at, most) {
                self.stream.socket.worker.counters.cold_pieces.add(1);
                // Sent without a second check, so that this ends even if memory is so short that the
                // pages were evicted again.
                file.warm(at, most).await?;
            }
            match self.send(|socket| sys::file::send_file(socket, file.fd(), at, most)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.room().await?,
                sent => {
                    self.stream.socket.worker.counters.sendfiles.add(u64::from(sent.is_ok()));
                    return sent;
                }
            }
        }
    }

    async fn send_copied(&mut self, file: &File, at: u64, most: usize) -> io::Result<usize> {
        let bytes = file.read_at(at, most.min(COPY_BYTES)).await?;
        let more = self.sent + (bytes.len() as u64) < self.len;
        let mut left = &bytes[..];
        while !left.is_empty() {
            match self.send(|socket| sys::send(socket, left, more)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.room().await?,
                sent => left = &left[sent?..],
            }
        }
        Ok(bytes.len())
    }

    fn send(
        &mut self,
        call: impl FnOnce(BorrowedFd<'_>) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let TcpStream { socket, stream, .. } = self.stream;
        let worker = &socket.worker;
        let sent = stream.borrow().send_piece(&worker.counters, call);
        if let Ok(bytes) = sent {
            self.sent += bytes as u64;
            self.breaks = (0 < self.sent && self.sent < self.len).then_some(libc::ECANCELED);
            worker.executor.spend_bytes(bytes);
        }
        sent
    }

    async fn room(&self) -> io::Result<()> {
        let (mut wait, mut asked) = (self.stream.sends(), false);
        let stream = &self.stream.stream;
        poll_fn(|cx| {
            wait.poll(cx, |driver, _, waiter| driver.poll_room(stream, waiter, &mut asked))
        })
        .await
    }

    fn fail(&mut self, error: io::Error) -> io::Error {
        let is_closed =
            |socket: sys::socket::SockRef<'_>| Ok(sys::tcp_is_closed(socket.as_raw_fd()));
        let lost = self.stream.socket.ask(is_closed).unwrap_or(true);
        if lost || self.breaks.is_some() {
            self.breaks = Some(errno(&error));
        }
        error
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let sent_of_files = &self.stream.sent_of_files;
        sent_of_files.set(sent_of_files.get() + self.sent);
        let TcpStream { socket, stream, .. } = self.stream;
        socket.worker.driver.borrow_mut().end_file(stream, self.breaks);
    }
}
