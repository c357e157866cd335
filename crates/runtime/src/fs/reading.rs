//! A read that may wait for a disk or a server: the request and the memory for the result. They are owned by the
//! executor (the ring, or a thread of [`crate::blocking`]), never by a future.

use super::Handle;
use crate::runtime::Worker;
use crate::slots::Key;
use crate::sys::file as sys;
use crate::task::{WaitToken, Waiter};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

/// At most `most` bytes from `offset` are appended to `bytes`.
pub(crate) struct FileRead {
    /// Kept open until the read is over.
    pub(crate) on: Arc<Handle>,
    pub(crate) offset: u64,
    pub(crate) most: usize,
    pub(crate) bytes: Vec<u8>,
}

/// The ring's response to a read.
pub(crate) enum Start {
    OnRing(Key),
    /// The queue is full; the task waits.
    Full(Box<FileRead>),
    /// The ring has ended.
    NoRing(Box<FileRead>),
}

/// Reads on the ring, or on a thread: on epoll, and where the ring cannot wait.
pub(super) async fn read(worker: &Rc<Worker>, read: Box<FileRead>) -> io::Result<Vec<u8>> {
    let mut on_ring = OnRing { worker, new: Some(read), key: None, token: WaitToken::default() };
    let (mut read, ended) = poll_fn(|cx| on_ring.poll(cx)).await?;
    match ended {
        Some(Ok(())) => return Ok(read.bytes),
        Some(Err(error)) if !wants_thread(&error) => return Err(error),
        _ => {}
    }
    worker.counters.file_jobs.add(1);
    let reading = worker.shared.blocking.run(move || {
        sys::read_at(&read.on.file, read.offset, &mut read.bytes, read.most, 0)?;
        Ok(read.bytes)
    });
    reading.await?
}

/// The ring cannot wait for every file: not for one opened with O_NONBLOCK on some older kernels,
/// nor on a filesystem without non-blocking reads. A thread can.
fn wants_thread(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EOPNOTSUPP | libc::EINTR))
}

/// The memory of a read, and how it ended; `None` if it was not begun.
type Ended = (Box<FileRead>, Option<io::Result<()>>);

/// The ring's part of a read.
struct OnRing<'a> {
    worker: &'a Worker,
    new: Option<Box<FileRead>>,
    key: Option<Key>,
    /// While the ring is full.
    token: WaitToken,
}

impl OnRing<'_> {
    fn poll(&mut self, cx: &Context<'_>) -> Poll<io::Result<Ended>> {
        let mut waiter = Waiter::new(cx, &mut self.token);
        let mut driver = self.worker.driver.borrow_mut();
        let ring = driver.uring();
        if let Some(read) = self.new.take() {
            let Some(ring) = ring else { return Poll::Ready(Ok((read, None))) };
            match ring.start_read(read, &mut waiter) {
                Start::OnRing(key) => self.key = Some(key),
                Start::Full(read) => self.new = Some(read),
                Start::NoRing(read) => return Poll::Ready(Ok((read, None))),
            }
            return Poll::Pending;
        }
        let Some((key, ring)) = self.key.zip(ring) else {
            return Poll::Ready(Err(io::Error::other("a finished read was polled again")));
        };
        let polled = ring.poll_read(key, &mut waiter);
        if polled.is_ready() {
            self.key = None;
        }
        polled.map_ok(|(read, ended)| (read, Some(ended)))
    }
}

impl Drop for OnRing<'_> {
    fn drop(&mut self) {
        if self.key.is_none() && !self.token.may_wait() {
            return;
        }
        let mut driver = self.worker.driver.borrow_mut();
        let waker = driver.uring().and_then(|ring| ring.forget_read(self.key, &mut self.token));
        drop(driver);
        drop(waker);
    }
}
