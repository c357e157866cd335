//! Socket options of connections.

use super::TcpStream;
use crate::net::with_socket;
use crate::sys::socket::TcpKeepalive;
use std::io;
use std::time::Duration;

/// When an idle connection is probed, see [`TcpStream::set_keepalive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Without received data for this long, the first probe is sent. 60 seconds by default.
    pub idle: Duration,
    /// Time between probes. 10 seconds by default.
    pub interval: Duration,
    /// Unanswered probes after which the connection fails. 6 by default.
    pub probes: u32,
}

impl Default for Keepalive {
    fn default() -> Keepalive {
        let (idle, interval) = (Duration::from_secs(60), Duration::from_secs(10));
        Keepalive { idle, interval, probes: 6 }
    }
}

impl TcpStream {
    /// Sets TCP_NODELAY.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        with_socket(&self.worker, self.key, |socket| socket.set_tcp_nodelay(nodelay))
    }

    /// Probes the peer when nothing was received for `idle`, then every `interval`; after `probes`
    /// without an answer the connection fails with ETIMEDOUT (SO_KEEPALIVE, TCP_KEEPIDLE,
    /// TCP_KEEPINTVL, TCP_KEEPCNT). The kernel counts in whole seconds, from 1 to 32,767, and 1 to
    /// 127 probes. `None` turns it off, which is the default.
    pub fn set_keepalive(&self, keepalive: Option<Keepalive>) -> io::Result<()> {
        with_socket(&self.worker, self.key, |socket| match keepalive {
            None => socket.set_keepalive(false),
            Some(Keepalive { idle, interval, probes }) => socket.set_tcp_keepalive(
                &TcpKeepalive::new().with_time(idle).with_interval(interval).with_retries(probes),
            ),
        })
    }

    /// Requests a receive buffer size (SO_RCVBUF) and returns the granted one, which is twice the
    /// request for the kernel's bookkeeping, within net.core.rmem_max.
    pub fn set_recv_buffer_bytes(&self, bytes: usize) -> io::Result<usize> {
        with_socket(&self.worker, self.key, |socket| {
            socket.set_recv_buffer_size(bytes)?;
            socket.recv_buffer_size()
        })
    }

    /// Requests a send buffer size (SO_SNDBUF) and returns the granted one.
    pub fn set_send_buffer_bytes(&self, bytes: usize) -> io::Result<usize> {
        with_socket(&self.worker, self.key, |socket| {
            socket.set_send_buffer_size(bytes)?;
            socket.send_buffer_size()
        })
    }

    /// Makes the close send a reset instead of FIN (SO_LINGER with zero), dropping unsent data.
    pub fn set_reset_on_close(&self) -> io::Result<()> {
        with_socket(&self.worker, self.key, |socket| socket.set_linger(Some(Duration::ZERO)))?;
        self.resets.set(true);
        Ok(())
    }
}
