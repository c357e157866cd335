//! Wakers whose clone, wake and drop use the runtime, as those of an executor inside a task may.

use crate::runtime::current;
use crate::time::sleep;
use crate::{EngineChoice, Runtime, TcpListener, TcpStream, shutdown_requested, spawn};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io::Write;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};
use std::time::Duration;

#[derive(Default)]
struct Calls {
    clones: AtomicU32,
    wakes: AtomicU32,
    drops: AtomicU32,
}

static VTABLE: RawWakerVTable = RawWakerVTable::new(clone, wake, wake_by_ref, drop_waker);

fn foreign(calls: &Arc<Calls>) -> Waker {
    let data = Arc::into_raw(Arc::clone(calls)).cast();
    // SAFETY: the functions of the table keep the count of the `Arc` behind the pointer, and call from
    // other threads nothing but that.
    unsafe { Waker::from_raw(RawWaker::new(data, &VTABLE)) }
}

fn calls<'a>(data: *const ()) -> &'a Calls {
    // SAFETY: the waker that this is called for holds a count of the `Arc`.
    unsafe { &*data.cast::<Calls>() }
}

fn clone(data: *const ()) -> RawWaker {
    calls(data).clones.fetch_add(1, Relaxed);
    use_the_runtime();
    // SAFETY: as in `calls`; the new waker gives the count back.
    unsafe { Arc::increment_strong_count(data.cast::<Calls>()) };
    RawWaker::new(data, &VTABLE)
}

fn wake(data: *const ()) {
    wake_by_ref(data);
    drop_waker(data);
}

fn wake_by_ref(data: *const ()) {
    calls(data).wakes.fetch_add(1, Relaxed);
    use_the_runtime();
}

fn drop_waker(data: *const ()) {
    calls(data).drops.fetch_add(1, Relaxed);
    use_the_runtime();
    // SAFETY: as in `calls`; this waker is not used afterwards.
    unsafe { Arc::decrement_strong_count(data.cast::<Calls>()) };
}

thread_local! {
    /// A stream that wakers of this thread use.
    static STREAM: RefCell<Option<Rc<TcpStream>>> = const { RefCell::new(None) };
    static INSIDE: Cell<bool> = const { Cell::new(false) };
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
    let _begun = pin!(current().shared.blocking.run(|| ())).poll(no_waker);
    let task = spawn(std::future::pending::<()>());
    task.abort();
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
    let kept = [Arc::new(Calls::default()), Arc::new(Calls::default())];
    {
        let mut future = pin!(future);
        for calls in &kept {
            let waker = foreign(calls);
            let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending(), "{what}");
            assert_eq!(Arc::strong_count(calls), 3, "{what} keeps a waker");
        }
        assert_eq!(Arc::strong_count(&kept[0]), 1, "{what} keeps the waker before");
    }
    assert_eq!(Arc::strong_count(&kept[1]), 1, "{what} is gone, and its waker is not");
}

async fn everything_that_waits() {
    let (own, _its_peer) = pair().await;
    STREAM.set(Some(Rc::new(own)));
    let (stream, mut peer) = pair().await;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let udp = crate::UdpSocket::bind("127.0.0.1:0").unwrap();
    let task = spawn(std::future::pending::<()>());
    wait_and_give_up("recv", stream.recv()).await;
    wait_and_give_up("accept", listener.accept()).await;
    wait_and_give_up("recv_from", udp.recv_from()).await;
    wait_and_give_up("sleep", sleep(Duration::from_secs(9))).await;
    wait_and_give_up("join", task).await;
    wait_and_give_up("shutdown_requested", shutdown_requested()).await;
    let job = current().shared.blocking.run(|| std::thread::sleep(Duration::from_millis(100)));
    wait_and_give_up("job", job).await;
    let no_waker = &mut Context::from_waker(Waker::noop());
    let mut filler = Some(vec![0; 8 << 20].into());
    assert!(stream.poll_send(no_waker, &mut filler).is_ready());
    wait_and_give_up("send", stream.send("more")).await;
    wait_and_give_up("flush", stream.flush()).await;
    // Woken by an event, and by a cancellation.
    let calls = Arc::new(Calls::default());
    let waker = foreign(&calls);
    let cx = &mut Context::from_waker(&waker);
    let mut recv = Box::pin(stream.recv());
    assert!(recv.as_mut().poll(cx).is_pending());
    peer.write_all(b"news").unwrap();
    while calls.wakes.load(Relaxed) == 0 {
        sleep(Duration::from_millis(1)).await;
    }
    assert!(matches!(recv.as_mut().poll(cx), Poll::Ready(Ok(_))));
    drop(recv);
    let mut recv = Box::pin(stream.recv());
    assert!(recv.as_mut().poll(cx).is_pending());
    stream.cancel();
    assert_eq!(calls.wakes.load(Relaxed), 2);
    assert!(matches!(recv.as_mut().poll(cx), Poll::Ready(Err(_))));
    drop(recv);
    // Futures that were leaked leave their wakers to their socket.
    let mut recv = stream.recv();
    assert!(Pin::new(&mut recv).poll(cx).is_pending());
    std::mem::forget(recv);
    drop(stream);
    STREAM.take();
    drop(waker);
    assert_eq!(Arc::strong_count(&calls), 1, "a waker is kept");
    assert!(calls.clones.load(Relaxed) >= 3 && calls.drops.load(Relaxed) >= 3);
}

/// The driver was borrowed while it cloned and dropped wakers.
#[test]
fn wakers_may_use_the_runtime() {
    for engine in [EngineChoice::Auto, EngineChoice::Epoll] {
        let runtime = Runtime::builder().engine(engine).linger(Duration::ZERO).build().unwrap();
        runtime.block_on(everything_that_waits()).unwrap();
    }
}
