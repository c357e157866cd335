//! `cargo run --manifest-path ecosystem/Cargo.toml --example postgres_client -- [auto|io_uring|epoll] [ADDRESS]`
//!
//! Queries by tokio-postgres, many at once on one connection. Without an address (of a server that
//! asks for no password), a server in this program answers each query with its text.

use futures_util::future::try_join_all;
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_postgres::{NoTls, SimpleQueryMessage};
use twinring::{Runtime, TcpListener, TcpStream};
use twinring_compat::Compat;

/// Bytes of the longest message that the server reads.
const MESSAGE_BYTES_MAX: u64 = 64 * 1024;

#[allow(dead_code, reason = "tests call `serve` and `ask`")]
fn main() -> Result<(), Box<dyn Error>> {
    let engine = std::env::args().nth(1).unwrap_or("auto".into()).parse()?;
    let address = std::env::args().nth(2).map(|address| address.parse()).transpose()?;
    Runtime::builder().engine(engine).build()?.block_on(async move {
        let address = match address {
            Some(address) => address,
            None => {
                let listener = TcpListener::bind("127.0.0.1:0")?;
                let address = listener.local_addr();
                twinring::spawn(serve(listener));
                address
            }
        };
        let queries = ["SELECT 1", "SELECT 2", "SELECT 3"].map(str::to_owned);
        println!("{:?}", ask(address, &queries).await?);
        Ok(())
    })?
}

/// Sends all queries at once, and returns the first value of each row.
pub(crate) async fn ask(
    address: SocketAddr,
    queries: &[String],
) -> Result<Vec<String>, Box<dyn Error>> {
    let stream = Compat::new(TcpStream::connect(address).await?);
    let mut config = tokio_postgres::Config::new();
    let (client, connection) = config.user("postgres").connect_raw(stream, NoTls).await?;
    let connection = twinring::spawn(connection);
    let answers = try_join_all(queries.iter().map(|query| client.simple_query(query))).await?;
    let value = |message: &SimpleQueryMessage| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    };
    let values = answers.iter().flatten().filter_map(value).collect();
    drop(client);
    connection.await??;
    Ok(values)
}

/// A server that answers each query with its text.
pub(crate) async fn serve(listener: TcpListener) -> io::Result<()> {
    loop {
        let stream = Compat::new(listener.accept().await?);
        twinring::spawn(async move {
            if let Err(error) = serve_queries(stream).await {
                eprintln!("connection: {error}");
            }
        });
    }
}

async fn serve_queries(mut stream: Compat<TcpStream>) -> io::Result<()> {
    let _startup = read_body(&mut stream).await?;
    let ready = message(b'Z', &[b"I"]);
    stream.write_all(&[message(b'R', &[&[0; 4]]), ready.clone()].concat()).await?;
    while let Ok(kind) = stream.read_u8().await {
        let body = read_body(&mut stream).await?;
        match (kind, body.strip_suffix(&[0])) {
            (b'Q', Some(text)) => {
                // One column, named "query", of the type text (25).
                let column: &[u8] =
                    b"\0\x01query\0\0\0\0\0\0\0\0\0\0\x19\xff\xff\xff\xff\xff\xff\0\0";
                let length = (text.len() as u32).to_be_bytes();
                let answer = [
                    message(b'T', &[column]),
                    message(b'D', &[&[0, 1], &length, text]),
                    message(b'C', &[b"SELECT 1\0"]),
                    ready.clone(),
                ];
                stream.write_all(&answer.concat()).await?;
            }
            (b'X', _) => break,
            _ => return Err(io::ErrorKind::Unsupported.into()),
        }
    }
    stream.shutdown().await
}

fn message(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    [&[kind], &(body.len() as u32 + 4).to_be_bytes()[..], &body].concat()
}

async fn read_body(stream: &mut Compat<TcpStream>) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    let bytes = u64::from(stream.read_u32().await?.saturating_sub(4));
    stream.take(bytes.min(MESSAGE_BYTES_MAX)).read_to_end(&mut body).await?;
    Ok(body)
}
