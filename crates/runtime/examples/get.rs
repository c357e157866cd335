//! An HTTP request: `cargo run -p twinring --example get -- 127.0.0.1:8080 / [auto|io_uring|epoll]`.
//!
//! It shows names (`localhost:8080` works as well), a limit for everything, and blocking work on
//! another thread.
use std::io::Write;
use std::time::Duration;
use twinring::{Runtime, TcpStream, spawn_blocking, timeout};

/// Bytes of the longest answer.
const ANSWER_BYTES_MAX: usize = 64 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let host = std::env::args().nth(1).unwrap_or("127.0.0.1:8080".into());
    let path = std::env::args().nth(2).unwrap_or("/".into());
    let engine = std::env::args().nth(3).unwrap_or("auto".into()).parse()?;
    Runtime::builder().engine(engine).build()?.block_on(async move {
        let answer = timeout(Duration::from_secs(10), get(host, &path)).await??;
        // Standard output may be a pipe that is not read.
        spawn_blocking(move || std::io::stdout().write_all(&answer)).await??;
        Ok(())
    })?
}

async fn get(host: String, path: &str) -> std::io::Result<Vec<u8>> {
    let request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
    let stream = TcpStream::connect(host).await?;
    stream.send(request).await?;
    let mut answer = Vec::new();
    loop {
        let chunk = stream.recv().await?;
        if chunk.is_empty() || answer.len() > ANSWER_BYTES_MAX {
            return Ok(answer);
        }
        answer.extend_from_slice(&chunk);
    }
}
