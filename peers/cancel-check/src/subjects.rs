//! The runtimes.

use compio::buf::BufResult;
use compio::io::{AsyncRead as _, AsyncWriteExt as _};
use monoio::io::{AsyncReadRent as _, AsyncWriteRentExt as _};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use twinring::EngineChoice;
use twinring_cancellation::{RECV_BUFFER_BYTES, Subject};

pub(crate) struct Tokio;

impl Subject for Tokio {
    type Stream = tokio::net::TcpStream;
    type Listener = tokio::net::TcpListener;

    fn run<T>(&self, main: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(main)
    }

    fn listener(&self, listener: std::net::TcpListener) -> io::Result<Self::Listener> {
        listener.set_nonblocking(true)?;
        tokio::net::TcpListener::from_std(listener)
    }

    fn stream(&self, stream: std::net::TcpStream) -> io::Result<Self::Stream> {
        stream.set_nonblocking(true)?;
        tokio::net::TcpStream::from_std(stream)
    }

    async fn accept(&self, listener: &Self::Listener) -> io::Result<Self::Stream> {
        Ok(listener.accept().await?.0)
    }

    async fn connect(&self, address: SocketAddr) -> io::Result<Self::Stream> {
        tokio::net::TcpStream::connect(address).await
    }

    async fn recv(&self, stream: &mut Self::Stream) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0; RECV_BUFFER_BYTES];
        let bytes = stream.read(&mut buffer).await?;
        Ok(buffer[..bytes].to_vec())
    }

    async fn send(&self, stream: &mut Self::Stream, bytes: Vec<u8>) -> io::Result<()> {
        stream.write_all(&bytes).await
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}

pub(crate) struct Monoio;

impl Subject for Monoio {
    type Stream = monoio::net::TcpStream;
    type Listener = monoio::net::TcpListener;

    fn run<T>(&self, main: impl Future<Output = T>) -> T {
        let runtime = monoio::RuntimeBuilder::<monoio::IoUringDriver>::new().enable_timer().build();
        runtime.expect("io_uring").block_on(main)
    }

    fn listener(&self, listener: std::net::TcpListener) -> io::Result<Self::Listener> {
        monoio::net::TcpListener::from_std(listener)
    }

    fn stream(&self, stream: std::net::TcpStream) -> io::Result<Self::Stream> {
        monoio::net::TcpStream::from_std(stream)
    }

    async fn accept(&self, listener: &Self::Listener) -> io::Result<Self::Stream> {
        Ok(listener.accept().await?.0)
    }

    async fn connect(&self, address: SocketAddr) -> io::Result<Self::Stream> {
        monoio::net::TcpStream::connect_addr(address).await
    }

    async fn recv(&self, stream: &mut Self::Stream) -> io::Result<Vec<u8>> {
        let (received, buffer) = stream.read(Vec::with_capacity(RECV_BUFFER_BYTES)).await;
        Ok(buffer[..received?].to_vec())
    }

    async fn send(&self, stream: &mut Self::Stream, bytes: Vec<u8>) -> io::Result<()> {
        stream.write_all(bytes).await.0.map(drop)
    }

    async fn sleep(&self, duration: Duration) {
        monoio::time::sleep(duration).await;
    }
}

pub(crate) struct Compio;

impl Subject for Compio {
    type Stream = compio::net::TcpStream;
    type Listener = compio::net::TcpListener;

    fn run<T>(&self, main: impl Future<Output = T>) -> T {
        compio::runtime::Runtime::new().expect("io_uring").block_on(main)
    }

    fn listener(&self, listener: std::net::TcpListener) -> io::Result<Self::Listener> {
        compio::net::TcpListener::from_std(listener)
    }

    fn stream(&self, stream: std::net::TcpStream) -> io::Result<Self::Stream> {
        compio::net::TcpStream::from_std(stream)
    }

    async fn accept(&self, listener: &Self::Listener) -> io::Result<Self::Stream> {
        Ok(listener.accept().await?.0)
    }

    async fn connect(&self, address: SocketAddr) -> io::Result<Self::Stream> {
        compio::net::TcpStream::connect(address).await
    }

    async fn recv(&self, stream: &mut Self::Stream) -> io::Result<Vec<u8>> {
        let buffer = Vec::with_capacity(RECV_BUFFER_BYTES);
        let BufResult(received, buffer) = stream.read(buffer).await;
        Ok(buffer[..received?].to_vec())
    }

    async fn send(&self, stream: &mut Self::Stream, bytes: Vec<u8>) -> io::Result<()> {
        stream.write_all(bytes).await.0
    }

    async fn sleep(&self, duration: Duration) {
        compio::time::sleep(duration).await;
    }
}

pub(crate) struct Twinring(pub(crate) EngineChoice);

impl Subject for Twinring {
    type Stream = twinring::TcpStream;
    type Listener = twinring::TcpListener;

    fn run<T>(&self, main: impl Future<Output = T>) -> T {
        let runtime = twinring::Runtime::builder().engine(self.0).build();
        runtime.expect("an engine").block_on(main).expect("the engine works")
    }

    fn listener(&self, listener: std::net::TcpListener) -> io::Result<Self::Listener> {
        twinring::TcpListener::from_std(listener)
    }

    fn stream(&self, stream: std::net::TcpStream) -> io::Result<Self::Stream> {
        twinring::TcpStream::from_std(stream)
    }

    async fn accept(&self, listener: &Self::Listener) -> io::Result<Self::Stream> {
        listener.accept().await
    }

    async fn connect(&self, address: SocketAddr) -> io::Result<Self::Stream> {
        twinring::TcpStream::connect(address).await
    }

    async fn recv(&self, stream: &mut Self::Stream) -> io::Result<Vec<u8>> {
        Ok(stream.recv().await?.to_vec())
    }

    async fn send(&self, stream: &mut Self::Stream, bytes: Vec<u8>) -> io::Result<()> {
        stream.send(bytes).await
    }

    async fn sleep(&self, duration: Duration) {
        twinring::sleep(duration).await;
    }
}
