//! `cargo run --manifest-path ecosystem/Cargo.toml --example quic_echo -- [auto|io_uring|epoll]`
//!
//! An echo over QUIC, by quinn, with a certificate made for the occasion, and its client: each
//! stream of a connection is answered with the same bytes.

use quinn::crypto::rustls::QuicServerConfig;
use quinn::rustls::RootCertStore;
use quinn::rustls::pki_types::PrivatePkcs8KeyDer;
use quinn::{ClientConfig, Connection, ConnectionError, Endpoint, EndpointConfig, ServerConfig};
use std::error::Error;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use twinring::Runtime;
use twinring_quinn::QuicRuntime;

/// The longest stream that is echoed.
const STREAM_BYTES_MAX: usize = 16 << 20;

#[allow(dead_code, reason = "tests call `serve` and `say`")]
fn main() -> Result<(), Box<dyn Error>> {
    let engine = std::env::args().nth(1).unwrap_or("auto".into()).parse()?;
    let runtime = Runtime::builder().engine(engine).build()?;
    println!("engine: {}", runtime.features().engine());
    runtime.block_on(async {
        let (server, client) = endpoints()?;
        let address = server.local_addr()?;
        twinring::spawn(serve(server));
        let connection = client.connect(address, "localhost")?.await?;
        for text in ["hello over QUIC", "and once more, on a stream of its own"] {
            let answer = say(&connection, text.as_bytes()).await?;
            println!("{}", String::from_utf8_lossy(&answer));
        }
        connection.close(0u32.into(), b"done");
        client.wait_idle().await;
        Ok(())
    })?
}

/// A server with a new certificate for `localhost`, and a client that trusts only this one.
pub(crate) fn endpoints() -> Result<(Endpoint, Endpoint), Box<dyn Error>> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let certificate = made.cert.der().clone();
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let tls = quinn::rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key.into())?;
    let config = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls)?));
    let server = endpoint(Some(config))?;
    let mut roots = RootCertStore::empty();
    roots.add(certificate)?;
    let mut client = endpoint(None)?;
    client.set_default_client_config(ClientConfig::with_root_certificates(Arc::new(roots))?);
    Ok((server, client))
}

fn endpoint(config: Option<ServerConfig>) -> std::io::Result<Endpoint> {
    let socket = UdpSocket::bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    Endpoint::new(EndpointConfig::default(), config, socket, Arc::new(QuicRuntime))
}

/// Echoes each stream of each connection.
pub(crate) async fn serve(server: Endpoint) {
    while let Some(incoming) = server.accept().await {
        twinring::spawn(async move {
            let echoed = async {
                let connection = incoming.await?;
                loop {
                    let (mut answer, mut question) = connection.accept_bi().await?;
                    twinring::spawn(async move {
                        let bytes = question.read_to_end(STREAM_BYTES_MAX).await?;
                        answer.write_all(&bytes).await?;
                        answer.finish()?;
                        Ok::<(), Box<dyn Error>>(())
                    });
                }
            };
            let ended: Result<(), Box<dyn Error>> = echoed.await;
            if let Err(error) = ended
                && !matches!(error.downcast_ref(), Some(ConnectionError::ApplicationClosed(_)))
            {
                eprintln!("connection: {error}");
            }
        });
    }
}

/// Sends `bytes` on a new stream, and returns what comes back.
pub(crate) async fn say(connection: &Connection, bytes: &[u8]) -> Result<Vec<u8>, Box<dyn Error>> {
    let (mut question, mut answer) = connection.open_bi().await?;
    let send = async {
        question.write_all(bytes).await?;
        question.finish()?;
        Ok::<(), Box<dyn Error>>(())
    };
    let (sent, read) = futures_util::join!(send, answer.read_to_end(STREAM_BYTES_MAX));
    sent?;
    Ok(read?)
}
