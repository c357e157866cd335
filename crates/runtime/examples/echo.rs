//! An echo server: `cargo run -p twinring --example echo -- 127.0.0.1:7000 [auto|io_uring|epoll]`.
use twinring::{Runtime, TcpListener, TcpStream, spawn};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:7000".into());
    let engine = std::env::args().nth(2).unwrap_or("auto".into()).parse()?;
    Runtime::builder().engine(engine).build()?.block_on(async move {
        let listener = TcpListener::bind(address)?;
        loop {
            spawn(echo(listener.accept().await?));
        }
    })?
}

async fn echo(stream: TcpStream) {
    while let Ok(chunk) = stream.recv().await
        && !chunk.is_empty()
        && stream.send(chunk).await.is_ok()
    {}
}
