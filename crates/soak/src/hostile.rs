//! Clients that mean no good, or nothing at all. What they must not do is in the way of others: that
//! is checked where those are, and by the accounts at the end of a run.

use crate::plan::Plan;
use socket2::{Domain, SockRef, Socket, Type};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::Duration;

/// Connections that one of them makes, one after the other.
const CONNECTIONS_MAX: u64 = 12;
/// For how long it listens at most, to somebody who says nothing.
const PATIENCE: Duration = Duration::from_secs(5);
/// What it reads at most.
const READ_BYTES_MAX: usize = 1 << 20;

/// A way of being a nuisance.
#[derive(Clone, Copy, Debug)]
enum Nuisance {
    /// A byte now and then (slowloris).
    Slow,
    /// Asks for a lot and never reads, with the smallest window there is.
    Deaf,
    /// A reset at any moment.
    Reset,
    /// Half of what it has to say, then the end.
    Half,
    /// Everything at once, then gone.
    Hasty,
    /// Bytes that mean nothing.
    Garbage,
    /// A connection and not a word.
    Silent,
}

const NUISANCES: &[Nuisance] = &[
    Nuisance::Slow,
    Nuisance::Deaf,
    Nuisance::Reset,
    Nuisance::Half,
    Nuisance::Hasty,
    Nuisance::Garbage,
    Nuisance::Silent,
];

/// One such client, who knows what a `request` looks like.
pub(crate) fn client(
    plan: &mut Plan,
    server: SocketAddr,
    request: Vec<u8>,
) -> impl FnOnce() + Send + 'static {
    let mut plan = plan.branch();
    move || {
        for _ in 0..plan.about(1, CONNECTIONS_MAX) {
            // Refused, cut off, out of descriptors: whatever comes of it is what it wanted.
            let _whatever = annoy(&mut plan, server, &request);
            sleep(plan.milliseconds(1, 1_000));
        }
    }
}

fn annoy(plan: &mut Plan, server: SocketAddr, request: &[u8]) -> io::Result<()> {
    let nuisance = *plan.one_of(NUISANCES);
    let window = if matches!(nuisance, Nuisance::Deaf) { 1 } else { 64 * 1024 };
    let stream = Socket::new(Domain::for_address(server), Type::STREAM, None)?;
    stream.set_recv_buffer_size(window)?;
    stream.connect(&server.into())?;
    let mut stream = TcpStream::from(stream);
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let part = plan.about(0, request.len() as u64) as usize;
    match nuisance {
        Nuisance::Slow => {
            let pause = plan.milliseconds(1, 3_000);
            for byte in &request[..part] {
                stream.write_all(&[*byte])?;
                sleep(pause);
            }
            read_some(&mut stream)
        }
        Nuisance::Deaf => {
            let requests = request.repeat(plan.about(1, 200) as usize);
            let _full = stream.write_all(&requests);
            sleep(plan.milliseconds(1, 60_000));
            if plan.chance(2) { read_some(&mut stream) } else { Ok(()) }
        }
        Nuisance::Reset => {
            stream.write_all(&request[..part])?;
            sleep(Duration::from_micros(plan.about(1, 50_000)));
            if plan.chance(2) {
                let mut some = vec![0; plan.about(1, 4_096) as usize];
                let _some = stream.read(&mut some)?;
            }
            SockRef::from(&stream).set_linger(Some(Duration::ZERO))
        }
        Nuisance::Half => {
            stream.write_all(&request[..part])?;
            stream.shutdown(Shutdown::Write)?;
            read_some(&mut stream)
        }
        Nuisance::Hasty => {
            let requests = request.repeat(plan.about(1, 100) as usize);
            stream.write_all(&requests)
        }
        Nuisance::Garbage => {
            let count = plan.about(1, 20_000);
            stream.write_all(&plan.bytes(count))?;
            read_some(&mut stream)
        }
        Nuisance::Silent => {
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
