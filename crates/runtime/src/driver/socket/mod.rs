//! The operations on sockets, written once for all engines: each is a transition of the socket's state
//! ([`stream`]) and, where a kernel is needed, one of the primitives of [`Engine`].
//!
//! This code is generic over the engine and compiled once for each, so the path of a byte has no indirect
//! call.

mod datagrams;
pub(crate) mod linger;
pub(crate) mod queues;
pub(crate) mod stream;
mod streams;

pub(crate) use self::datagrams::Udp;

use self::linger::Lingering;
use self::stream::{End, Receiving, Sending};
use crate::buf::{RecvBuf, SendBuf};
use crate::counters::Counters;
use crate::datagram::Received;
use crate::driver::common::{Side, reset_on_close};
use crate::slots::{Key, Slots};
use crate::sys;
use crate::task::{WaitQueue, Waiter};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// The entry of a key, if it is of this kind, and the engine; otherwise returns an error from the caller.
macro_rules! entry {
    ($sockets:expr, $key:expr, $kind:ident) => {
        match $sockets.entries.get_mut($key) {
            Some($crate::driver::socket::Entry::$kind(entry)) => (entry, &mut $sockets.engine),
            _ => return Err($crate::driver::common::closed()).into(),
        }
    };
}
pub(in crate::driver) use entry;

/// The primitives of an engine, below the state of its sockets.
pub(crate) trait Engine: Sized {
    /// Its state for the worker's eventfd.
    type Wake;
    /// Its state for each kind of socket, beside the common state.
    type Listener;
    type Stream;
    type Udp;

    fn counters(&self) -> &Counters;

    /// A connection that has already arrived.
    fn accept(&mut self, listener: &mut Listener<Self>) -> Option<io::Result<OwnedFd>>;

    /// A task waits for a connection.
    fn await_connection(&mut self, _key: Key, _listener: &mut Listener<Self>) {}

    /// Bytes that have already arrived. The end is noted in the state.
    fn receive(&mut self, stream: &mut Stream<Self>) -> Option<RecvBuf>;

    /// Copies bytes that have already arrived, without taking them. The end is noted in the state.
    fn peek(&mut self, stream: &mut Stream<Self>, into: &mut [u8]) -> Option<usize>;

    /// A task waits for bytes.
    fn await_bytes(&mut self, key: Key, stream: &mut Stream<Self>) -> io::Result<()>;

    /// Sends a queued buffer, and later the part that the kernel does not accept now. True if the kernel
    /// has all of it, so that the next may follow.
    fn send(
        &mut self,
        key: Key,
        stream: &mut Stream<Self>,
        buf: SendBuf,
        wakes: &mut Vec<Waker>,
    ) -> bool;

    /// A task, FIN or a close waits until the data that is being sent is with the kernel.
    fn await_sent(&mut self, key: Key, stream: &mut Stream<Self>);

    /// A task waits until the socket accepts more.
    fn await_room(&mut self, key: Key, stream: &mut Stream<Self>) -> io::Result<()>;

    /// Sends the data of a stream that the engine holds back.
    fn send_held_back(_sockets: &mut Sockets<Self>, _key: Key) {}

    /// Appends at most `most` datagrams that have already arrived. Returns how many, or an error; `None`
    /// if there are none.
    fn receive_batch(
        &mut self,
        key: Key,
        udp: &mut Udp<Self>,
        into: &mut Vec<Received>,
        most: usize,
    ) -> Option<io::Result<usize>>;

    /// A task waits for datagrams.
    fn await_datagrams(&mut self, key: Key, udp: &mut Udp<Self>) -> io::Result<()>;

    /// Sends as much of the outbox as the kernel accepts now.
    fn send_datagrams(&mut self, key: Key, udp: &mut Udp<Self>);

    /// As [`await_sent`](Engine::await_sent), and after datagrams were sent.
    fn await_datagrams_sent(&mut self, key: Key, udp: &mut Udp<Self>) -> io::Result<()>;

    /// The descriptor of a datagram socket that is open.
    fn udp_fd(udp: &Udp<Self>) -> Option<RawFd>;

    /// Cancels the operations of the socket and closes it.
    fn close(sockets: &mut Sockets<Self>, key: Key);

    /// Cancels everything, waits until the kernel holds nothing (at most `patience` for operations on
    /// files), closes all descriptors. Collects the wakers of sockets and futures that were leaked.
    fn teardown(sockets: &mut Sockets<Self>, patience: Duration, wakes: &mut Vec<Waker>);
}

/// A listening socket.
pub(crate) struct Listener<E: Engine> {
    /// Empty once it was closed.
    pub(crate) socket: Option<OwnedFd>,
    pub(crate) waiters: WaitQueue,
    pub(crate) own: E::Listener,
}

/// A connected or connecting TCP socket.
pub(crate) struct Stream<E: Engine> {
    /// Empty once the close was submitted.
    pub(crate) socket: Option<OwnedFd>,
    /// O_NONBLOCK is set, see `driver::pieces`.
    pub(crate) nonblocking: bool,
    pub(crate) receiving: Receiving,
    pub(crate) sending: Sending,
    pub(crate) own: E::Stream,
}

impl<E: Engine> Stream<E> {
    pub(crate) fn new(socket: OwnedFd, sending: Sending, own: E::Stream) -> Stream<E> {
        let receiving = Receiving::default();
        Stream { socket: Some(socket), nonblocking: true, receiving, sending, own }
    }

    pub(crate) fn fd(&self) -> Option<RawFd> {
        self.socket.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Sends FIN if it is due.
    pub(crate) fn shut_down_if_due(&mut self, counters: &Counters) {
        if self.sending.take_fin() {
            self.shut_down(counters);
        }
    }

    fn shut_down(&self, counters: &Counters) {
        if let Some(fd) = self.fd() {
            counters.syscalls.add(1);
            // Fails only when the connection has ended, which the receiving side reports.
            let _reported_by_recv = sys::shutdown_write(fd);
        }
    }

    /// A send failed, and its bytes are lost. If the kernel had no memory for it, the connection is still
    /// open: then the receiving half ends too, or this end would wait for the answer to what the peer
    /// never got, and the close is a reset, or the peer would take the rest for all of it.
    pub(crate) fn send_failed(&mut self, errno: i32, wakes: &mut Vec<Waker>) {
        self.sending.fail(errno, wakes);
        if matches!(errno, libc::ENOMEM | libc::ENOBUFS) {
            self.receiving.finish(End::Error(errno), wakes);
            self.socket.iter().for_each(reset_on_close);
        }
    }

    /// Called before a close that does not wait for unsent data.
    pub(crate) fn cut_off(&self) {
        if self.sending.must_linger()
            && let Some(socket) = &self.socket
        {
            reset_on_close(socket);
        }
    }
}

/// The entry that a key refers to.
pub(crate) enum Entry<E: Engine> {
    /// The worker's eventfd.
    Wake(E::Wake),
    Listener(Listener<E>),
    Stream(Stream<E>),
    Udp(Box<Udp<E>>),
}

/// One worker's engine and the sockets registered with it.
pub(crate) struct Sockets<E: Engine> {
    // Dropped in this order: a ring before the memory that it uses.
    pub(crate) engine: E,
    pub(crate) entries: Slots<Entry<E>>,
    pub(crate) lingering: Lingering,
}

impl<E: Engine> Sockets<E> {
    pub(crate) fn with(engine: E, linger: Duration) -> Sockets<E> {
        Sockets { engine, entries: Slots::new(), lingering: Lingering::new(linger) }
    }

    /// The next connection of a listener.
    pub(crate) fn poll_accept(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
    ) -> Poll<io::Result<OwnedFd>> {
        let (listener, engine) = entry!(self, key, Listener);
        if let Some(accepted) = engine.accept(listener) {
            return Poll::Ready(accepted);
        }
        listener.waiters.add(waiter);
        engine.await_connection(key, listener);
        Poll::Pending
    }

    pub(crate) fn wait_queue(&mut self, key: Key, side: Side) -> Option<&mut WaitQueue> {
        Some(match (self.entries.get_mut(key)?, side) {
            (Entry::Stream(stream), Side::Receive) => &mut stream.receiving.waiters,
            (Entry::Stream(stream), Side::Send) => &mut stream.sending.waiters,
            (Entry::Udp(udp), Side::Receive) => &mut udp.receive_waiters,
            (Entry::Udp(udp), Side::Send) => &mut udp.outbox.waiters,
            (Entry::Listener(listener), _) => &mut listener.waiters,
            (Entry::Wake(_), _) => return None,
        })
    }

    pub(crate) fn wake_waiters(&mut self, key: Key, wakes: &mut Vec<Waker>) {
        for side in [Side::Receive, Side::Send] {
            if let Some(queue) = self.wait_queue(key, side) {
                queue.wake(wakes);
            }
        }
    }

    pub(crate) fn fd(&self, key: Key) -> Option<RawFd> {
        match self.entries.get(key)? {
            Entry::Stream(stream) => stream.fd(),
            Entry::Listener(listener) => listener.socket.as_ref().map(AsRawFd::as_raw_fd),
            Entry::Udp(udp) => E::udp_fd(udp),
            Entry::Wake(_) => None,
        }
    }

    /// Closes a socket. Queued data is still sent, within the linger limit.
    pub(crate) fn close(&mut self, key: Key, wakes: &mut Vec<Waker>) {
        self.wake_waiters(key, wakes);
        E::send_held_back(self, key);
        match self.entries.get_mut(key) {
            Some(Entry::Stream(stream)) => {
                stream.sending.close();
                if !stream.sending.is_over() {
                    self.engine.await_sent(key, stream);
                    return self.lingering.push(key);
                }
            }
            Some(Entry::Udp(udp)) => {
                udp.outbox.closing = true;
                if udp.must_linger() {
                    let _gone_with_the_socket = self.engine.await_datagrams_sent(key, udp);
                    return self.lingering.push(key);
                }
            }
            Some(Entry::Listener(_)) => {}
            Some(Entry::Wake(_)) | None => return,
        }
        E::close(self, key);
    }

    pub(crate) fn expire_lingering(&mut self) {
        while let Some(key) = self.lingering.pop_expired() {
            if is_open(&self.entries, key) {
                if let Some(Entry::Stream(stream)) = self.entries.get(key) {
                    stream.cut_off();
                }
                self.engine.counters().lingers_expired.add(1);
                E::close(self, key);
            }
        }
    }

    /// When `turn` has to run even without events.
    #[inline]
    pub(crate) fn next_deadline(&mut self) -> Option<Instant> {
        if self.lingering.is_empty() {
            return None;
        }
        let entries = &self.entries;
        self.lingering.next_deadline(|key| is_open(entries, key))
    }

    /// True while closed streams still send.
    pub(crate) fn is_lingering(&mut self) -> bool {
        self.next_deadline().is_some()
    }

    pub(crate) fn teardown(&mut self, patience: Duration, wakes: &mut Vec<Waker>) {
        E::teardown(self, patience, wakes);
    }
}

/// True while the program or a linger keeps the socket's descriptor open.
fn is_open<E: Engine>(entries: &Slots<Entry<E>>, key: Key) -> bool {
    match entries.get(key) {
        Some(Entry::Stream(stream)) => stream.socket.is_some(),
        Some(Entry::Udp(udp)) => E::udp_fd(udp).is_some(),
        _ => false,
    }
}

impl<E: Engine> Drop for Sockets<E> {
    fn drop(&mut self) {
        self.teardown(Duration::ZERO, &mut Vec::new());
    }
}
