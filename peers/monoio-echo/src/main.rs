//! TCP echo on monoio, io_uring driver only: one task and one owned buffer per connection.

use std::io;
use std::process::ExitCode;

use clap::Parser;
use monoio::io::{AsyncReadRent, AsyncWriteRentExt};
use monoio::net::{TcpListener, TcpStream};
use monoio::{IoUringDriver, RuntimeBuilder};
use peer_common::{ACCEPT_RETRY, COMPLETION_ENTRIES, Common, OWN_BUFFER_BYTES, SUBMISSION_ENTRIES};

const NAME: &str = "monoio-echo";

/// TCP echo server on monoio.
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
    let mut ring = io_uring::IoUring::builder();
    ring.setup_cqsize(COMPLETION_ENTRIES).setup_single_issuer().setup_defer_taskrun();
    let mut runtime = RuntimeBuilder::<IoUringDriver>::new()
        .with_entries(SUBMISSION_ENTRIES)
        .uring_builder(ring)
        .enable_timer()
        .build()
        .map_err(|error| peer_common::context("cannot set up io_uring", error))?;
    runtime.block_on(serve(listener, options.buffer_bytes_or(OWN_BUFFER_BYTES)))
}

async fn serve(listener: std::net::TcpListener, buffer_bytes: usize) -> io::Result<()> {
    peer_common::announce(NAME, &listener)?;
    let listener = TcpListener::from_std(listener)?;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // A connection's own error ends that connection and nothing else.
                monoio::spawn(async move {
                    let _ = echo(stream, buffer_bytes).await;
                });
            }
            Err(error) if peer_common::out_of_resources(&error) => {
                monoio::time::sleep(ACCEPT_RETRY).await;
            }
            // Errors of a connection that died in the backlog: accept(2) says to go on.
            Err(_) => {}
        }
    }
}

async fn echo(mut stream: TcpStream, buffer_bytes: usize) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(buffer_bytes);
    loop {
        let (received, filled) = stream.read(buffer).await;
        if received? == 0 {
            return Ok(());
        }
        let (sent, returned) = stream.write_all(filled).await;
        sent?;
        buffer = returned;
        buffer.clear();
    }
}
