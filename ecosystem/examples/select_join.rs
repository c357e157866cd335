//! `cargo run --manifest-path ecosystem/Cargo.toml --example select_join -- [auto|io_uring|epoll]`
//!
//! `join` and `select` of futures-util, and channels of async-channel: a job comes from another
//! thread, is worked on by three connections at once, and the answer goes back, in time or not.

use async_channel::{Receiver, Sender};
use futures_util::future::try_join_all;
use futures_util::{FutureExt, select};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use twinring::{Runtime, TcpListener, TcpStream, sleep};

#[allow(dead_code, reason = "tests call `work`")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = std::env::args().nth(1).unwrap_or("auto".into()).parse()?;
    let (jobs, to_do) = async_channel::bounded(16);
    let (done, answers) = async_channel::bounded(16);
    let client = std::thread::spawn(move || {
        for job in ["one", "two", "three"] {
            jobs.send_blocking(job.to_owned()).expect("the worker has not ended");
            println!("{:?}", answers.recv_blocking());
        }
    });
    Runtime::builder().engine(engine).build()?.block_on(async move {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr();
        twinring::spawn(echo(listener));
        work(address, to_do, done).await
    })??;
    client.join().map_err(|_| "the client panicked")?;
    Ok(())
}

/// Does jobs until the other end of the channel is gone.
pub(crate) async fn work(
    server: SocketAddr,
    jobs: Receiver<String>,
    answers: Sender<io::Result<String>>,
) -> io::Result<()> {
    while let Ok(job) = jobs.recv().await {
        let mut parts = Box::pin(try_join_all((0..3).map(|part| ask(server, part, &job))).fuse());
        let answer = select! {
            parts = parts => parts.map(|parts| parts.join(", ")),
            () = sleep(Duration::from_secs(10)).fuse() => Err(io::ErrorKind::TimedOut.into()),
        };
        if answers.send(answer).await.is_err() {
            break;
        }
    }
    Ok(())
}

async fn ask(server: SocketAddr, part: usize, job: &str) -> io::Result<String> {
    let stream = TcpStream::connect(server).await?;
    stream.send(format!("{job} {part}")).await?;
    stream.shutdown().await?;
    let mut answer = Vec::new();
    loop {
        let chunk = stream.recv().await?;
        if chunk.is_empty() {
            return String::from_utf8(answer).map_err(io::Error::other);
        }
        answer.extend_from_slice(&chunk);
    }
}

/// Answers with what it receives.
pub(crate) async fn echo(listener: TcpListener) -> io::Result<()> {
    loop {
        let stream = listener.accept().await?;
        twinring::spawn(async move {
            while let Ok(chunk) = stream.recv().await
                && !chunk.is_empty()
                && stream.send(chunk).await.is_ok()
            {}
        });
    }
}
