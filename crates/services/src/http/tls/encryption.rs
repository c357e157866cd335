//! The server's end of one TLS connection, without its socket: bytes of the network in, those of
//! the peer out, and the other way round.

use rustls::server::ServerConnection;
use rustls::{HandshakeKind, ServerConfig};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::io::{self, BufRead, Write};
use std::sync::Arc;

/// See the module. It holds at most one record that has not come whole (18 KiB; a handshake, 64
/// KiB), and what was put in to be sent until that is taken.
pub(crate) struct Encryption {
    connection: RefCell<ServerConnection>,
    /// What the peer said and nobody has taken yet.
    opened: RefCell<Vec<u8>>,
    /// The peer will send no more.
    ended: Cell<bool>,
    /// What came was no TLS, and the peer is told so.
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
        // What is put in is taken out at once, so its bound is that of the caller.
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

    /// Takes note that the network has nothing more; true if the peer has said so before
    /// (close_notify), and it was not somebody else who ended the connection.
    pub(crate) fn end(&self) -> bool {
        self.ended.replace(true)
    }

    /// True once the peer will send no more.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.get()
    }

    /// Takes bytes of the network in. After that there may be something
    /// [`opened`](Encryption::opened), and, after an error too, something to
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
            // Fails with full buffers alone, and those are emptied below.
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

    /// What the peer said.
    pub(crate) fn opened(&self) -> Vec<u8> {
        self.opened.take()
    }

    /// Puts bytes for the peer in, for the next [`take`](Encryption::take).
    pub(crate) fn put(&self, bytes: &[u8]) -> io::Result<()> {
        self.connection.borrow_mut().writer().write_all(bytes)
    }

    /// Puts the news in that nothing follows any more, unless there was a failure to tell of or
    /// nothing was agreed on.
    pub(crate) fn put_end(&self) {
        if !self.failed.get() && !self.is_handshaking() {
            self.connection.borrow_mut().send_close_notify();
        }
    }

    /// What is to be sent over the network now.
    pub(crate) fn take(&self) -> io::Result<Vec<u8>> {
        let mut connection = self.connection.borrow_mut();
        let mut bytes = Vec::new();
        while connection.wants_write() {
            connection.write_tls(&mut bytes)?;
        }
        Ok(bytes)
    }
}
