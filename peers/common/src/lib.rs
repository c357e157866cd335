//! The common parts of all peers: command line, pinning, limits, SIGTERM, listener, ready line.
//!
//! The peers differ only in how they wait for the kernel and move bytes.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::Pid;
use signal_hook::consts::{SIGINT, SIGTERM};
use socket2::{Domain, Socket, Type};

/// Connections that may wait to be accepted. The kernel caps it at `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// How long [`start`] keeps trying to bind. A ring that was killed releases its port only after
/// its deferred teardown, some 10 ms after the process is gone.
const BIND_PATIENCE: Duration = Duration::from_secs(1);

/// How long an accept loop waits after [`out_of_resources`] before it tries again.
pub const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Submission entries of a ring: one receive or one send per connection, for 4,000 connections at once.
pub const SUBMISSION_ENTRIES: u32 = 4096;

/// Completion entries of a ring: room for 15,000 connections that all complete in one batch.
pub const COMPLETION_ENTRIES: u32 = 16384;

/// A connection's own buffer: holds a whole 16 KB message of the comparison, with room for a second one
/// that came meanwhile.
pub const OWN_BUFFER_BYTES: u32 = 32 * 1024;

/// The options of every peer.
#[derive(Debug, Clone, clap::Args)]
pub struct Common {
    /// Address and port to listen on; port 0 lets the kernel choose.
    #[arg(long, default_value = "127.0.0.1:7100")]
    pub listen: SocketAddr,

    /// CPU to run on.
    #[arg(long, value_name = "CPU")]
    pub pin: Option<usize>,

    /// Size of a receive buffer in bytes; each peer has its own default.
    #[arg(long, alias = "buffer", value_name = "BYTES",
          value_parser = clap::value_parser!(u32).range(64..=1 << 24))]
    pub buffer_bytes: Option<u32>,
}

impl Common {
    /// The receive buffer size in bytes: the requested one, otherwise `default_bytes`.
    pub fn buffer_bytes_or(&self, default_bytes: u32) -> usize {
        self.buffer_bytes.unwrap_or(default_bytes) as usize
    }
}

/// Sets the process up and returns the listener, which blocks and has `TCP_NODELAY` set.
///
/// Accepted sockets inherit `TCP_NODELAY` from the listener on Linux, so that no peer pays a
/// `setsockopt` per connection.
pub fn start(options: &Common) -> io::Result<TcpListener> {
    exit_on_signals()?;
    pin(options.pin)?;
    raise_descriptor_limit();
    bind_patiently(options.listen)
        .map_err(|error| context(&format!("cannot listen on {}", options.listen), error))
}

/// The same for a UDP socket.
pub fn start_udp(options: &Common) -> io::Result<UdpSocket> {
    exit_on_signals()?;
    pin(options.pin)?;
    UdpSocket::bind(options.listen)
        .map_err(|error| context(&format!("cannot bind {}", options.listen), error))
}

/// Prints the line that announces a ready server.
pub fn announce(name: &str, listener: &TcpListener) -> io::Result<()> {
    let address = listener.local_addr()?;
    say(&format!("{name} listening on {address}"))
}

/// Prints a line at once.
pub fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// Turns the result of a peer into an exit code, with the error on standard error.
pub fn finish(name: &str, result: io::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether `accept` failed for lack of descriptors or memory. The connection stays in the backlog,
/// so that trying again at once would spin; wait [`ACCEPT_RETRY`] instead.
///
/// The numbers are ENOMEM, ENFILE, EMFILE and ENOBUFS of accept(2).
pub fn out_of_resources(error: &io::Error) -> bool {
    use nix::libc::{EMFILE, ENFILE, ENOBUFS, ENOMEM};
    error.raw_os_error().is_some_and(|code| [ENOMEM, ENFILE, EMFILE, ENOBUFS].contains(&code))
}

/// Adds what was attempted to an error and keeps its kind.
pub fn context(what: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// SIGTERM and SIGINT end the process with status 0 from within the handler: nothing in the hot
/// loop has to look for them, and the kernel closes the sockets.
fn exit_on_signals() -> io::Result<()> {
    for signal in [SIGTERM, SIGINT] {
        let always = Arc::new(AtomicBool::new(true));
        signal_hook::flag::register_conditional_shutdown(signal, 0, always)?;
    }
    Ok(())
}

/// Pins the process to this CPU, if it is to run on a certain one.
pub fn pin(cpu: Option<usize>) -> io::Result<()> {
    let Some(cpu) = cpu else { return Ok(()) };
    let mut set = CpuSet::new();
    set.set(cpu)
        .and_then(|()| sched_setaffinity(Pid::from_raw(0), &set))
        .map_err(|error| context(&format!("cannot pin to CPU {cpu}"), error.into()))
}

/// Best effort: with the soft limit left as it was, a peer merely serves fewer connections.
pub fn raise_descriptor_limit() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

fn bind_patiently(address: SocketAddr) -> io::Result<TcpListener> {
    let give_up = Instant::now() + BIND_PATIENCE;
    loop {
        match bind(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < give_up => {
                std::thread::sleep(Duration::from_millis(10));
            }
            result => return result,
        }
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_tcp_nodelay(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn accepted_sockets_inherit_nodelay() {
        let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        assert!(accepted.nodelay().unwrap());
    }
}
