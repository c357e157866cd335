//! A UDP reflector: `cargo run -p twinring --example reflect -- 127.0.0.1:9000 [auto|io_uring|epoll]`.
use twinring::{Received, Runtime, UdpSocket, net::UdpOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:9000".into()).parse()?;
    let engine = std::env::args().nth(2).unwrap_or("auto".into()).parse()?;
    // Answers come from the address of the request, which matters on 0.0.0.0 and [::].
    let bound = UdpOptions { pktinfo: true, ..UdpOptions::default() }.bind(address)?;
    Runtime::builder().engine(engine).build()?.block_on(async move {
        let socket = UdpSocket::from_bound(bound)?;
        let (mut received, mut replies) = (Vec::new(), Vec::new());
        loop {
            socket.recv_batch(&mut received).await?;
            replies.extend(received.drain(..).map(Received::into_reply));
            socket.send_batch(&mut replies).await?;
        }
    })?
}
