//! The client's side of TLS: rustls between a connection and its requests.

use clap::Args;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct,
    Error, HandshakeKind, InvalidMessage, OtherError, RootCertStore, SignatureScheme,
};
use std::fmt::Display;
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The largest file of certificates that is read, in bytes.
const CA_BYTES_MAX: u64 = 16 << 20;

/// The ALPN names of the protocols (RFC 7301).
const HTTP_1_1: &[u8] = b"http/1.1";
const HTTP_2: &[u8] = b"h2";

/// The TLS settings of a load.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
#[command(next_help_heading = "TLS")]
pub struct TlsSettings {
    /// Certificates to trust, as PEM, instead of those of the system.
    #[arg(long = "tls-ca", value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Accept any certificate.
    #[arg(short = 'k', long, conflicts_with = "ca")]
    pub insecure: bool,
    /// Never resume a TLS session.
    #[arg(long = "tls-full-handshake")]
    pub full_handshake: bool,
}

#[derive(Clone, Debug)]
pub(super) struct TlsClient {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl TlsClient {
    pub(super) fn new(
        settings: &TlsSettings,
        host: &str,
        http2: bool,
    ) -> Result<TlsClient, String> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| format!("{host} is not a valid name for a certificate"))?;
        let provider = Arc::new(aws_lc_rs::default_provider());
        let algorithms = provider.signature_verification_algorithms;
        let builder = ClientConfig::builder_with_provider(Arc::<CryptoProvider>::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("TLS: {error}"))?;
        let mut config = if settings.insecure {
            let verifier = Arc::new(AnyCertificate(algorithms));
            builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth()
        } else {
            let roots = trusted(settings.ca.as_deref())?;
            builder.with_root_certificates(roots).with_no_client_auth()
        };
        config.alpn_protocols = vec![if http2 { HTTP_2 } else { HTTP_1_1 }.to_vec()];
        if settings.full_handshake {
            config.resumption = Resumption::disabled();
        }
        Ok(TlsClient { config: Arc::new(config), name })
    }

    /// Makes the calling thread ready for handshakes: the first random numbers of a thread take tens of milliseconds,
    /// which would count as the server's.
    pub(super) fn warm_up(&self) -> io::Result<()> {
        let random = self.config.crypto_provider().secure_random;
        random.fill(&mut [0; 32]).map_err(|_| io::Error::other("no random numbers"))?;
        // Makes a key share, as each handshake does.
        self.session()?.pending().map(drop)
    }

    pub(super) fn session(&self) -> io::Result<TlsSession> {
        let mut client = ClientConnection::new(Arc::clone(&self.config), self.name.clone())
            .map_err(io::Error::other)?;
        // Data has a bound already: a batch of requests, or one with its body.
        client.set_buffer_limit(None);
        Ok(TlsSession { client, ended: false })
    }
}

/// The certificates of `ca`, or those that the system trusts.
fn trusted(ca: Option<&Path>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let Some(path) = ca else {
        // SSL_CERT_FILE and SSL_CERT_DIR if set, else the usual places. What cannot be read is passed over.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return match roots.is_empty() {
            true => Err("the system trusts no certificate; name one with --tls-ca FILE, or check none with --insecure"
                .to_owned()),
            false => Ok(roots),
        };
    };
    let failed = |why: &dyn Display| format!("--tls-ca {}: {why}", path.display());
    let text = twinring_input::read(path, CA_BYTES_MAX).map_err(|error| failed(&error))?;
    for certificate in CertificateDer::pem_slice_iter(&text) {
        let certificate = certificate.map_err(|error| failed(&error))?;
        roots.add(certificate).map_err(|error| failed(&error))?;
    }
    match roots.is_empty() {
        true => Err(failed(&"has no certificate in PEM format")),
        false => Ok(roots),
    }
}

#[derive(Debug)]
pub(super) struct TlsSession {
    pub(super) client: ClientConnection,
    /// The server has sent close_notify.
    pub(super) ended: bool,
}

impl TlsSession {
    pub(super) fn is_http2(&self) -> bool {
        self.client.alpn_protocol() == Some(HTTP_2)
    }

    pub(super) fn is_resumed(&self) -> bool {
        self.client.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// Protocol and cipher suite.
    pub(super) fn agreed(&self) -> [String; 2] {
        let protocol = self.client.protocol_version().and_then(|version| version.as_str());
        let suite = self.client.negotiated_cipher_suite().and_then(|s| s.suite().as_str());
        let name = |name: Option<&str>| name.unwrap_or("unknown").to_owned();
        [name(protocol).replace('_', "."), name(suite)]
    }

    /// Decrypts bytes of the connection, and passes on the plain text.
    pub(super) fn decrypt<E: From<io::Error>>(
        &mut self,
        mut bytes: &[u8],
        mut plain: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        while !bytes.is_empty() && !self.ended {
            self.client.read_tls(&mut bytes)?;
            let handshaking = self.client.is_handshaking();
            let state =
                self.client.process_new_packets().map_err(|error| invalid(error, handshaking))?;
            self.ended = state.peer_has_closed();
            loop {
                let mut reader = self.client.reader();
                let chunk = match reader.fill_buf() {
                    Ok([]) => break,
                    Ok(chunk) => chunk,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error.into()),
                };
                let length = chunk.len();
                plain(chunk)?;
                self.client.reader().consume(length);
            }
        }
        Ok(())
    }

    /// Encrypts `plain` for the connection, behind pending output of TLS itself.
    pub(super) fn encrypt(&mut self, plain: &[u8]) -> io::Result<Vec<u8>> {
        self.client.writer().write_all(plain)?;
        self.pending()
    }

    /// Pending output of TLS itself.
    pub(super) fn pending(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        while self.client.wants_write() {
            self.client.write_tls(&mut bytes)?;
        }
        Ok(bytes)
    }
}

fn invalid(error: Error, handshaking: bool) -> io::Error {
    // webpki's own errors have no type here that could be matched.
    let is_ca = |error: &OtherError| format!("{:?}", error.0) == "CaUsedAsEndEntity";
    let advice = match &error {
        Error::AlertReceived(AlertDescription::NoApplicationProtocol) => Some(
            "the server offers no protocol that this client asks for (ALPN): with --http2 it must \
             offer h2, without it http/1.1",
        ),
        Error::InvalidMessage(InvalidMessage::InvalidContentType) if handshaking => Some(
            "the server does not speak TLS on this port: take http:// instead of https://, or the \
             port of its TLS",
        ),
        Error::InvalidCertificate(CertificateError::Other(other)) if is_ca(other) => Some(
            "the server shows a CA certificate (CA:TRUE), as `openssl req -x509` makes them: make \
             one with `-addext basicConstraints=critical,CA:FALSE`, or check none with --insecure",
        ),
        _ => None,
    };
    match advice {
        Some(advice) => io::Error::new(io::ErrorKind::InvalidData, advice),
        None => io::Error::new(io::ErrorKind::InvalidData, error),
    }
}

/// Accepts any certificate, but still requires the server to have its key.
#[derive(Debug)]
struct AnyCertificate(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signed, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signed, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
