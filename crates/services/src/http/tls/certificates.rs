//! The certificates that a server shows, by host name, and their keys.

use super::{CertificateFiles, TlsSettings};
use crate::http::hosts::HostMap;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::error::Error;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

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

/// Selects a certificate by the name that the client expects (SNI, RFC 6066).
#[derive(Default)]
pub(super) struct Certificates {
    /// For clients that send no name, or one without a certificate of its own.
    default: Option<Arc<CertifiedKey>>,
    by_host: HostMap<Arc<CertifiedKey>>,
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates").finish_non_exhaustive()
    }
}

impl Certificates {
    pub(super) fn read(
        settings: &TlsSettings,
        provider: &CryptoProvider,
    ) -> Result<Certificates, TlsError> {
        let load =
            |files: &CertificateFiles| load(&files.certificate, &files.key, provider).map(Arc::new);
        let default = settings.default.as_ref().map(load).transpose()?;
        let mut certificates = Certificates { default, ..Certificates::default() };
        for (names, files) in &settings.hosts {
            let certificate = load(files)?;
            for name in names {
                if !certificates.by_host.add(name, Arc::clone(&certificate)) {
                    return Err(TlsError(format!("{name} has two certificates")));
                }
            }
        }
        Ok(certificates)
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let own = hello.server_name().and_then(|name| self.by_host.find(name.as_bytes()));
        own.or(self.default.as_ref()).map(Arc::clone)
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
        rustls::Error::InvalidCertificate(why) => {
            let why = match format!("{why:?}") {
                why if why.contains("UnsupportedCertVersion") => {
                    "it is of an old version of X.509; make one with extensions, of version 3"
                        .to_owned()
                }
                why => why,
            };
            wrong("certificate", certificate, &why)
        }
        error => wrong("private key", key, &error.to_string()),
    })
}
