//! The certificate that a server shows, and its key: read from files, and replaced while it runs.

use super::TlsSettings;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

/// The longest file that is read. Chains have a few kilobytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Why TLS cannot be set up as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsError(String);

impl TlsError {
    pub(super) fn new(why: String) -> TlsError {
        TlsError(why)
    }
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for TlsError {}

/// Selects a certificate: currently the same for all clients. A selection by host name would go
/// into [`resolve`](ResolvesServerCert::resolve).
pub(super) struct Certificates {
    certificate: PathBuf,
    key: PathBuf,
    provider: Arc<CryptoProvider>,
    current: RwLock<Arc<CertifiedKey>>,
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files = (&self.certificate, &self.key);
        f.debug_struct("Certificates").field("files", &files).finish_non_exhaustive()
    }
}

impl Certificates {
    pub(super) fn read(
        settings: &TlsSettings,
        provider: Arc<CryptoProvider>,
    ) -> Result<Certificates, TlsError> {
        let TlsSettings { certificate, key, .. } = settings.clone();
        let current = RwLock::new(Arc::new(load(&certificate, &key, &provider)?));
        Ok(Certificates { certificate, key, provider, current })
    }

    /// Loads the current content of the files; keeps the previous one if that fails.
    pub(super) fn reload(&self) -> Result<(), TlsError> {
        let new = load(&self.certificate, &self.key, &self.provider)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(new);
        Ok(())
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

fn load(
    certificate: &Path,
    key: &Path,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, TlsError> {
    let wrong = |what: &str, path: &Path, why: &str| {
        TlsError(format!("cannot use the {what} in {}: {why}", path.display()))
    };
    let bad_pem = |error: pem::Error| match error {
        pem::Error::NoItemsFound => "the file has none in PEM format".to_owned(),
        error => error.to_string(),
    };
    let read = |what: &str, path: &Path| {
        twinring_input::read(path, FILE_BYTES_MAX)
            .map_err(|error| wrong(what, path, &error.to_string()))
    };
    let text = read("certificate", certificate)?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let chain = chain.map_err(|error| wrong("certificate", certificate, &bad_pem(error)))?;
    if chain.is_empty() {
        return Err(wrong("certificate", certificate, "the file has none in PEM format"));
    }
    let text = read("private key", key)?;
    let private = PrivateKeyDer::from_pem_slice(&text);
    let private = private.map_err(|error| wrong("private key", key, &bad_pem(error)))?;
    CertifiedKey::from_der(chain, private, provider).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            let why = format!("it is not that of the certificate in {}", certificate.display());
            wrong("private key", key, &why)
        }
        rustls::Error::InvalidCertificate(_) => {
            wrong("certificate", certificate, &error.to_string())
        }
        error => wrong("private key", key, &error.to_string()),
    })
}
