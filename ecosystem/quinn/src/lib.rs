//! Runs quinn, a library for QUIC, on the [`twinring`] runtime: on a worker's UDP sockets and timers,
//! with segmentation (GSO), coalescing (GRO) and ECN.

use quinn::udp::{EcnCodepoint, RecvMeta, Transmit, UdpSocketState};
use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, UdpPoller};
use send_wrapper::SendWrapper;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;
use twinring::{
    Datagram, Received, UdpSocket,
    net::{Ecn, UdpOptions},
    time::Sleep,
};

/// Datagrams in one buffer that the kernel segments or has coalesced, at most (UDP_MAX_SEGMENTS).
const SEGMENTS_MAX: usize = 64;
/// Receive buffers of a worker for all its QUIC sockets. Each holds 64 KiB, so this is 4 MiB of
/// address space, of which the used part costs memory.
const RECEIVE_BUFFERS: u32 = 64;

/// Runs quinn on the worker that calls it.
///
/// ```no_run
/// # fn example(server: quinn::ServerConfig) -> std::io::Result<()> {
/// let socket = std::net::UdpSocket::bind("127.0.0.1:4433")?;
/// let runtime = std::sync::Arc::new(twinring_quinn::QuicRuntime);
/// let endpoint = quinn::Endpoint::new(Default::default(), Some(server), socket, runtime)?;
/// # Ok(())
/// # }
/// ```
///
/// Quinn's types are `Send`, because its other runtimes have threads. Here an endpoint, its
/// connections and their streams belong to the worker that made the endpoint: what another thread
/// does with them panics. For several workers, give each a socket with
/// SO_REUSEPORT and an endpoint: the kernel then chooses one by the addresses of a datagram, so a
/// client that changes its address loses its connection.
///
/// # Panics
/// All operations panic on another thread, or outside a twinring runtime.
#[derive(Clone, Copy, Debug, Default)]
pub struct QuicRuntime;

impl Runtime for QuicRuntime {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        Box::pin(Timer { sleep: SendWrapper::new(twinring::sleep_until(at)) })
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        drop(twinring::spawn(future));
    }

    fn wrap_udp_socket(&self, socket: std::net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        // Sets what quinn expects of a socket, path MTU discovery without fragments included.
        let may_fragment = UdpSocketState::new((&socket).into())?.may_fragment();
        let options = UdpOptions {
            gro: true,
            pktinfo: true,
            traffic_class: true,
            buffer_count: RECEIVE_BUFFERS,
            ..UdpOptions::default()
        };
        let socket = UdpSocket::from_bound(options.from_std(socket)?)?;
        let inner = SendWrapper::new(Inner { socket, received: RefCell::default() });
        Ok(Arc::new(Socket { inner, may_fragment }))
    }
}

/// A sleep that can be set again.
struct Timer {
    sleep: SendWrapper<Sleep>,
}

impl fmt::Debug for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timer").finish_non_exhaustive()
    }
}

impl AsyncTimer for Timer {
    fn reset(self: Pin<&mut Self>, at: Instant) {
        *self.get_mut().sleep = twinring::sleep_until(at);
    }

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut *self.get_mut().sleep).poll(cx)
    }
}

struct Socket {
    inner: SendWrapper<Inner>,
    may_fragment: bool,
}

struct Inner {
    socket: UdpSocket,
    /// Received at once and not passed on: at most a batch, 64.
    received: RefCell<VecDeque<Received>>,
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket").finish_non_exhaustive()
    }
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Poller { socket: self, waiting: SendWrapper::new(None) })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let mut datagram = Datagram::to(transmit.destination, transmit.contents.to_vec());
        datagram.from = transmit.src_ip;
        // A datagram of QUIC is shorter than 64 KiB.
        datagram.segment_bytes = transmit.segment_size.and_then(|bytes| bytes.try_into().ok());
        datagram.ecn = transmit.ecn.map(|ecn| match ecn {
            EcnCodepoint::Ect0 => Ecn::Ect0,
            EcnCodepoint::Ect1 => Ecn::Ect1,
            EcnCodepoint::Ce => Ecn::Ce,
        });
        let mut batch = vec![datagram];
        self.inner.socket.try_send_batch(&mut batch)?;
        if batch.is_empty() { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let Inner { socket, received } = &*self.inner;
        let mut waiting = received.borrow_mut();
        if waiting.is_empty() {
            let mut batch = Vec::new();
            ready!(socket.poll_recv_batch(cx, &mut batch))?;
            waiting.extend(batch);
        }
        let count = waiting.len().min(bufs.len()).min(meta.len());
        for ((received, buf), meta) in waiting.drain(..count).zip(bufs).zip(meta) {
            // A longer datagram is none that the peer was allowed to send.
            let bytes = received.data.len().min(buf.len());
            buf[..bytes].copy_from_slice(&received.data[..bytes]);
            *meta = RecvMeta {
                addr: received.from,
                len: bytes,
                stride: received.segment_bytes.map_or(bytes, usize::from),
                ecn: received.traffic_class.and_then(EcnCodepoint::from_bits),
                dst_ip: received.to,
            };
        }
        Poll::Ready(Ok(count))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.inner.socket.local_addr())
    }

    fn max_transmit_segments(&self) -> usize {
        SEGMENTS_MAX
    }

    fn max_receive_segments(&self) -> usize {
        SEGMENTS_MAX
    }

    fn may_fragment(&self) -> bool {
        self.may_fragment
    }
}

type Waiting = Pin<Box<dyn Future<Output = io::Result<()>>>>;

/// Waits until the socket can hold another datagram.
struct Poller {
    socket: Arc<Socket>,
    waiting: SendWrapper<Option<Waiting>>,
}

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller").finish_non_exhaustive()
    }
}

impl UdpPoller for Poller {
    fn poll_writable(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Poller { socket, waiting } = self.get_mut();
        let future = waiting.get_or_insert_with(|| {
            let socket = Arc::clone(socket);
            Box::pin(async move { socket.inner.socket.send_ready().await })
        });
        let polled = future.as_mut().poll(cx);
        if polled.is_ready() {
            **waiting = None;
        }
        polled
    }
}
