//! The server's end of one TLS connection, without its socket: converts between bytes of the
//! network and plain text of the peer.

use rustls::server::ServerConnection;
use rustls::{HandshakeKind, ServerConfig};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::io::{self, BufRead, Write};
use std::sync::Arc;

/// See the module. It holds at most one incomplete record (18 KiB; a handshake, 64 KiB), and
/// outgoing data until it is taken.
pub(crate) struct Encryption {
    connection: RefCell<ServerConnection>,
    /// Decrypted data that was not taken yet.
    opened: RefCell<Vec<u8>>,
    /// The peer will send no more.
    ended: Cell<bool>,
    /// The peer did not send TLS, and gets an alert.
    failed: Cell<bool>,
}

impl fmt::Debug for Encryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encryption").field("ended", &self.ended).finish_non_exhaustive()
    }
}

impl Encryption {
    pub(super) fn new(config: Arc<ServerConfig>) -> Result<Encryption, rustls::Error> {
        let mut connection = ServerConnection::new(config)?;
        // Input is taken out at once, so its bound is that of the caller.
        connection.set_buffer_limit(None);
        Ok(Encryption {
            connection: RefCell::new(connection),
            opened: RefCell::default(),
            ended: Cell::new(false),
            failed: Cell::new(false),
        })
    }

    /// True until both ends have agreed on keys.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.connection.borrow().is_handshaking()
    }

    /// True if an earlier session was resumed.
    pub(crate) fn was_resumed(&self) -> bool {
        self.connection.borrow().handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// True if both ends agreed on HTTP/2.
    pub(crate) fn speaks_http2(&self) -> bool {
        self.connection.borrow().alpn_protocol() == Some(super::HTTP_2)
    }

    /// Records the end of the network stream; true if the peer announced it (close_notify), so that
    /// a third party did not cut the connection.
    pub(crate) fn end(&self) -> bool {
        self.ended.replace(true)
    }

    /// True once the peer will send no more data.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.get()
    }

    /// Processes bytes of the network. After that there may be plain text in
    /// [`opened`](Encryption::opened), and, also after an error, data to
    /// [`take`](Encryption::take).
    pub(crate) fn open(&self, bytes: &[u8]) -> Result<(), rustls::Error> {
        let opened = self.try_open(bytes);
        self.failed.set(self.failed.get() || opened.is_err());
        opened
    }

    fn try_open(&self, mut bytes: &[u8]) -> Result<(), rustls::Error> {
        let mut connection = self.connection.borrow_mut();
        let mut opened = self.opened.borrow_mut();
        while !bytes.is_empty() && !self.ended.get() {
            // Fails only with full buffers, and those are emptied below.
            let read = connection.read_tls(&mut bytes);
            let read = read.map_err(|error| rustls::Error::General(error.to_string()))?;
            let state = connection.process_new_packets()?;
            self.ended.set(state.peer_has_closed());
            let mut reader = connection.reader();
            while let Ok(plain) = reader.fill_buf()
                && !plain.is_empty()
            {
                opened.extend_from_slice(plain);
                let length = plain.len();
                reader.consume(length);
            }
            if read == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Takes the decrypted data.
    pub(crate) fn opened(&self) -> Vec<u8> {
        self.opened.take()
    }

    /// Encrypts bytes for the peer, for the next [`take`](Encryption::take).
    pub(crate) fn put(&self, bytes: &[u8]) -> io::Result<()> {
        self.connection.borrow_mut().writer().write_all(bytes)
    }

    /// Announces the end of the data, unless an error must be reported or the handshake is
    /// incomplete.
    pub(crate) fn put_end(&self) {
        if !self.failed.get() && !self.is_handshaking() {
            self.connection.borrow_mut().send_close_notify();
        }
    }

    /// Takes the data that must be sent over the network now.
    pub(crate) fn take(&self) -> io::Result<Vec<u8>> {
        let mut connection = self.connection.borrow_mut();
        let mut bytes = Vec::new();
        while connection.wants_write() {
            connection.write_tls(&mut bytes)?;
        }
        Ok(bytes)
    }
}
