//! `cargo run --manifest-path ecosystem/Cargo.toml --example tls_echo -- [auto|io_uring|epoll]`
//!
//! An echo over TLS, by tokio-rustls, with a certificate made for the occasion, and its client.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::rustls::pki_types::{PrivatePkcs8KeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use twinring::{Runtime, TcpListener, TcpStream};
use twinring_compat::Compat;

#[allow(dead_code, reason = "tests call `serve` and `say`")]
fn main() -> Result<(), Box<dyn Error>> {
    let engine = std::env::args().nth(1).unwrap_or("auto".into()).parse()?;
    let runtime = Runtime::builder().engine(engine).build()?;
    println!("engine: {}", runtime.features().engine());
    runtime.block_on(async {
        let (acceptor, connector) = identities()?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr();
        twinring::spawn(serve(listener, acceptor));
        let answer = say(address, &connector, b"hello over TLS").await?;
        println!("{}", String::from_utf8_lossy(&answer));
        Ok(())
    })?
}

/// A server with a new certificate for `localhost`, and a client that trusts only this one.
pub(crate) fn identities() -> Result<(TlsAcceptor, TlsConnector), Box<dyn Error>> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let certificate = made.cert.der().clone();
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let server = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key.into())?;
    let mut roots = RootCertStore::empty();
    roots.add(certificate)?;
    let client = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    Ok((TlsAcceptor::from(Arc::new(server)), TlsConnector::from(Arc::new(client))))
}

/// Echoes on each connection until its client closes it.
pub(crate) async fn serve(listener: TcpListener, acceptor: TlsAcceptor) -> io::Result<()> {
    loop {
        let stream = Compat::new(listener.accept().await?);
        let acceptor = acceptor.clone();
        twinring::spawn(async move {
            let echoed = async {
                let (mut reader, mut writer) = tokio::io::split(acceptor.accept(stream).await?);
                tokio::io::copy(&mut reader, &mut writer).await?;
                writer.shutdown().await
            };
            if let Err(error) = echoed.await {
                eprintln!("connection: {error}");
            }
        });
    }
}

/// Sends `bytes`, closes its half, and returns what comes back.
pub(crate) async fn say(
    address: SocketAddr,
    connector: &TlsConnector,
    bytes: &[u8],
) -> io::Result<Vec<u8>> {
    let stream = Compat::new(TcpStream::connect(address).await?);
    let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
    let stream = connector.connect(name, stream).await?;
    let (mut reader, mut writer) = tokio::io::split(stream);
    let send = async {
        writer.write_all(bytes).await?;
        writer.shutdown().await
    };
    let mut answer = Vec::new();
    let (sent, read) = futures_util::join!(send, reader.read_to_end(&mut answer));
    sent?;
    read?;
    Ok(answer)
}
