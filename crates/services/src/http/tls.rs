//! TLS 1.2 and 1.3: the state that the connections of a service share. `certificates` has the
//! certificates, `encryption` the state of one connection; transport is the task of `connection`.

mod certificates;
mod encryption;

pub use certificates::TlsError;

pub(super) use encryption::Encryption;

use certificates::Certificates;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::version::{TLS12, TLS13};
use rustls::{ServerConfig, SupportedProtocolVersion};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// The ALPN name of the protocol that is served.
const PROTOCOL: &[u8] = b"http/1.1";

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

/// How TLS is set up.
#[derive(Clone, Debug)]
pub struct TlsSettings {
    /// PEM file with the certificate of the server, followed by its chain to one that clients
    /// trust.
    pub certificate: PathBuf,
    /// PEM file with the private key of the first certificate.
    pub key: PathBuf,
    /// See there.
    pub min_version: MinVersion,
}

/// TLS for the connections of a service, of all workers. Cheap to clone.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ServerConfig>,
    certificates: Arc<Certificates>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("certificates", &self.certificates).finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads certificate and key. Sessions are resumed by tickets, so the server stores no
    /// sessions; the ticket keys exist in this process only, and change every six hours.
    ///
    /// # Errors
    /// When a file cannot be read or has no usable content, or when the key does not match the
    /// certificate; the message names the file.
    pub fn new(settings: &TlsSettings) -> Result<Tls, TlsError> {
        let provider = Arc::new(provider());
        let certificates = Certificates::read(settings, Arc::clone(&provider))?;
        let certificates = Arc::new(certificates);
        let wrong = |error| TlsError::new(format!("cannot set up TLS: {error}"));
        let resolver = Arc::clone(&certificates);
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&settings.min_version.versions())
            .map_err(wrong)?
            .with_no_client_auth()
            .with_cert_resolver(resolver);
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        config.ticketer = aws_lc_rs::Ticketer::new().map_err(wrong)?;
        Ok(Tls { config: Arc::new(config), certificates })
    }

    /// Reads certificate and key again, for new connections. Blocks on the filesystem: for ever, if
    /// it does not answer.
    ///
    /// # Errors
    /// As [`new`](Tls::new); the previous ones then stay in use.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.certificates.reload()
    }

    /// The server's end of a new connection.
    pub(super) fn accept(&self) -> Result<Encryption, rustls::Error> {
        Encryption::new(Arc::clone(&self.config))
    }
}

/// The cryptographic implementation. aws-lc-rs is the default of rustls, uses CPU features (vector
/// AES), and builds with a C compiler only.
fn provider() -> CryptoProvider {
    aws_lc_rs::default_provider()
}
