//! Checks of one echo server, over real sockets: nothing lost, reordered or swapped between
//! connections; half-close and slow readers get every byte; descriptors may run out.
//!
//! [`suite!`] turns the checks into the tests of a peer; the binary of this crate runs them
//! against any command, such as the Go server.

mod server;

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

pub use server::Server;

/// Connections of [`byte_exact`].
pub const CONNECTIONS: usize = 50;

/// Bytes each connection sends in [`byte_exact`] and in [`half_close`].
pub const BYTES_PER_CONNECTION: usize = 1 << 20;

/// Bytes of [`slow_reader`]: more than both socket buffers hold, so that the server's sends are
/// cut short.
pub const SLOW_READER_BYTES: usize = 24 << 20;

/// No read or write of a check may block longer: a hang is a failure, not a stuck test run.
const STALL: Duration = Duration::from_secs(20);

/// Descriptors the server gets in [`out_of_descriptors`].
const SCARCE_DESCRIPTORS: u64 = 32;

/// The result of a check: why it failed.
pub type Outcome = Result<(), String>;

/// One named check.
pub type Check = (&'static str, fn(&[&str]) -> Outcome);

/// All checks, by name.
pub const CHECKS: [Check; 5] = [
    ("byte_exact", byte_exact),
    ("half_close", half_close),
    ("slow_reader", slow_reader),
    ("out_of_descriptors", out_of_descriptors),
    ("sigterm", sigterm),
];

/// Makes a module of tests of the binary of the calling package, run with these arguments: one test
/// per check, or only those named after a semicolon.
#[macro_export]
macro_rules! suite {
    ($module:ident, $binary:literal $(, $argument:literal)*) => {
        $crate::suite!($module, $binary $(, $argument)*;
            byte_exact, half_close, slow_reader, out_of_descriptors, sigterm);
    };
    ($module:ident, $binary:literal $(, $argument:literal)*; $($check:ident),+) => {
        mod $module {
            const COMMAND: &[&str] = &[env!(concat!("CARGO_BIN_EXE_", $binary)) $(, $argument)*];
            $crate::suite!(@tests COMMAND: $($check),+);
        }
    };
    (@tests $command:ident: $($check:ident),+) => {
        $(#[test]
        fn $check() -> Result<(), String> {
            $crate::$check($command)
        })+
    };
}

/// Each of [`CONNECTIONS`] connections writes its own pattern in chunks of random size and reads it
/// back at the same time, all at once.
pub fn byte_exact(command: &[&str]) -> Outcome {
    let server = Server::start(command, None)?;
    let address = server.address();
    let clients: Vec<_> = (0..CONNECTIONS)
        .map(|client| thread::spawn(move || echo_whole(address, client, Duration::ZERO)))
        .collect();
    for (client, thread) in clients.into_iter().enumerate() {
        thread
            .join()
            .map_err(|_| format!("client {client} panicked"))?
            .map_err(|why| format!("client {client}: {why}"))?;
    }
    server.stop()
}

/// Writes everything, shuts the sending half down, and only then reads: every byte has to come
/// before the end of stream.
pub fn half_close(command: &[&str]) -> Outcome {
    let server = Server::start(command, None)?;
    // Small enough to fit in socket buffers without a reader, then one that needs a reader.
    for bytes in [1, 700, 100_000] {
        let mut stream = connect(server.address())?;
        stream.write_all(&pattern(7, bytes)).map_err(fails("write"))?;
        stream.shutdown(Shutdown::Write).map_err(fails("shutdown"))?;
        expect_pattern(&mut stream, 7, bytes, Duration::ZERO)?;
        expect_end(&mut stream)?;
    }
    echo_whole(server.address(), 11, Duration::ZERO)?;
    server.stop()
}

/// A client that reads nothing until all sends are stuck, then slowly: the server must keep what it
/// could not send, must not take more than it can hold, and must serve others meanwhile.
pub fn slow_reader(command: &[&str]) -> Outcome {
    let server = Server::start(command, None)?;
    let mut reader = connect(server.address())?;
    let mut writer = reader.try_clone().map_err(fails("clone"))?;
    let sender = thread::spawn(move || -> Outcome {
        send_pattern(&mut writer, 3, SLOW_READER_BYTES)?;
        writer.shutdown(Shutdown::Write).map_err(fails("shutdown"))
    });
    // Time for the sends to get stuck. Should it be too short, the check is only weaker.
    thread::sleep(Duration::from_millis(300));
    echo_whole(server.address(), 4, Duration::ZERO)
        .map_err(|why| format!("other client: {why}"))?;
    expect_pattern(&mut reader, 3, SLOW_READER_BYTES, Duration::from_micros(50))?;
    expect_end(&mut reader)?;
    sender.join().map_err(|_| "the sender panicked")??;
    server.stop()
}

/// More clients than the server has descriptors: those inside are served, those outside wait, the
/// server uses no CPU meanwhile, and they are served once descriptors are free.
pub fn out_of_descriptors(command: &[&str]) -> Outcome {
    let server = Server::start(command, Some(SCARCE_DESCRIPTORS))?;
    let mut clients = Vec::new();
    for _ in 0..SCARCE_DESCRIPTORS + 8 {
        clients.push(connect(server.address())?);
    }
    ping(&mut clients[0])?;
    thread::sleep(Duration::from_millis(200));
    let before = server.cpu_ticks()?;
    thread::sleep(Duration::from_millis(600));
    let spent = server.cpu_ticks()? - before;
    // 600 ms are 60 ticks of USER_HZ: a loop that spins uses most of them even on a busy machine.
    if spent > 10 {
        return Err(format!("used {spent} ticks in 600 ms while out of descriptors"));
    }
    let mut last = clients.pop().ok_or("no client")?;
    ping(&mut clients[0])?;
    drop(clients);
    ping(&mut last)?;
    server.stop()
}

/// SIGTERM with a connection open ends the server with status 0.
pub fn sigterm(command: &[&str]) -> Outcome {
    let server = Server::start(command, None)?;
    let mut client = connect(server.address())?;
    ping(&mut client)?;
    server.stop()
}

/// Sends [`BYTES_PER_CONNECTION`] bytes in chunks, reads them back meanwhile, and expects the end
/// of stream after a half-close.
fn echo_whole(address: SocketAddr, seed: usize, pause: Duration) -> Outcome {
    let mut reader = connect(address)?;
    let mut writer = reader.try_clone().map_err(fails("clone"))?;
    let sender = thread::spawn(move || -> Outcome {
        send_pattern(&mut writer, seed, BYTES_PER_CONNECTION)?;
        writer.shutdown(Shutdown::Write).map_err(fails("shutdown"))
    });
    expect_pattern(&mut reader, seed, BYTES_PER_CONNECTION, pause)?;
    expect_end(&mut reader)?;
    sender.join().map_err(|_| "the sender panicked")?
}

fn connect(address: SocketAddr) -> Result<TcpStream, String> {
    let stream = TcpStream::connect_timeout(&address, STALL).map_err(fails("connect"))?;
    stream.set_read_timeout(Some(STALL)).map_err(fails("set the timeout"))?;
    stream.set_write_timeout(Some(STALL)).map_err(fails("set the timeout"))?;
    stream.set_nodelay(true).map_err(fails("set TCP_NODELAY"))?;
    Ok(stream)
}

fn ping(stream: &mut TcpStream) -> Outcome {
    stream.write_all(b"ping").map_err(fails("ping"))?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).map_err(fails("await the answer to a ping"))?;
    if &answer == b"ping" { Ok(()) } else { Err(format!("a ping came back as {answer:?}")) }
}

fn send_pattern(stream: &mut TcpStream, seed: usize, bytes: usize) -> Outcome {
    let data = pattern(seed, bytes);
    let mut sizes = chunk_sizes(seed);
    let mut rest = &data[..];
    while !rest.is_empty() {
        let (chunk, next) = rest.split_at(sizes.next().unwrap_or(1).min(rest.len()));
        stream.write_all(chunk).map_err(fails("write"))?;
        rest = next;
    }
    Ok(())
}

fn expect_pattern(stream: &mut TcpStream, seed: usize, bytes: usize, pause: Duration) -> Outcome {
    let expected = pattern(seed, bytes);
    let mut sizes = chunk_sizes(seed + 1000);
    let mut buffer = vec![0; 64 * 1024];
    let mut position = 0;
    while position < bytes {
        if !pause.is_zero() {
            thread::sleep(pause);
        }
        let room = sizes.next().unwrap_or(1).min(bytes - position);
        let received = stream
            .read(&mut buffer[..room])
            .map_err(|error| format!("read at {position} of {bytes}: {error}"))?;
        if received == 0 {
            return Err(format!("the stream ended at {position} of {bytes} bytes"));
        }
        if buffer[..received] != expected[position..position + received] {
            return Err(format!("wrong bytes in {position}..{}", position + received));
        }
        position += received;
    }
    Ok(())
}

fn expect_end(stream: &mut TcpStream) -> Outcome {
    match stream.read(&mut [0; 16]).map_err(fails("await the end of stream"))? {
        0 => Ok(()),
        extra => Err(format!("{extra} bytes too many")),
    }
}

/// Bytes that depend on connection and position, with no period that a buffer size divides.
fn pattern(seed: usize, bytes: usize) -> Vec<u8> {
    let mut pattern = Vec::with_capacity(bytes + 8);
    // By words, as tests are not optimized.
    for word in 0..bytes.div_ceil(8) as u64 {
        let mixed = (word + ((seed as u64) << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        pattern.extend_from_slice(&(mixed ^ mixed >> 32).to_ne_bytes());
    }
    pattern.truncate(bytes);
    pattern
}

/// Chunk sizes from 1 byte to 64 KB, small ones as likely as large ones, without end. By a xorshift generator: they
/// only have to vary, and to be the same in each run.
fn chunk_sizes(seed: usize) -> impl Iterator<Item = usize> {
    let states = std::iter::successors(Some(seed as u64 + 1), |state| {
        let state = state ^ state << 13;
        let state = state ^ state >> 7;
        Some(state ^ state << 17)
    });
    states.skip(1).map(|state| 1 + (state >> 32) as usize % (1 << (state % 17)))
}

fn fails(what: &'static str) -> impl Fn(io::Error) -> String {
    move |error| format!("cannot {what}: {error}")
}
