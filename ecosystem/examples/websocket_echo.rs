//! `cargo run --manifest-path ecosystem/Cargo.toml --example websocket_echo -- 127.0.0.1:8090 [auto|io_uring|epoll]`
//!
//! A WebSocket echo by async-tungstenite. Connect with any WebSocket client, or from the console of
//! a browser: `s = new WebSocket("ws://127.0.0.1:8090"); s.onmessage = e => console.log(e.data);
//! s.onopen = () => s.send("hello")`.

use async_tungstenite::tungstenite::{Error, Message};
use async_tungstenite::{accept_async, client_async};
use futures_util::StreamExt;
use std::io;
use std::net::SocketAddr;
use twinring::{Runtime, TcpListener, TcpStream};
use twinring_compat::Compat;

#[allow(dead_code, reason = "tests call `serve` and `say`")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:8090".into()).parse()?;
    let engine = std::env::args().nth(2).unwrap_or("auto".into()).parse()?;
    let runtime = Runtime::builder().engine(engine).build()?;
    println!("ws://{address} ({})", runtime.features().engine());
    runtime.block_on(async move {
        let listener = TcpListener::bind(address)?;
        twinring::spawn(serve(listener));
        let said = vec![Message::text("a first message to itself"), Message::binary(vec![0; 1000])];
        for answer in say(address, said).await? {
            println!("echoed {} bytes", answer.len());
        }
        twinring::shutdown_requested().await;
        Ok(())
    })?
}

/// Echoes text and binary messages on each connection; tungstenite answers pings and closes.
pub(crate) async fn serve(listener: TcpListener) -> io::Result<()> {
    loop {
        let stream = Compat::new(listener.accept().await?);
        twinring::spawn(async move {
            let echoed = async {
                let mut socket = accept_async(stream).await?;
                while let Some(message) = socket.next().await {
                    let message = message?;
                    if message.is_text() || message.is_binary() {
                        socket.send(message).await?;
                    }
                }
                Ok::<(), Error>(())
            };
            if let Err(error) = echoed.await {
                eprintln!("connection: {error}");
            }
        });
    }
}

/// Sends the messages one after the other, and returns the answers.
pub(crate) async fn say(
    address: SocketAddr,
    messages: Vec<Message>,
) -> Result<Vec<Message>, Error> {
    let stream = Compat::new(TcpStream::connect(address).await?);
    let (mut socket, _response) = client_async(format!("ws://{address}/"), stream).await?;
    let mut answers = Vec::new();
    for message in messages {
        socket.send(message).await?;
        answers.extend(socket.next().await.transpose()?);
    }
    socket.close(None).await?;
    // The other end answers the close before the connection ends.
    while let Some(message) = socket.next().await {
        message?;
    }
    Ok(answers)
}
