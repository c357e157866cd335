//! TCP echo on tokio: current-thread runtime, one task and one buffer per connection.

use std::io;
use std::process::ExitCode;

use clap::Parser;
use peer_common::{ACCEPT_RETRY, Common};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const NAME: &str = "tokio-echo";

/// Larger than the 16 KB messages of the comparison: tokio takes a read that does not fill the
/// buffer as "drained" and saves the `recv` that would return EAGAIN.
const DEFAULT_BUFFER_BYTES: u32 = 32 * 1024;

/// TCP echo server on tokio.
#[derive(Parser)]
#[command(name = NAME, version)]
struct Options {
    #[command(flatten)]
    common: Common,
}

fn main() -> ExitCode {
    peer_common::finish(NAME, run(&Options::parse().common))
}

fn run(options: &Common) -> io::Result<()> {
    let listener = peer_common::start(options)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(listener, options.buffer_bytes_or(DEFAULT_BUFFER_BYTES)))
}

async fn serve(listener: std::net::TcpListener, buffer_bytes: usize) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    peer_common::announce(NAME, &listener)?;
    let listener = TcpListener::from_std(listener)?;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // A connection's own error ends that connection and nothing else.
                tokio::spawn(async move {
                    let _ = echo(stream, buffer_bytes).await;
                });
            }
            Err(error) if peer_common::out_of_resources(&error) => {
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
            // Errors of a connection that died in the backlog: accept(2) says to go on.
            Err(_) => {}
        }
    }
}

async fn echo(mut stream: TcpStream, buffer_bytes: usize) -> io::Result<()> {
    // Not initialised: only the part that is used is ever touched, and takes memory.
    let mut buffer = Vec::with_capacity(buffer_bytes);
    while stream.read_buf(&mut buffer).await? > 0 {
        stream.write_all(&buffer).await?;
        buffer.clear();
    }
    Ok(())
}
