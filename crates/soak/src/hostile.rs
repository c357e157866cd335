//! Hostile clients. They must not affect others, which is checked by those, and by the counts at
//! the end of a run.

use crate::plan::Plan;
use socket2::{Domain, SockRef, Socket, Type};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::Duration;

/// Connections that one of them opens, one after the other.
const CONNECTIONS_MAX: u64 = 12;
/// The longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The maximum that it reads.
const READ_BYTES_MAX: usize = 1 << 20;

/// A kind of attack.
#[derive(Clone, Copy, Debug)]
enum Attack {
    /// A byte now and then (slowloris).
    Slow,
    /// Requests a lot and never reads, with the smallest window.
    Deaf,
    /// A reset at any moment.
    Reset,
    /// Half a request, then the end.
    Half,
    /// All requests at once, then a disconnect.
    Hasty,
    /// Random bytes.
    Garbage,
    /// A connection and not a word.
    Silent,
}

const ATTACKS: &[Attack] = &[
    Attack::Slow,
    Attack::Deaf,
    Attack::Reset,
    Attack::Half,
    Attack::Hasty,
    Attack::Garbage,
    Attack::Silent,
];

/// One such client, with a valid `request`.
pub(crate) fn client(
    plan: &mut Plan,
    server: SocketAddr,
    request: Vec<u8>,
) -> impl FnOnce() + Send + 'static {
    let mut plan = plan.branch();
    move || {
        for _ in 0..plan.about(1, CONNECTIONS_MAX) {
            // Refused, cut off, out of descriptors: any outcome is fine.
            let _whatever = attack(&mut plan, server, &request);
            sleep(plan.milliseconds(1, 1_000));
        }
    }
}

fn attack(plan: &mut Plan, server: SocketAddr, request: &[u8]) -> io::Result<()> {
    let attack = *plan.one_of(ATTACKS);
    let window = if matches!(attack, Attack::Deaf) { 1 } else { 64 * 1024 };
    let stream = Socket::new(Domain::for_address(server), Type::STREAM, None)?;
    stream.set_recv_buffer_size(window)?;
    stream.connect(&server.into())?;
    let mut stream = TcpStream::from(stream);
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let part = plan.about(0, request.len() as u64) as usize;
    match attack {
        Attack::Slow => {
            let pause = plan.milliseconds(1, 3_000);
            for byte in &request[..part] {
                stream.write_all(&[*byte])?;
                sleep(pause);
            }
            read_some(&mut stream)
        }
        Attack::Deaf => {
            let requests = request.repeat(plan.about(1, 200) as usize);
            let _full = stream.write_all(&requests);
            sleep(plan.milliseconds(1, 60_000));
            if plan.chance(2) { read_some(&mut stream) } else { Ok(()) }
        }
        Attack::Reset => {
            stream.write_all(&request[..part])?;
            sleep(Duration::from_micros(plan.about(1, 50_000)));
            if plan.chance(2) {
                let mut some = vec![0; plan.about(1, 4_096) as usize];
                let _some = stream.read(&mut some)?;
            }
            SockRef::from(&stream).set_linger(Some(Duration::ZERO))
        }
        Attack::Half => {
            stream.write_all(&request[..part])?;
            stream.shutdown(Shutdown::Write)?;
            read_some(&mut stream)
        }
        Attack::Hasty => {
            let requests = request.repeat(plan.about(1, 100) as usize);
            stream.write_all(&requests)
        }
        Attack::Garbage => {
            let count = plan.about(1, 20_000);
            stream.write_all(&plan.bytes(count))?;
            read_some(&mut stream)
        }
        Attack::Silent => {
            sleep(plan.milliseconds(1, 100_000));
            Ok(())
        }
    }
}

/// Until the end, an error, or enough.
fn read_some(stream: &mut TcpStream) -> io::Result<()> {
    let mut left = READ_BYTES_MAX;
    let mut some = vec![0; 16 * 1024];
    while left > 0 {
        match stream.read(&mut some)? {
            0 => return Ok(()),
            bytes => left = left.saturating_sub(bytes),
        }
    }
    Ok(())
}
