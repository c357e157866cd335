//! An echo on a Unix socket: `cargo run -p twinring --example unix -- /tmp/echo.sock [auto|io_uring|epoll]`,
//! then `nc -U /tmp/echo.sock`.
use std::path::PathBuf;
use twinring::{Runtime, UnixListener, UnixStream, spawn};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = PathBuf::from(std::env::args().nth(1).unwrap_or("/tmp/echo.sock".into()));
    let engine = std::env::args().nth(2).unwrap_or("auto".into()).parse()?;
    Runtime::builder().engine(engine).build()?.block_on(async move {
        let listener = UnixListener::bind(path)?;
        loop {
            spawn(echo(listener.accept().await?));
        }
    })?
}

async fn echo(stream: UnixStream) {
    while let Ok(chunk) = stream.recv().await
        && !chunk.is_empty()
        && stream.send(chunk).await.is_ok()
    {}
}
