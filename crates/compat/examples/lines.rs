//! `cargo run -p twinring-compat --example lines -- 127.0.0.1:7002 [auto|io_uring|epoll]`
//!
//! Lines and exact reads, by the extension traits of futures-util: each line `N` is answered with
//! the next `N` bytes in reverse. Try `printf '5\nhello' | nc -N 127.0.0.1 7002`.

use futures_util::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use std::io;
use twinring::{Runtime, TcpListener, TcpStream};
use twinring_compat::Compat;

/// Bytes of the longest line.
const LINE_BYTES_MAX: u64 = 32;
/// Bytes of the longest text.
const TEXT_BYTES_MAX: usize = 1 << 20;

#[allow(dead_code, reason = "tests call `serve`")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:7002".into());
    let engine = std::env::args().nth(2).unwrap_or("auto".into()).parse()?;
    let runtime = Runtime::builder().engine(engine).build()?;
    runtime.block_on(async move { serve(TcpListener::bind(address)?).await })??;
    Ok(())
}

/// Serves connections for ever.
pub(crate) async fn serve(listener: TcpListener) -> io::Result<()> {
    loop {
        let stream = Compat::new(listener.accept().await?);
        twinring::spawn(async move {
            if let Err(error) = reverse(stream).await {
                eprintln!("connection: {error}");
            }
        });
    }
}

async fn reverse(mut stream: Compat<TcpStream>) -> io::Result<()> {
    loop {
        let mut line = String::new();
        // No BufReader: the adapter is buffered.
        if (&mut stream).take(LINE_BYTES_MAX).read_line(&mut line).await? == 0 {
            return stream.close().await;
        }
        let bytes = line.trim().parse().map_err(io::Error::other)?;
        if bytes > TEXT_BYTES_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut text = vec![0; bytes];
        stream.read_exact(&mut text).await?;
        text.reverse();
        stream.write_all(&text).await?;
    }
}
