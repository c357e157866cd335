//! Certificates made for a test, and clients that speak TLS with control over every byte.

use super::http::Site;
use super::*;
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion,
};
use std::io;
use twinring_lab::certificate::SelfSigned;

pub(crate) type Client = StreamOwned<ClientConnection, TcpStream>;

pub(crate) const VERSIONS: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];

/// A certificate for `localhost` and its key, in files.
pub(crate) struct Identity {
    name: &'static str,
    certificate: String,
    key: String,
    _directory: tempfile::TempDir,
}

impl Identity {
    pub(crate) fn new() -> Identity {
        Identity::of("localhost")
    }

    /// The same for another host.
    pub(crate) fn of(name: &'static str) -> Identity {
        let directory = tempfile::tempdir().expect("a directory for temporary files");
        let [certificate, key] = ["cert.pem", "key.pem"]
            .map(|name| directory.path().join(name).to_str().expect("UTF-8").to_owned());
        let identity = Identity { name, certificate, key, _directory: directory };
        identity.renew();
        identity
    }

    pub(crate) fn certificate(&self) -> PathBuf {
        self.certificate.as_str().into()
    }

    pub(crate) fn key(&self) -> PathBuf {
        self.key.as_str().into()
    }

    /// Puts another certificate and key into the files.
    pub(crate) fn renew(&self) {
        let names = vec![self.name.to_owned()];
        let made = SelfSigned::server(names).expect("a certificate");
        fs::write(self.certificate(), made.certificate).expect("a file");
        fs::write(self.key(), made.key).expect("a file");
    }

    /// The arguments that serve it on a further free port.
    pub(crate) fn arguments(&self) -> [&str; 6] {
        let [certificate, key] = [&*self.certificate, &*self.key];
        ["--listen-tls", "127.0.0.1:0", "--tls-cert", certificate, "--tls-key", key]
    }

    /// The configuration of a client that trusts the certificate now in the file.
    pub(crate) fn trust(&self, versions: &[&'static SupportedProtocolVersion]) -> ClientConfig {
        let certificate = CertificateDer::from_pem_file(self.certificate()).expect("a certificate");
        let mut roots = RootCertStore::empty();
        roots.add(certificate).expect("a certificate");
        let mut config =
            ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
                .with_protocol_versions(versions)
                .expect("versions that exist")
                .with_root_certificates(roots)
                .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.resumption = Resumption::disabled();
        config
    }
}

/// `twinring serve http` on two free ports, without TLS on the first and with it on the second.
pub(crate) fn serve(engine: &str, site: &Path, identity: &Identity, more: &[&str]) -> Server {
    Server::http(engine, site, &[&identity.arguments(), more].concat())
}

/// The address where TLS is spoken.
pub(crate) fn encrypted(server: &Server) -> SocketAddr {
    server.addresses()[1]
}

/// A connection that has shaken hands.
pub(crate) fn secure(address: SocketAddr, config: &Arc<ClientConfig>) -> io::Result<Client> {
    secure_for("localhost", connect(address), config)
}

/// The same, with a host name that the server is told and its certificate must have.
pub(crate) fn secure_for(
    host: &'static str,
    stream: TcpStream,
    config: &Arc<ClientConfig>,
) -> io::Result<Client> {
    let name = ServerName::try_from(host).expect("a name");
    let connection = ClientConnection::new(Arc::clone(config), name).expect("a configuration");
    let mut client = StreamOwned::new(connection, stream);
    while client.conn.is_handshaking() {
        client.conn.complete_io(&mut client.sock)?;
    }
    Ok(client)
}

/// Sends close_notify.
pub(crate) fn end(client: &mut Client) {
    client.conn.send_close_notify();
    while client.conn.wants_write() {
        client.conn.write_tls(&mut client.sock).expect("the server reads");
    }
}

/// Sends `bytes` and close_notify, and returns all received data until the server's close_notify;
/// an end without that is an error.
pub(crate) fn talk_secure(
    address: SocketAddr,
    config: &Arc<ClientConfig>,
    text: &str,
) -> io::Result<Vec<u8>> {
    let mut client = secure(address, config)?;
    client.write_all(text.as_bytes())?;
    end(&mut client);
    let mut answers = Vec::new();
    client.read_to_end(&mut answers)?;
    Ok(answers)
}

/// The usual site, an identity, and a server of both.
pub(crate) fn usual(engine: &str, more: &[&str]) -> (Site, Identity, Server) {
    let (site, identity) = (Site::usual(), Identity::new());
    let server = serve(engine, site.path(), &identity, more);
    (site, identity, server)
}
