//! TCP echo on compio, io_uring driver only: one task per connection, two ways to receive.

use std::io;
use std::num::NonZeroU16;
use std::pin::pin;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use compio::buf::BufResult;
use compio::driver::{DriverType, ProactorBuilder};
use compio::io::{AsyncRead, AsyncReadMulti, AsyncWriteExt};
use compio::net::{TcpListener, TcpStream};
use compio::runtime::RuntimeBuilder;
use futures_util::StreamExt;
use peer_common::{ACCEPT_RETRY, COMPLETION_ENTRIES, Common, OWN_BUFFER_BYTES, SUBMISSION_ENTRIES};

const NAME: &str = "compio-echo";

/// A buffer of the pool holds a whole 16 KB message: compio sends each buffer on its own, so that a
/// message in several of them costs several sends.
const DEFAULT_POOLED_BUFFER_BYTES: u32 = 16 * 1024;

/// TCP echo server on compio.
#[derive(Parser)]
#[command(name = NAME, version)]
struct Options {
    #[command(flatten)]
    common: Common,

    /// How to receive.
    #[arg(long, value_enum, default_value_t = Receive::Multishot)]
    recv: Receive,

    /// Buffers in the pool that `multishot` receives into, rounded up to a power of
    /// two. Fewer than twice the connections is slow: receives that find the pool empty fail.
    #[arg(long, default_value = "512", value_name = "COUNT")]
    buffers: NonZeroU16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Receive {
    /// One multishot receive per connection into the runtime's buffer pool.
    Multishot,
    /// One receive per message into the connection's own buffer.
    Owned,
}

fn main() -> ExitCode {
    peer_common::finish(NAME, run(&Options::parse()))
}

fn run(options: &Options) -> io::Result<()> {
    let listener = peer_common::start(&options.common)?;
    let buffer_bytes = options.common.buffer_bytes_or(match options.recv {
        Receive::Multishot => DEFAULT_POOLED_BUFFER_BYTES,
        Receive::Owned => OWN_BUFFER_BYTES,
    });
    let mut ring = ProactorBuilder::new();
    ring.driver_type(DriverType::IoUring)
        .capacity(SUBMISSION_ENTRIES)
        .cqsize(COMPLETION_ENTRIES)
        .single_issuer(true)
        .defer_taskrun(true)
        .buffer_pool_size(options.buffers)
        .buffer_pool_buffer_len(buffer_bytes);
    let runtime = RuntimeBuilder::new()
        .with_proactor(ring)
        .build()
        .map_err(|error| peer_common::context("cannot set up io_uring", error))?;
    runtime.block_on(serve(listener, options.recv, buffer_bytes))
}

async fn serve(
    listener: std::net::TcpListener,
    receive: Receive,
    buffer_bytes: usize,
) -> io::Result<()> {
    peer_common::announce(NAME, &listener)?;
    let listener = TcpListener::from_std(listener)?;
    let mut incoming = listener.incoming();
    loop {
        match incoming.next().await {
            Some(Ok(stream)) => {
                // An error of a connection ends only that connection.
                compio::runtime::spawn(async move {
                    let _ = echo(stream, receive, buffer_bytes).await;
                })
                .detach();
            }
            Some(Err(error)) if peer_common::out_of_resources(&error) => {
                compio::time::sleep(ACCEPT_RETRY).await;
            }
            // Errors of a connection that died in the backlog: accept(2) says to go on. `None`
            // cannot happen: the stream re-arms its accept.
            Some(Err(_)) | None => {}
        }
    }
}

async fn echo(stream: TcpStream, receive: Receive, buffer_bytes: usize) -> io::Result<()> {
    match receive {
        Receive::Multishot => echo_multishot(stream, buffer_bytes).await,
        Receive::Owned => echo_owned(stream, buffer_bytes).await,
    }
}

async fn echo_multishot(stream: TcpStream, buffer_bytes: usize) -> io::Result<()> {
    let (mut reader, mut writer) = (&stream, &stream);
    let mut received = pin!(reader.read_multi(0));
    while let Some(item) = received.next().await {
        match item {
            Ok(buffer) => writer.write_all(buffer).await.0?,
            Err(error) if pool_is_empty(&error) => {
                if echo_once(&stream, buffer_bytes).await? == 0 {
                    break;
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn echo_owned(mut stream: TcpStream, buffer_bytes: usize) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(buffer_bytes);
    loop {
        let BufResult(received, filled) = stream.read(buffer).await;
        if received? == 0 {
            return Ok(());
        }
        let BufResult(sent, returned) = stream.write_all(filled).await;
        sent?;
        buffer = returned;
        buffer.clear();
    }
}

/// Receives once into a buffer of its own. Slow readers may hold the whole pool; the others are
/// served this way meanwhile, because asking an empty pool again at once would spin.
async fn echo_once(stream: &TcpStream, buffer_bytes: usize) -> io::Result<usize> {
    let (mut reader, mut writer) = (stream, stream);
    let BufResult(received, filled) = reader.read(Vec::with_capacity(buffer_bytes)).await;
    let received = received?;
    if received > 0 {
        writer.write_all(filled).await.0?;
    }
    Ok(received)
}

/// compio reports ENOBUFS, which ends a receive without data, as [`io::ErrorKind::ResourceBusy`].
fn pool_is_empty(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ResourceBusy
}
