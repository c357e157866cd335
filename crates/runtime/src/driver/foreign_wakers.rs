//! Wakers whose clone, wake and drop use the runtime, as those of an executor inside a task may.

use crate::time::sleep;
use crate::{EngineChoice, Runtime, TcpListener, TcpStream, UdpSocket, shutdown_requested, spawn};
use std::cell::{Cell, RefCell};
use std::future::{Future, pending};
use std::io::Write;
use std::pin::pin;
use std::ptr::without_provenance;
use std::rc::Rc;
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};
use std::time::Duration;

thread_local! {
    /// Foreign wakers that exist, and how often one was woken.
    static ALIVE: Cell<u32> = const { Cell::new(0) };
    static WAKES: Cell<u32> = const { Cell::new(0) };
    /// A stream that they use.
    static STREAM: RefCell<Option<Rc<TcpStream>>> = const { RefCell::new(None) };
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

static VTABLE: RawWakerVTable = RawWakerVTable::new(clone, wake, wake_by_ref, drop_waker);

fn foreign(number: usize) -> Waker {
    // SAFETY: the functions of the table follow no pointer, and are called on this thread alone.
    unsafe { Waker::from_raw(clone(without_provenance(number))) }
}

fn clone(number: *const ()) -> RawWaker {
    ALIVE.set(ALIVE.get() + 1);
    use_the_runtime();
    RawWaker::new(number, &VTABLE)
}

fn wake(number: *const ()) {
    wake_by_ref(number);
    drop_waker(number);
}

fn wake_by_ref(_: *const ()) {
    WAKES.set(WAKES.get() + 1);
    use_the_runtime();
}

fn drop_waker(_: *const ()) {
    ALIVE.set(ALIVE.get() - 1);
    use_the_runtime();
}

/// Receives, sends, cancels, closes, sets a timer, asks for a thread, starts and aborts a task.
fn use_the_runtime() {
    let Some(stream) = STREAM.with_borrow(Option::clone) else { return };
    if INSIDE.replace(true) {
        return;
    }
    let no_waker = &mut Context::from_waker(Waker::noop());
    let _nothing = pin!(stream.recv()).poll(no_waker);
    let _sent = stream.poll_send(no_waker, &mut Some("x".into()));
    stream.cancel();
    drop(TcpListener::bind("127.0.0.1:0").unwrap());
    assert!(pin!(sleep(Duration::from_secs(9))).poll(no_waker).is_pending());
    drop(crate::spawn_blocking(|| ()));
    spawn(pending::<()>()).abort();
    assert!(pin!(shutdown_requested()).poll(no_waker).is_pending());
    INSIDE.set(false);
}

async fn pair() -> (TcpStream, std::net::TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = std::net::TcpStream::connect(listener.local_addr()).unwrap();
    (listener.accept().await.unwrap(), peer)
}

/// Polls a future with one foreign waker and with another, and drops it.
async fn wait_and_give_up(what: &str, future: impl Future) {
    // For what a task may do in one poll.
    crate::task::yield_now().await;
    {
        let mut future = pin!(future);
        for number in [1, 2] {
            let polled = future.as_mut().poll(&mut Context::from_waker(&foreign(number)));
            assert!(polled.is_pending(), "{what}");
            assert_eq!(ALIVE.get(), 1, "{what} keeps the last waker");
        }
    }
    assert_eq!(ALIVE.get(), 0, "{what} is gone, and its waker is not");
}

async fn everything_that_waits() {
    let (own, _its_peer) = pair().await;
    STREAM.set(Some(Rc::new(own)));
    let (stream, mut peer) = pair().await;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    wait_and_give_up("recv", stream.recv()).await;
    wait_and_give_up("accept", listener.accept()).await;
    wait_and_give_up("recv_from", udp.recv_from()).await;
    wait_and_give_up("recv_batch", udp.recv_batch(&mut Vec::new())).await;
    wait_and_give_up("sleep", sleep(Duration::from_secs(9))).await;
    wait_and_give_up("join", spawn(pending::<()>())).await;
    wait_and_give_up("shutdown_requested", shutdown_requested()).await;
    let no_waker = &mut Context::from_waker(Waker::noop());
    let mut filler = Some(vec![0; 8 << 20].into());
    assert!(stream.poll_send(no_waker, &mut filler).is_ready());
    wait_and_give_up("send", stream.send("more")).await;
    wait_and_give_up("send_corked", stream.send_corked("more")).await;
    wait_and_give_up("flush", stream.flush()).await;
    // Woken by an event, and by a cancellation.
    let waker = foreign(1);
    let cx = &mut Context::from_waker(&waker);
    for (cancels, keeps_first) in [(false, true), (false, false), (true, true)] {
        let [mut first, mut second] = [stream.recv(), stream.recv()].map(Box::pin);
        assert!(first.as_mut().poll(cx).is_pending() && second.as_mut().poll(cx).is_pending());
        let (mut recv, dropped) = if keeps_first { (first, second) } else { (second, first) };
        // It removed the other one of its task, too.
        drop(dropped);
        if cancels {
            stream.cancel()
        } else {
            peer.write_all(b"news").unwrap()
        }
        WAKES.set(0);
        while WAKES.get() == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        let received = recv.as_mut().poll(cx);
        assert!(matches!(received, Poll::Ready(received) if received.is_err() == cancels));
    }
    // Futures that were leaked leave their wakers to their socket.
    let mut recv = Box::pin(stream.recv());
    assert!(recv.as_mut().poll(cx).is_pending());
    std::mem::forget(recv);
    drop(stream);
    STREAM.take();
    drop(waker);
    crate::task::yield_now().await;
    assert_eq!(ALIVE.get(), 0, "a waker is kept");
}

/// The driver was borrowed while it cloned and dropped wakers.
#[test]
fn wakers_may_use_the_runtime() {
    for engine in [EngineChoice::Auto, EngineChoice::Epoll] {
        let runtime = Runtime::builder().engine(engine).linger(Duration::ZERO).build().unwrap();
        runtime.block_on(everything_that_waits()).unwrap();
    }
}
