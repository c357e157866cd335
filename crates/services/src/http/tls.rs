//! TLS 1.2 and 1.3: the certificates of a service, and the state of one connection; transport is the task of
//! `connection`.

use super::hosts::{HostMap, HostName};
use crate::lock;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::{ClientHello, ProducesTickets, ResolvesServerCert, ServerConnection};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use rustls::{HandshakeKind, ServerConfig};
use serde::Deserialize;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// The ALPN names of the protocols (RFC 7301).
const HTTP_1_1: &[u8] = b"http/1.1";
const HTTP_2: &[u8] = b"h2";

/// The oldest version of TLS that clients may speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum MinVersion {
    /// TLS 1.2.
    #[default]
    #[serde(rename = "1.2")]
    Tls12,
    /// TLS 1.3.
    #[serde(rename = "1.3")]
    Tls13,
}

/// A certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// PEM file with the certificate of the server, followed by its chain to one that clients
    /// trust.
    pub certificate: PathBuf,
    /// PEM file with the private key of the first certificate.
    pub key: PathBuf,
}

/// How TLS is set up.
#[derive(Clone, Debug, Default)]
pub struct TlsSettings {
    /// Certificates of hosts. That of no host is for clients that send no host name, or one that has no certificate of
    /// its own; without it, their handshakes fail.
    pub certificates: Vec<(Vec<HostName>, CertificateFiles)>,
    /// See there.
    pub min_version: MinVersion,
    /// Offer HTTP/2 too, and prefer it.
    pub http2: bool,
}

/// TLS for the connections of a service, of all workers.
pub struct Tls {
    /// Tickets stay valid when certificates are replaced.
    ticketer: Arc<dyn ProducesTickets>,
    current: Mutex<Arc<ServerConfig>>,
}

/// Certificates that were read and checked, and are not in use yet.
#[derive(Debug)]
pub struct TlsUpdate(Arc<ServerConfig>);

impl Tls {
    /// Reads certificates and keys. Sessions are resumed by tickets, so the server stores no
    /// sessions; the ticket keys exist in this process only, and change every six hours. An error names the file.
    pub fn new(settings: &TlsSettings) -> Result<Arc<Tls>, String> {
        let ticketer = aws_lc_rs::Ticketer::new().map_err(not_set_up)?;
        let TlsUpdate(config) = configure(settings, &ticketer)?;
        Ok(Arc::new(Tls { ticketer, current: Mutex::new(config) }))
    }

    /// Reads certificates and keys again, without using them. Blocks on the filesystem: for ever,
    /// if it does not answer.
    pub fn load(&self, settings: &TlsSettings) -> Result<TlsUpdate, String> {
        configure(settings, &self.ticketer)
    }

    /// Uses an update for new connections.
    pub fn install(&self, TlsUpdate(config): TlsUpdate) {
        *lock(&self.current) = config;
    }

    pub(super) fn accept(&self) -> Result<Encryption, rustls::Error> {
        let current = Arc::clone(&lock(&self.current));
        Encryption::new(current)
    }
}

fn configure(
    settings: &TlsSettings,
    ticketer: &Arc<dyn ProducesTickets>,
) -> Result<TlsUpdate, String> {
    // The default of rustls: it uses CPU features (vector AES), and builds with a C compiler only.
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut certificates: Certificates = HostMap(HashMap::new());
    for (names, files) in &settings.certificates {
        let certificate = Arc::new(load(files, &provider)?);
        if let Some(taken) = certificates.add(names, &certificate).first() {
            return Err(format!("two certificates have {taken}"));
        }
    }
    let versions: &[_] = match settings.min_version {
        MinVersion::Tls12 => &[&TLS13, &TLS12],
        MinVersion::Tls13 => &[&TLS13],
    };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .map_err(not_set_up)?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(certificates));
    let protocols = [settings.http2.then_some(HTTP_2), Some(HTTP_1_1)];
    config.alpn_protocols = protocols.into_iter().flatten().map(<[u8]>::to_vec).collect();
    config.ticketer = Arc::clone(ticketer);
    Ok(TlsUpdate(Arc::new(config)))
}

fn not_set_up(error: rustls::Error) -> String {
    format!("cannot set up TLS: {error}")
}

/// The longest file that is read. Chains have a few kilobytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Certificates by the name that the client expects (SNI, RFC 6066), and one for clients that send no name, or one
/// without a certificate of its own.
type Certificates = HostMap<Arc<CertifiedKey>>;

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.find(|| hello.server_name().map(str::as_bytes)).cloned()
    }
}

/// Why clients refuse a certificate because of its dates; `--check` passed one that had expired.
pub fn expired(certificate: &Path) -> Option<String> {
    let text = twinring_input::read(certificate, FILE_BYTES_MAX).ok()?;
    let first = CertificateDer::pem_slice_iter(&text).next()?.ok()?;
    let first = webpki::EndEntityCert::try_from(&first).ok()?;
    // Without any issuer to trust, only the dates decide whether the reason is another one.
    let outcome = first.verify_for_usage(
        &[],
        &[],
        &[],
        UnixTime::now(),
        webpki::KeyUsage::server_auth(),
        None,
        None,
    );
    let why = match outcome.err()? {
        webpki::Error::CertExpired { .. } => "has expired",
        webpki::Error::CertNotValidYet { .. } => "is not valid yet",
        _ => return None,
    };
    Some(format!("the certificate in {} {why}", certificate.display()))
}

fn load(files: &CertificateFiles, provider: &CryptoProvider) -> Result<CertifiedKey, String> {
    let CertificateFiles { certificate, key } = files;
    let chain = read_pem("certificate", certificate, |text| {
        let chain = CertificateDer::pem_slice_iter(text).collect::<Result<Vec<_>, _>>()?;
        if chain.is_empty() { Err(pem::Error::NoItemsFound) } else { Ok(chain) }
    })?;
    let private = read_pem("private key", key, PrivateKeyDer::from_pem_slice)?;
    CertifiedKey::from_der(chain, private, provider).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            let why = format!("it is not that of the certificate in {}", certificate.display());
            unusable("private key", key, why)
        }
        rustls::Error::InvalidCertificate(why) => {
            let why = format!("{why:?}");
            let is_old = why.contains("UnsupportedCertVersion");
            let advice = "it is of an old version of X.509; make one with extensions, of version 3";
            unusable("certificate", certificate, if is_old { advice.into() } else { why })
        }
        error => unusable("private key", key, error.to_string()),
    })
}

fn unusable(what: &str, path: &Path, why: String) -> String {
    format!("cannot use the {what} in {}: {why}", path.display())
}

fn read_pem<T>(
    what: &str,
    path: &Path,
    parse: impl FnOnce(&[u8]) -> Result<T, pem::Error>,
) -> Result<T, String> {
    let text = twinring_input::read(path, FILE_BYTES_MAX);
    let text = text.map_err(|error| unusable(what, path, error.to_string()))?;
    parse(&text).map_err(|error| match error {
        pem::Error::NoItemsFound => unusable(what, path, "the file has none in PEM format".into()),
        error => unusable(what, path, error.to_string()),
    })
}

/// The server's end of one TLS connection, without its socket: converts between bytes of the network and plain text
/// of the peer. It holds at most one incomplete record (18 KiB; a handshake, 64 KiB), and
/// outgoing data until it is taken.
#[derive(Debug)]
pub(super) struct Encryption {
    connection: RefCell<ServerConnection>,
    pub(super) opened: RefCell<Vec<u8>>,
    pub(super) ended: Cell<bool>,
    /// What was taken for the network: encrypted, with handshake and tickets.
    pub(super) taken_bytes: Cell<u64>,
    /// The peer did not send TLS, and gets an alert.
    pub(super) failed: Cell<bool>,
}

impl Encryption {
    fn new(config: Arc<ServerConfig>) -> Result<Encryption, rustls::Error> {
        let mut connection = ServerConnection::new(config)?;
        // Input is taken out at once, so its bound is that of the caller.
        connection.set_buffer_limit(None);
        Ok(Encryption {
            connection: RefCell::new(connection),
            opened: RefCell::default(),
            ended: Cell::new(false),
            taken_bytes: Cell::new(0),
            failed: Cell::new(false),
        })
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.connection.borrow().is_handshaking()
    }

    pub(super) fn was_resumed(&self) -> bool {
        self.connection.borrow().handshake_kind() == Some(HandshakeKind::Resumed)
    }

    pub(super) fn speaks_http2(&self) -> bool {
        self.connection.borrow().alpn_protocol() == Some(HTTP_2)
    }

    /// Processes bytes of the network. After that there may be plain text in `opened`, and, also after an error, data
    /// to [`take`](Encryption::take).
    pub(super) fn open(&self, mut bytes: &[u8]) -> io::Result<()> {
        let mut connection = self.connection.borrow_mut();
        let mut opened = self.opened.borrow_mut();
        while !bytes.is_empty() && !self.ended.get() {
            // Fails only with full buffers, and those are emptied below.
            let read = connection.read_tls(&mut bytes)?;
            let state = connection.process_new_packets().map_err(io::Error::other)?;
            self.ended.set(state.peer_has_closed());
            // Fails when more must arrive.
            let _all = connection.reader().read_to_end(&mut opened);
            if read == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Encrypts bytes for the peer, for the next [`take`](Encryption::take).
    pub(super) fn put(&self, bytes: &[u8]) -> io::Result<()> {
        self.connection.borrow_mut().writer().write_all(bytes)
    }

    /// Announces the end of the data, unless an error must be reported or the handshake is
    /// incomplete.
    pub(super) fn put_end(&self) {
        if !self.failed.get() && !self.is_handshaking() {
            self.connection.borrow_mut().send_close_notify();
        }
    }

    pub(super) fn take(&self) -> io::Result<Vec<u8>> {
        let mut connection = self.connection.borrow_mut();
        let mut bytes = Vec::new();
        while connection.wants_write() {
            connection.write_tls(&mut bytes)?;
        }
        self.taken_bytes.set(self.taken_bytes.get() + bytes.len() as u64);
        Ok(bytes)
    }
}
