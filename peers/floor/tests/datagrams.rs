//! The reflectors return every datagram to its sender.

use std::net::UdpSocket;
use std::time::Duration;

use echo_check::Server;

/// In flight at once: less than a socket's buffer holds, so that loopback loses none.
const WINDOW: usize = 32;

fn returns_every_datagram(command: &[&str]) -> Result<(), String> {
    let server = Server::start(command, None)?;
    let clients: Vec<UdpSocket> = (0..2)
        .map(|_| {
            let client = UdpSocket::bind("127.0.0.1:0").expect("a free port");
            client.connect(server.address()).expect("a socket of loopback");
            client.set_read_timeout(Some(Duration::from_secs(10))).expect("a time-out");
            client
        })
        .collect();
    for round in 0..100_u32 {
        for (number, client) in clients.iter().enumerate() {
            let datagram = |index| format!("{round} {number} {index}").into_bytes();
            let mut expected: Vec<_> = (0..WINDOW).map(datagram).collect();
            for bytes in &expected {
                client.send(bytes).expect("room");
            }
            while !expected.is_empty() {
                let mut buffer = [0; 64];
                let len = client.recv(&mut buffer).map_err(|error| error.to_string())?;
                let found = expected.iter().position(|it| *it == buffer[..len]);
                expected.swap_remove(found.ok_or("a datagram that was not sent, or came twice")?);
            }
        }
    }
    server.stop()
}

#[test]
fn pending_receives() -> Result<(), String> {
    returns_every_datagram(&[env!("CARGO_BIN_EXE_floor-pending-receives"), "--pending", "8"])
}

#[test]
fn epoll() -> Result<(), String> {
    returns_every_datagram(&[env!("CARGO_BIN_EXE_floor-pending-receives"), "--epoll"])
}
