//! Socket options of connections.

use super::TcpStream;
use crate::net::with_socket;
use std::io;
use std::time::Duration;

impl TcpStream {
    /// Sets TCP_NODELAY. For other options see [`with_fd`](Self::with_fd).
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        with_socket(&self.worker, self.key, |socket| socket.set_tcp_nodelay(nodelay))
    }

    /// Makes the close send a reset instead of FIN (SO_LINGER with zero), dropping unsent data.
    pub fn set_reset_on_close(&self) -> io::Result<()> {
        with_socket(&self.worker, self.key, |socket| socket.set_linger(Some(Duration::ZERO)))?;
        self.resets.set(true);
        Ok(())
    }
}
