//! The state of a stream against a model of an engine, and its rules one by one.

use super::*;
use crate::buf::Pool;
use crate::task::WaitToken;
use proptest::prelude::*;
use std::mem::MaybeUninit;
use std::rc::Rc;
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
                // Buffers that were joined, one after the other.
                while self.room > 0 && !buf.is_empty() {
                    let taken = buf.as_slice().len().min(self.room);
                    self.room -= taken;
                    self.taken.extend_from_slice(&buf.as_slice()[..taken]);
                    self.sending.sent(taken);
                    buf.advance(taken);
                }
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

#[test]
fn a_peek_reports_the_end_and_leaves_the_error_to_a_receive() {
    let mut receiving = Receiving::default();
    assert!(poll(|waiter| receiving.poll_peek_end(waiter)).is_pending());
    assert!(!receiving.waiters.is_empty());
    receiving.finish(End::Error(libc::ECONNRESET), &mut Vec::new());
    for _ in 0..2 {
        match poll(|waiter| receiving.poll_peek_end(waiter)) {
            Poll::Ready(result) => assert_eq!(errno_of(result), Some(libc::ECONNRESET)),
            Poll::Pending => panic!("it has ended"),
        }
    }
    assert!(matches!(poll(|waiter| receiving.poll_end(waiter)), Poll::Ready(Err(_))));
    assert!(matches!(poll(|waiter| receiving.poll_peek_end(waiter)), Poll::Ready(Ok(()))));
}

#[test]
fn a_connection_that_succeeds_wakes_its_waiter_and_sends() {
    assert!(!Sending::default().is_connecting());
    let mut sending = Sending::connecting();
    assert!(sending.is_connecting());
    assert!(poll(|waiter| sending.poll_connected(waiter)).is_pending());
    let mut wakes = Vec::new();
    sending.connected(Ok(()), &mut wakes);
    assert_eq!((wakes.len(), sending.is_connecting()), (1, false));
    assert!(matches!(poll(|waiter| sending.poll_connected(waiter)), Poll::Ready(Ok(()))));
    assert!(matches!(poll(|waiter| sending.poll_accept(waiter)), Poll::Ready(Ok(()))));
}

/// Pieces that readers put back are received first, the last one before the others, and can be peeked at; a
/// reader that waits is woken.
#[test]
fn pieces_that_were_put_back_come_first() {
    let mut receiving = Receiving::default();
    assert!(poll(|waiter| receiving.poll_end(waiter)).is_pending());
    let mut wakes = Vec::new();
    receiving.put_back(RecvBuf::empty(), &mut wakes);
    assert!(wakes.is_empty() && receiving.unread.pop().is_none(), "nothing was put back");
    receiving.put_back(RecvBuf::from(b"later".to_vec()), &mut wakes);
    assert_eq!(wakes.len(), 1);
    receiving.put_back(RecvBuf::from(b"first".to_vec()), &mut wakes);
    let mut seen = [0; 7];
    assert_eq!((receiving.unread.copy_to(&mut seen), &seen), (7, b"firstla"));
    let taken = std::iter::from_fn(|| receiving.unread.pop());
    assert_eq!(taken.map(|piece| piece.to_vec()).collect::<Vec<_>>(), [b"first", b"later"]);
    assert_eq!(receiving.unread.copy_to(&mut seen), 0);
}

/// Data that stays for a while gives its receive buffers back.
#[test]
fn queued_data_leaves_the_receive_pool() {
    let pool = Rc::new(Pool::new(2, 64).unwrap());
    let mut sending = Sending::default();
    for _ in 0..2 {
        let id = pool.take().unwrap();
        pool.with_writable(id, |memory| memory.fill(MaybeUninit::new(7)));
        sending.queue(RecvBuf::from_pool(&pool, id, 0, 64).into());
    }
    assert_eq!(pool.in_use(), 2);
    sending.detach();
    assert_eq!(pool.in_use(), 0);
    for _ in 0..2 {
        assert!(matches!(sending.next(), Next::Send(buf) if buf.as_slice() == [7; 64]));
    }
}

/// What an engine asks about the data that it has: in hand, unsent, and whether anything waits for it.
#[test]
fn unsent_data_is_in_hand_or_queued() {
    let facts = |it: &Sending| (it.is_unsent(), it.is_in_hand(), it.is_queued(), it.is_awaited());
    let mut sending = Sending::default();
    assert_eq!(facts(&sending), (false, false, false, false));
    sending.accept(3);
    assert_eq!(facts(&sending), (true, true, false, false));
    assert!(poll(|waiter| sending.poll_flushed(waiter)).is_pending());
    assert_eq!(facts(&sending), (true, true, false, true), "a task waits");
    sending.wake_if_room(&mut Vec::new());
    sending.accept(2);
    sending.queue(vec![4, 5].into());
    assert_eq!(facts(&sending), (true, false, true, true), "so does what is queued");
    assert!(matches!(sending.next(), Next::Send(buf) if buf.len() == 2));
    sending.sent(5);
    assert_eq!(facts(&sending), (false, false, false, false));
    assert!(matches!(poll(|waiter| sending.poll_flushed(waiter)), Poll::Ready(Ok(()))));
    sending.accept(1);
    sending.finish();
    assert_eq!(facts(&sending), (true, true, false, true), "FIN waits");
    assert!(poll(|waiter| sending.poll_flushed(waiter)).is_pending());
    sending.sent(1);
    assert!(poll(|waiter| sending.poll_flushed(waiter)).is_pending(), "FIN is not sent yet");
    assert!(sending.take_fin() && !sending.take_fin());
    assert!(matches!(poll(|waiter| sending.poll_flushed(waiter)), Poll::Ready(Ok(()))));
    let mut closed = Sending::default();
    closed.accept(1);
    assert!(!closed.is_closing());
    closed.close();
    assert_eq!((closed.is_closing(), closed.is_over(), facts(&closed).3), (true, false, true));
    closed.fail(libc::EPIPE, &mut Vec::new());
    assert_eq!((closed.is_over(), closed.must_linger(), closed.is_unsent()), (true, false, false));
}

#[test]
fn a_file_has_the_half_to_itself() {
    let mut sending = Sending::default();
    assert!(matches!(poll(|waiter| sending.poll_file(waiter)), Poll::Ready(Ok(()))));
    assert!(poll(|waiter| sending.poll_file(waiter)).is_pending(), "another file waits");
    assert!(poll(|waiter| sending.poll_accept(waiter)).is_pending(), "so does other data");
    assert!(poll(|waiter| sending.poll_flushed(waiter)).is_pending(), "and a flush");
    assert!(!sending.must_linger(), "a file is sent by its task, which is gone at a close");
    let mut wakes = Vec::new();
    sending.wake_if_room(&mut wakes);
    assert!(wakes.is_empty());
    sending.end_file(&mut wakes);
    assert!(!wakes.is_empty());
    assert!(matches!(poll(|waiter| sending.poll_flushed(waiter)), Poll::Ready(Ok(()))));
    // With bytes before it, it waits.
    sending.accept(1);
    assert!(poll(|waiter| sending.poll_file(waiter)).is_pending());
}

#[test]
fn room_that_no_task_asked_for_wakes_no_task() {
    let (mut sending, mut wakes) = (Sending::default(), Vec::new());
    assert!(poll(|waiter| sending.poll_accept(waiter)).is_ready());
    let mut asked = false;
    assert!(!sending.awaits_room());
    sending.writable(&mut wakes);
    assert!(poll(|waiter| sending.poll_writable(waiter, &mut asked)).is_pending());
    assert!(asked && sending.awaits_room() && wakes.is_empty());
}

#[test]
fn the_end_of_a_half_that_was_finished_hides_no_reset() {
    let mut finished = Sending::default();
    finished.finish();
    assert_eq!(finished.end_of_stream(true, || true), End::Error(libc::ECONNRESET), "no FIN yet");
    assert!(finished.take_fin());
    assert_eq!(finished.end_of_stream(true, || true), End::Stream);
    let mut with_file = Sending::default();
    assert!(poll(|waiter| with_file.poll_file(waiter)).is_ready());
    assert_eq!(with_file.end_of_stream(false, || true), End::Error(libc::ECONNRESET));
}

#[test]
fn the_bound_of_queued_bytes_is_256_kib() {
    let mut sending = Sending::default();
    sending.accept(256 * 1024 - 1);
    assert!(poll(|waiter| sending.poll_accept(waiter)).is_ready());
    sending.accept(1);
    assert!(poll(|waiter| sending.poll_accept(waiter)).is_pending());
}
