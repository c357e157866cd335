//! TLS 1.2 and 1.3: the state that the connections of a service share. `certificates` has the
//! certificates, `encryption` the state of one connection; transport is the task of `connection`.

mod certificates;
mod encryption;

pub use certificates::{TlsError, expired};

pub(super) use encryption::Encryption;

use super::hosts::HostName;
use certificates::Certificates;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::ProducesTickets;
use rustls::version::{TLS12, TLS13};
use rustls::{ServerConfig, SupportedProtocolVersion};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, PoisonError, RwLock};

/// The ALPN names of the protocols (RFC 7301).
const HTTP_1_1: &[u8] = b"http/1.1";
const HTTP_2: &[u8] = b"h2";

/// The oldest version of TLS that clients may speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MinVersion {
    /// TLS 1.2.
    #[default]
    Tls12,
    /// TLS 1.3.
    Tls13,
}

impl MinVersion {
    fn versions(self) -> Vec<&'static SupportedProtocolVersion> {
        match self {
            MinVersion::Tls12 => vec![&TLS13, &TLS12],
            MinVersion::Tls13 => vec![&TLS13],
        }
    }
}

impl FromStr for MinVersion {
    type Err = String;

    fn from_str(text: &str) -> Result<MinVersion, String> {
        match text {
            "1.2" => Ok(MinVersion::Tls12),
            "1.3" => Ok(MinVersion::Tls13),
            _ => Err("expected 1.2 or 1.3".to_owned()),
        }
    }
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
    /// For clients that send no host name, or one that has no certificate of its own. Without it,
    /// their handshakes fail.
    pub default: Option<CertificateFiles>,
    /// Certificates of hosts.
    pub hosts: Vec<(Vec<HostName>, CertificateFiles)>,
    /// See there.
    pub min_version: MinVersion,
    /// Offer HTTP/2 too, and prefer it.
    pub http2: bool,
}

/// TLS for the connections of a service, of all workers. Cheap to clone.
#[derive(Clone)]
pub struct Tls(Arc<Shared>);

struct Shared {
    /// Tickets stay valid when certificates are replaced.
    ticketer: Arc<dyn ProducesTickets>,
    current: RwLock<Arc<ServerConfig>>,
}

/// Certificates that were read and checked, and are not in use yet.
#[derive(Debug)]
pub struct TlsUpdate(Arc<ServerConfig>);

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads certificates and keys. Sessions are resumed by tickets, so the server stores no
    /// sessions; the ticket keys exist in this process only, and change every six hours.
    ///
    /// # Errors
    /// When a file cannot be read or has no usable content, or when the key does not match the
    /// certificate; the message names the file.
    pub fn new(settings: &TlsSettings) -> Result<Tls, TlsError> {
        let ticketer = aws_lc_rs::Ticketer::new().map_err(not_set_up)?;
        let TlsUpdate(config) = configure(settings, &ticketer)?;
        Ok(Tls(Arc::new(Shared { ticketer, current: RwLock::new(config) })))
    }

    /// Reads certificates and keys again, without using them. Blocks on the filesystem: for ever,
    /// if it does not answer.
    ///
    /// # Errors
    /// As [`new`](Tls::new).
    pub fn load(&self, settings: &TlsSettings) -> Result<TlsUpdate, TlsError> {
        configure(settings, &self.0.ticketer)
    }

    /// Uses an update for new connections.
    pub fn install(&self, TlsUpdate(config): TlsUpdate) {
        *self.0.current.write().unwrap_or_else(PoisonError::into_inner) = config;
    }

    /// The server's end of a new connection.
    pub(super) fn accept(&self) -> Result<Encryption, rustls::Error> {
        let current = self.0.current.read().unwrap_or_else(PoisonError::into_inner);
        Encryption::new(Arc::clone(&current))
    }
}

fn configure(
    settings: &TlsSettings,
    ticketer: &Arc<dyn ProducesTickets>,
) -> Result<TlsUpdate, TlsError> {
    let provider = Arc::new(provider());
    let certificates = Certificates::read(settings, &provider)?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&settings.min_version.versions())
        .map_err(not_set_up)?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(certificates));
    let protocols = [settings.http2.then_some(HTTP_2), Some(HTTP_1_1)];
    config.alpn_protocols = protocols.into_iter().flatten().map(<[u8]>::to_vec).collect();
    config.ticketer = Arc::clone(ticketer);
    Ok(TlsUpdate(Arc::new(config)))
}

fn not_set_up(error: rustls::Error) -> TlsError {
    TlsError::new(format!("cannot set up TLS: {error}"))
}

/// The cryptographic implementation. aws-lc-rs is the default of rustls, uses CPU features (vector
/// AES), and builds with a C compiler only.
fn provider() -> CryptoProvider {
    aws_lc_rs::default_provider()
}
