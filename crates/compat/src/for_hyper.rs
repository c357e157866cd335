//! The traits of hyper 1.

use crate::shared_methods::write_to_socket;
use crate::{Compat, Socket};
use hyper::rt::{Read, ReadBufCursor, Sleep, Write};
use send_wrapper::SendWrapper;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

impl<S: Socket + Unpin> Read for Compat<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let room = buf.remaining();
        self.get_mut().poll_read_with(cx, room, |bytes| buf.put_slice(bytes)).map_ok(drop)
    }
}

impl<S: Socket + Unpin> Write for Compat<S> {
    write_to_socket!(poll_shutdown);

    fn is_write_vectored(&self) -> bool {
        true
    }
}

/// Runs hyper's tasks on the worker that calls it, with [`twinring::spawn`]. Its futures need not be
/// `Send`: the streams of an HTTP/2 connection run on the thread of the connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Executor;

impl<F> hyper::rt::Executor<F> for Executor
where
    F: Future + 'static,
    F::Output: 'static,
{
    fn execute(&self, future: F) {
        drop(twinring::spawn(future));
    }
}

/// Hyper's timer, on the timers of the worker: for `header_read_timeout`, `keep_alive_interval`
/// and the like.
///
/// # Panics
/// A sleep panics when it is polled outside a twinring runtime, and when it is polled or dropped on
/// another thread than the one that made it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timer;

impl hyper::rt::Timer for Timer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        Box::pin(BoundSleep { inner: SendWrapper::new(twinring::sleep(duration)) })
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(BoundSleep { inner: SendWrapper::new(twinring::sleep_until(deadline)) })
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn Sleep>>, new_deadline: Instant) {
        match sleep.as_mut().downcast_mut_pin::<BoundSleep>() {
            // Without a new allocation.
            Some(ours) => *ours.get_mut().inner = twinring::sleep_until(new_deadline),
            None => *sleep = self.sleep_until(new_deadline),
        }
    }
}

/// Hyper demands `Send` and `Sync` of a sleep, although it stays with its connection.
struct BoundSleep {
    inner: SendWrapper<twinring::time::Sleep>,
}

impl Future for BoundSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut *self.get_mut().inner).poll(cx)
    }
}

impl Sleep for BoundSleep {}
