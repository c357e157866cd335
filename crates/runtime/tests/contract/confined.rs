//! A ring that was confined refuses what its program did not announce. epoll has no ring to confine.

use crate::support::*;
use std::future::Future;
use std::io;
use std::path::Path;
use twinring::confine::Uses;
use twinring::fs::{Dir, Symlinks};
use twinring::{TcpStream, UdpSocket, spawn};

pub(crate) const RULES: &[Rule] =
    rules![streams_are_accepted_and_nothing_else_is_done, what_was_announced_is_done,];

const EVERYTHING: Uses = Uses { accept: true, connect: true, datagrams: true, files: true };

fn run_confined<T, F>(configuration: Configuration, uses: Uses, main: impl FnOnce() -> F) -> T
where
    F: Future<Output = T> + 'static,
{
    run_on(configuration.builder().confine(uses), |_| main())
}

/// What a file, a connection and a datagram give: nothing, or the error.
async fn others() -> [io::Result<()>; 3] {
    let directory = Dir::open(Path::new("/proc/self")).expect("it is mounted");
    let peer = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
    let address = peer.local_addr().expect("an address");
    let file = directory.open_file(Path::new("stat"), Symlinks::Refuse).await.expect("a file");
    let stream = TcpStream::connect(address).await;
    [file.read_at(0, 10).await.map(drop), stream.map(drop), datagram().await]
}

async fn datagram() -> io::Result<()> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.send_to(b"to myself", socket.local_addr()).await?;
    socket.recv_from().await.map(drop)
}

fn streams_are_accepted_and_nothing_else_is_done(configuration: Configuration) {
    let uses = Uses { accept: true, ..Uses::default() };
    run_confined(configuration, uses, || async move {
        let listener = listen();
        let address = listener.local_addr();
        spawn(echo_server(listener));
        on_thread(move || {
            let mut peer = Peer::connect(address).expect("it is served");
            ping(&mut peer, &pattern(1, 0..300));
        })
        .await;
        for (number, result) in others().await.into_iter().enumerate() {
            let refused = result.is_err_and(|it| it.kind() == io::ErrorKind::PermissionDenied);
            assert_eq!(refused, !configuration.is_epoll(), "operation {number}");
        }
    });
}

fn what_was_announced_is_done(configuration: Configuration) {
    run_confined(configuration, EVERYTHING, || async {
        for result in others().await {
            result.expect("it was announced");
        }
    });
}
