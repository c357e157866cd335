//! `cargo run --manifest-path ecosystem/Cargo.toml --example select_join -- [auto|io_uring|epoll]`
//!
//! `select!` and `try_join_all` of futures-util, and channels of async-channel: a job comes from another
//! thread, three connections work on it at once, and the answer goes back, in time or not.

use async_channel::{Receiver, Sender};
use futures_util::future::try_join_all;
use futures_util::{FutureExt, select};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use twinring::{Runtime, TcpListener, TcpStream, net, sleep, spawn};

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
    Runtime::builder().engine(engine).build()?.block_on(work(to_do, done))??;
    client.join().map_err(|_| "the client panicked".into())
}

/// Does jobs until the other end of the channel is gone.
pub(crate) async fn work(
    jobs: Receiver<String>,
    answers: Sender<io::Result<String>>,
) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let server = listener.local_addr();
    spawn(async move {
        while let Ok(stream) = listener.accept().await {
            spawn(async move { net::copy(&stream, &stream).await });
        }
    });
    while let Ok(job) = jobs.recv().await {
        let mut parts = Box::pin(try_join_all((0..3).map(|part| ask(server, part, &job))).fuse());
        let answer = select! {
            parts = parts => parts.map(|parts| parts.concat()),
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
    stream.send(format!("{job} {part}.")).await?;
    let answer = stream.recv_until(b'.', 1000).await?;
    String::from_utf8(answer).map_err(io::Error::other)
}
