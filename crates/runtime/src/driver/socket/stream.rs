//! The state of a stream, the same on all engines: its unsent data, whether and how each half has
//! ended, and its waiters.
//!
//! There is no kernel here. An engine reports events (`sent`, `fail`, `connected`, ...), and asks
//! for the next action when it has no send of the stream in progress ([`Sending::next`]).

use super::queues::Seldom;
use crate::buf::{RecvBuf, SendBuf};
use crate::task::{WaitQueue, Waiter};
use std::io;
use std::task::{Poll, Waker};

/// Bytes a socket may hold queued for sending before `send` waits. One further buffer of any
/// size is accepted while less than this is queued.
pub(crate) const QUEUED_BYTES_MAX: usize = 256 * 1024;

/// How the receiving half ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The peer finished sending.
    Stream,
    /// The socket failed with this errno; reported once, then as the end of the stream.
    Error(i32),
}

/// The receiving half. Received data is with the engine, or still with the kernel.
#[derive(Debug, Default)]
pub(crate) struct Receiving {
    pub(crate) end: Option<End>,
    pub(crate) waiters: WaitQueue,
}

impl Receiving {
    /// Marks the end, unless one is known, and wakes readers.
    pub(crate) fn finish(&mut self, end: End, wakes: &mut Vec<Waker>) {
        self.end.get_or_insert(end);
        self.waiters.wake(wakes);
    }

    /// The result of a receive behind the last byte: the error once, then the end of the stream for
    /// ever. Waits while the half is open.
    pub(crate) fn poll_end(&mut self, waiter: &mut Waiter<'_>) -> Poll<io::Result<RecvBuf>> {
        match self.end {
            None => {
                self.waiters.add(waiter);
                Poll::Pending
            }
            Some(End::Stream) => Poll::Ready(Ok(RecvBuf::empty())),
            Some(End::Error(errno)) => {
                self.end = Some(End::Stream);
                Poll::Ready(Err(io::Error::from_raw_os_error(errno)))
            }
        }
    }

    /// The same for a peek, which leaves the error to the next receive.
    pub(crate) fn poll_peek_end(&mut self, waiter: &mut Waiter<'_>) -> Poll<io::Result<()>> {
        let end = self.end;
        let polled = self.poll_end(waiter);
        self.end = end;
        polled.map(|end| end.map(drop))
    }
}

/// Whether and how the sending half is being closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Fin {
    #[default]
    No,
    /// FIN goes out behind the queued bytes.
    Queued,
    Sent,
}

/// Whether a file has the sending half to itself: it bypasses the queue, and all other sends wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum File {
    #[default]
    None,
    Sending,
    /// Its task has stopped, and it is not known yet whether its last send has sent anything.
    Unknown,
}

/// The next action of an engine that has no send of the stream in progress.
#[derive(Debug)]
pub(crate) enum Next {
    Send(SendBuf),
    /// FIN.
    ShutDown,
    /// Closing the socket: the program has closed it, and there is nothing left to send.
    Close,
    Nothing,
}

/// The sending half: a connection that is being made, unsent data or a file, and FIN and the close
/// behind them.
#[derive(Debug, Default)]
pub(crate) struct Sending {
    queue: Seldom<SendBuf>,
    /// Bytes that were accepted and are not known to be with the kernel: those queued, and those of
    /// the engine's current send. Ignored once the half has failed.
    unsent: usize,
    error: Option<i32>,
    fin: Fin,
    file: File,
    connecting: bool,
    awaits_room: bool,
    closing: bool,
    pub(crate) waiters: WaitQueue,
}

impl Sending {
    pub(crate) fn connecting() -> Sending {
        Sending { connecting: true, ..Sending::default() }
    }

    /// Ready once the connection attempt has succeeded or failed.
    pub(crate) fn poll_connected(&mut self, waiter: &mut Waiter<'_>) -> Poll<io::Result<()>> {
        if self.connecting {
            self.waiters.add(waiter);
            return Poll::Pending;
        }
        Poll::Ready(self.check())
    }

    pub(crate) fn is_connecting(&self) -> bool {
        self.connecting
    }

    /// The connection attempt has succeeded, or failed with this errno.
    pub(crate) fn connected(&mut self, outcome: Result<(), i32>, wakes: &mut Vec<Waker>) {
        self.connecting = false;
        if let Err(errno) = outcome {
            self.fail(errno, wakes);
        }
        self.waiters.wake(wakes);
    }

    /// Ready when a buffer may be accepted, by [`accept`](Sending::accept).
    #[inline]
    pub(crate) fn poll_accept(&mut self, waiter: &mut Waiter<'_>) -> Poll<io::Result<()>> {
        self.check()?;
        if self.has_room() {
            return Poll::Ready(Ok(()));
        }
        self.waiters.add(waiter);
        Poll::Pending
    }

    /// Accepts a buffer of this many bytes, to be sent or queued.
    #[inline]
    pub(crate) fn accept(&mut self, bytes: usize) {
        self.unsent += bytes;
    }

    /// Queues an accepted buffer behind others.
    pub(crate) fn queue(&mut self, buf: SendBuf) {
        self.queue.items().push_back(buf);
    }

    /// Puts back the part of the next buffer that the kernel did not accept.
    pub(crate) fn put_back(&mut self, buf: SendBuf) {
        self.queue.items().push_front(buf);
    }

    /// Moves queued data out of the receive pool; called when it will stay for a while.
    pub(crate) fn detach(&mut self) {
        self.queue.map_all(SendBuf::detach);
    }

    /// True if accepted buffers wait for those before them.
    #[inline]
    pub(crate) fn is_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// True if the engine has a send in progress and nothing is queued.
    pub(crate) fn is_in_hand(&self) -> bool {
        self.is_unsent() && self.queue.is_empty()
    }

    /// The kernel has accepted this many bytes.
    #[inline]
    pub(crate) fn sent(&mut self, bytes: usize) {
        self.unsent = self.unsent.saturating_sub(bytes);
    }

    /// The next action, if the engine has no send in progress.
    pub(crate) fn next(&mut self) -> Next {
        if let Some(buf) = self.queue.pop_front() {
            Next::Send(buf)
        } else if self.take_fin() {
            Next::ShutDown
        } else if self.is_over() {
            Next::Close
        } else {
            Next::Nothing
        }
    }

    /// Wakes the waiters if there is room.
    pub(crate) fn wake_if_room(&mut self, wakes: &mut Vec<Waker>) {
        if self.has_room() {
            self.waiters.wake(wakes);
        }
    }

    fn has_room(&self) -> bool {
        self.file == File::None && self.unsent < QUEUED_BYTES_MAX
    }

    /// True while the kernel has not accepted all bytes, and may still accept them.
    pub(crate) fn is_unsent(&self) -> bool {
        self.unsent > 0 && !self.failed()
    }

    /// True if anything waits for the end of the engine's current send.
    pub(crate) fn is_awaited(&self) -> bool {
        let behind = self.is_queued() || self.fin == Fin::Queued || self.closing;
        behind || !self.waiters.is_empty()
    }

    /// The program has ended the half: FIN goes out behind what is queued.
    pub(crate) fn finish(&mut self) {
        if self.fin == Fin::No {
            self.fin = Fin::Queued;
        }
    }

    /// True, once, when FIN is due.
    pub(crate) fn take_fin(&mut self) -> bool {
        let idle = self.file == File::None && self.unsent == 0 && !self.failed();
        let due = idle && self.fin == Fin::Queued;
        if due {
            self.fin = Fin::Sent;
        }
        due
    }

    /// Ready once everything is with the kernel, or failed.
    pub(crate) fn poll_flushed(&mut self, waiter: &mut Waiter<'_>) -> Poll<io::Result<()>> {
        if let Some(error) = self.error() {
            return Poll::Ready(Err(error));
        }
        if self.unsent == 0 && self.file == File::None && self.fin != Fin::Queued {
            return Poll::Ready(Ok(()));
        }
        self.waiters.add(waiter);
        Poll::Pending
    }

    /// Ready, with the half reserved for a file, once the kernel has all earlier data.
    pub(crate) fn poll_file(&mut self, waiter: &mut Waiter<'_>) -> Poll<io::Result<()>> {
        self.check()?;
        if self.unsent == 0 && self.file == File::None {
            self.file = File::Sending;
            return Poll::Ready(Ok(()));
        }
        self.waiters.add(waiter);
        Poll::Pending
    }

    /// The task of a file has stopped, and the result of its last send is not known yet.
    pub(crate) fn file_is_unknown(&mut self) {
        self.file = File::Unknown;
    }

    /// The file was sent, or its task has stopped: the half is free again.
    pub(crate) fn end_file(&mut self, wakes: &mut Vec<Waker>) {
        self.file = File::None;
        self.waiters.wake(wakes);
    }

    /// Ready when the socket accepts more. `asked` belongs to the caller and is false at the first
    /// call, which therefore always waits. The engine then waits for `writable`.
    pub(crate) fn poll_writable(&mut self, waiter: &mut Waiter<'_>, asked: &mut bool) -> Poll<()> {
        if std::mem::replace(asked, true) && !self.awaits_room {
            return Poll::Ready(());
        }
        self.awaits_room = true;
        self.waiters.add(waiter);
        Poll::Pending
    }

    pub(crate) fn awaits_room(&self) -> bool {
        self.awaits_room
    }

    /// The socket accepts more, or is broken.
    pub(crate) fn writable(&mut self, wakes: &mut Vec<Waker>) {
        if std::mem::take(&mut self.awaits_room) {
            self.waiters.wake(wakes);
        }
    }

    /// Fails the half: queued bytes are dropped, every later send reports the error.
    pub(crate) fn fail(&mut self, errno: i32, wakes: &mut Vec<Waker>) {
        self.error.get_or_insert(errno);
        self.queue.clear();
        self.waiters.wake(wakes);
    }

    #[inline]
    pub(crate) fn failed(&self) -> bool {
        self.error.is_some()
    }

    /// The error that ended the half.
    pub(crate) fn error(&self) -> Option<io::Error> {
        self.error.map(io::Error::from_raw_os_error)
    }

    /// The reason why no send is possible, if there is one.
    #[inline]
    pub(crate) fn check(&self) -> io::Result<()> {
        match (self.error, self.fin) {
            (Some(errno), _) => Err(io::Error::from_raw_os_error(errno)),
            (None, Fin::No) => Ok(()),
            (None, _) => Err(io::Error::from_raw_os_error(libc::EPIPE)),
        }
    }

    /// The meaning of a receive of zero bytes; `sending`: a send is with the kernel. The kernel
    /// reports a reset once, to the first call. If that was a send, the next receive looks like a
    /// clean end of the stream; and a send that had sent a part reports the part instead of the
    /// reset. The state of the connection shows the difference (`is_closed`): after the peer's FIN
    /// alone it is not closed.
    pub(crate) fn end_of_stream(&self, sending: bool, is_closed: impl FnOnce() -> bool) -> End {
        let sending = sending || self.file != File::None;
        let may_hide_a_reset = self.fin != Fin::Sent && (sending || self.failed());
        if may_hide_a_reset && is_closed() {
            let told = self.error.filter(|errno| *errno != libc::EPIPE);
            return End::Error(told.unwrap_or(libc::ECONNRESET));
        }
        End::Stream
    }

    /// The program has closed the socket.
    pub(crate) fn close(&mut self) {
        self.closing = true;
    }

    #[inline]
    pub(crate) fn is_closing(&self) -> bool {
        self.closing
    }

    /// True while a close has to wait for unsent data.
    pub(crate) fn must_linger(&self) -> bool {
        (self.unsent > 0 || self.file == File::Unknown) && !self.failed()
    }

    /// True when a closed socket has no unsent data.
    pub(crate) fn is_over(&self) -> bool {
        self.closing && !self.must_linger()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::WaitToken;
    use proptest::prelude::*;
    use std::task::Context;

    fn poll<T>(ask: impl FnOnce(&mut Waiter<'_>) -> T) -> T {
        let cx = Context::from_waker(Waker::noop());
        ask(&mut Waiter::new(&cx, &mut WaitToken::default()))
    }

    fn errno_of<T>(result: io::Result<T>) -> Option<i32> {
        result.err().and_then(|error| error.raw_os_error())
    }

    /// A stream on an engine whose kernel accepts bytes when the test allows it.
    #[derive(Default)]
    struct Bench {
        sending: Sending,
        /// Puts back the bytes that the kernel does not accept, as epoll does, or keeps them, as
        /// io_uring does.
        puts_back: bool,
        in_hand: Option<SendBuf>,
        room: usize,
        accepted: Vec<u8>,
        taken: Vec<u8>,
        file: bool,
        finished: bool,
        shut_down: bool,
        closed: bool,
    }

    impl Bench {
        fn go_on(&mut self) {
            while !self.closed {
                if let Some(mut buf) = self.in_hand.take() {
                    let taken = buf.len().min(self.room);
                    self.room -= taken;
                    self.taken.extend_from_slice(&buf.as_slice()[..taken]);
                    self.sending.sent(taken);
                    buf.advance(taken);
                    if !buf.is_empty() {
                        match self.puts_back {
                            true => self.sending.put_back(buf),
                            false => self.in_hand = Some(buf),
                        }
                        break;
                    }
                }
                match self.sending.next() {
                    Next::Send(buf) => self.in_hand = Some(buf),
                    Next::ShutDown => self.shut_down(),
                    Next::Close => self.closed = true,
                    Next::Nothing => break,
                }
            }
            self.sending.wake_if_room(&mut Vec::new());
        }

        fn shut_down(&mut self) {
            assert!(!self.shut_down && self.finished && !self.file, "FIN once, and on demand");
            assert_eq!(self.taken, self.accepted, "FIN is behind everything");
            self.shut_down = true;
        }

        fn send(&mut self, bytes: usize) {
            let unsent = self.accepted.len() - self.taken.len();
            match poll(|waiter| self.sending.poll_accept(waiter)) {
                Poll::Ready(Ok(())) => {
                    assert!(!self.finished && !self.file && unsent < QUEUED_BYTES_MAX);
                    let start = self.accepted.len();
                    let sent: Vec<u8> = (start..start + bytes).map(|at| (at / 7) as u8).collect();
                    self.accepted.extend_from_slice(&sent);
                    self.sending.accept(bytes);
                    if self.in_hand.is_none() && !self.sending.is_queued() {
                        self.in_hand = Some(sent.into());
                    } else {
                        self.sending.queue(sent.into());
                    }
                }
                Poll::Ready(Err(_)) => assert!(self.finished || self.sending.failed()),
                Poll::Pending => assert!(self.file || unsent >= QUEUED_BYTES_MAX),
            }
        }

        fn step(&mut self, kind: u8, amount: usize) {
            match kind {
                0..8 => self.send(amount),
                8..14 => self.room = amount * 4,
                14 => {
                    self.sending.finish();
                    self.finished = true;
                    if self.sending.take_fin() {
                        self.shut_down();
                    }
                }
                15 | 16 => {
                    if let Poll::Ready(Ok(())) = poll(|waiter| self.sending.poll_file(waiter)) {
                        assert_eq!(self.taken, self.accepted, "a file is behind everything");
                        assert!(!self.file, "one file at a time");
                        self.file = true;
                    }
                }
                17 | 18 => {
                    self.sending.end_file(&mut Vec::new());
                    self.file = false;
                }
                19 => {
                    self.sending.fail(libc::ECONNRESET, &mut Vec::new());
                    self.in_hand = None;
                }
                _ => return self.sending.close(),
            }
            self.go_on();
            if !self.sending.failed() && !self.file {
                let unsent = self.accepted.len() - self.taken.len();
                assert_eq!(self.sending.must_linger(), unsent > 0);
                assert!(self.sending.waiters.is_empty() || unsent >= QUEUED_BYTES_MAX);
            }
        }
    }

    proptest! {
        #[test]
        fn everything_goes_out_in_order_then_fin_then_the_close(
            puts_back: bool,
            steps in proptest::collection::vec((0u8..20, 1usize..50_000), 0..60),
            fails in prop::bool::weighted(0.2),
        ) {
            let mut bench = Bench { puts_back, ..Bench::default() };
            for (kind, amount) in steps {
                bench.step(if kind == 19 && !fails { 0 } else { kind }, amount);
            }
            bench.step(17, 0);
            bench.step(20, 0);
            while !bench.closed {
                bench.room = 50_000;
                bench.go_on();
            }
            prop_assert!(bench.accepted.starts_with(&bench.taken));
            if bench.sending.failed() {
                let told = poll(|waiter| bench.sending.poll_accept(waiter));
                prop_assert!(matches!(told, Poll::Ready(Err(_))));
            } else {
                prop_assert_eq!(&bench.taken, &bench.accepted);
                prop_assert_eq!(bench.shut_down, bench.finished);
            }
        }
    }

    #[test]
    fn the_end_of_receiving_is_told_once_if_it_is_an_error() {
        let mut receiving = Receiving::default();
        let mut wakes = Vec::new();
        assert!(poll(|waiter| receiving.poll_end(waiter)).is_pending());
        receiving.finish(End::Error(libc::ECONNRESET), &mut wakes);
        receiving.finish(End::Stream, &mut wakes);
        assert_eq!(wakes.len(), 1);
        let mut next = || poll(|waiter| receiving.poll_end(waiter));
        assert!(matches!(next(), Poll::Ready(Err(_))));
        assert!(matches!(next(), Poll::Ready(Ok(empty)) if empty.is_empty()));
        assert!(matches!(next(), Poll::Ready(Ok(empty)) if empty.is_empty()));
    }

    #[test]
    fn an_error_is_told_by_every_later_call_and_drops_what_is_queued() {
        let mut sending = Sending::default();
        let mut wakes = Vec::new();
        sending.accept(3);
        sending.queue(vec![1, 2, 3].into());
        assert!(poll(|waiter| sending.poll_flushed(waiter)).is_pending());
        sending.fail(libc::EPIPE, &mut wakes);
        sending.fail(libc::ECANCELED, &mut wakes);
        assert_eq!(wakes.len(), 1);
        assert!(matches!(sending.next(), Next::Nothing));
        for _ in 0..2 {
            assert_eq!(errno_of(sending.check()), Some(libc::EPIPE));
            let flushed = poll(|waiter| sending.poll_flushed(waiter));
            assert!(matches!(flushed, Poll::Ready(Err(_))));
        }
        sending.close();
        assert!(matches!(sending.next(), Next::Close));
    }

    #[test]
    fn a_close_waits_until_it_is_known_what_a_file_has_sent() {
        let mut sending = Sending::default();
        assert!(poll(|waiter| sending.poll_file(waiter)).is_ready());
        sending.file_is_unknown();
        sending.finish();
        sending.close();
        assert!(sending.must_linger() && !sending.take_fin());
        sending.end_file(&mut Vec::new());
        assert!(matches!(sending.next(), Next::ShutDown));
        assert!(matches!(sending.next(), Next::Close));
    }

    #[test]
    fn who_waits_for_room_is_woken_once_and_asks_again() {
        let mut sending = Sending::default();
        let (mut asked, mut wakes) = (false, Vec::new());
        assert!(poll(|waiter| sending.poll_writable(waiter, &mut asked)).is_pending());
        assert!(poll(|waiter| sending.poll_writable(waiter, &mut asked)).is_pending());
        sending.writable(&mut wakes);
        assert!(!wakes.is_empty() && !sending.awaits_room());
        assert!(poll(|waiter| sending.poll_writable(waiter, &mut asked)).is_ready());
    }

    #[test]
    fn a_receive_of_nothing_is_a_reset_if_a_send_may_have_been_told_of_it() {
        let idle = Sending::default();
        assert_eq!(idle.end_of_stream(false, || true), End::Stream);
        assert_eq!(idle.end_of_stream(true, || true), End::Error(libc::ECONNRESET));
        assert_eq!(idle.end_of_stream(true, || false), End::Stream);
        let mut failed = Sending::default();
        failed.fail(libc::ETIMEDOUT, &mut Vec::new());
        assert_eq!(failed.end_of_stream(false, || true), End::Error(libc::ETIMEDOUT));
        let mut broken_pipe = Sending::default();
        broken_pipe.fail(libc::EPIPE, &mut Vec::new());
        assert_eq!(broken_pipe.end_of_stream(false, || true), End::Error(libc::ECONNRESET));
    }

    #[test]
    fn a_connection_that_fails_says_why() {
        let mut sending = Sending::connecting();
        assert!(poll(|waiter| sending.poll_connected(waiter)).is_pending());
        let mut wakes = Vec::new();
        sending.connected(Err(libc::ECONNREFUSED), &mut wakes);
        assert_eq!(wakes.len(), 1);
        match poll(|waiter| sending.poll_connected(waiter)) {
            Poll::Ready(result) => assert_eq!(errno_of(result), Some(libc::ECONNREFUSED)),
            Poll::Pending => panic!("it is over"),
        }
    }
}
