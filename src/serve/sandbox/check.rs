//! Attempts everything that the sandbox must refuse, from inside. Each attempt is harmless if it succeeds.

use super::filter::Needs;
use super::parts::{Part, Report};
use crate::output::print_line;
use crate::serve::report::print_json;
use caps::CapSet;
use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::sys::socket::{Shutdown, shutdown};
use nix::unistd::getppid;
use serde_json::json;
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};

/// Files of every system, which no service reads.
const ELSEWHERE: &str = "/";

/// The first Landlock ABI with rules for TCP, and for signals.
const ABI_OF_TCP: i32 = 4;
const ABI_OF_SIGNALS: i32 = 6;

/// Makes all attempts and prints a line for each; true if one succeeded that an active part must
/// refuse. `abi` is that of Landlock, if it is active.
pub(super) fn run(report: &Report, needs: Needs, abi: i32, rights: Vec<Tried>, json: bool) -> bool {
    let mut leaky = false;
    for (attempt, outcome, parts) in attempts(needs, abi).into_iter().chain(rights) {
        let refused_by: Vec<Part> = parts.into_iter().filter(|part| report.has(*part)).collect();
        leaky |= outcome.is_ok() && !refused_by.is_empty();
        let error = outcome.err().map(|error| error.to_string());
        if json {
            print_json(&json!({
                "event": "sandbox_check",
                "attempt": attempt,
                "refused": error.is_some(),
                "error": error,
                "refused_by": refused_by,
            }));
            continue;
        }
        let parts: Vec<&str> = refused_by.iter().map(|part| part.name()).collect();
        let verdict = match (error, parts.is_empty()) {
            (Some(error), _) => format!("refused: {error}"),
            (None, true) => "possible: no active part covers it".to_owned(),
            (None, false) => format!("POSSIBLE, in spite of {}", parts.join(", ")),
        };
        print_line(&format!("sandbox check: {attempt}: {verdict}"));
    }
    leaky
}

/// The attempt, its result, and the parts that must refuse it.
pub(super) type Tried = (&'static str, io::Result<()>, Vec<Part>);

pub(super) fn rights() -> Vec<Tried> {
    vec![
        ("keep_capabilities", keep_capabilities(), vec![Part::Capabilities]),
        ("gain_privileges", gain_privileges(), vec![Part::NoNewPrivs]),
    ]
}

fn attempts(needs: Needs, abi: i32) -> Vec<Tried> {
    let anywhere = Ipv4Addr::LOCALHOST;
    // Port 9 is `discard`: without a listener, "connection refused" shows that the call is allowed.
    let connected = match TcpStream::connect((anywhere, 9)) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        other => other.map(drop),
    };
    let by_name = match needs.paths {
        true => vec![Part::Landlock],
        false => vec![Part::Seccomp, Part::Landlock],
    };
    let from = |least: i32| match abi >= least {
        true => vec![Part::Seccomp, Part::Landlock],
        false => vec![Part::Seccomp],
    };
    vec![
        ("udp_socket", UdpSocket::bind((anywhere, 0)).map(drop), vec![Part::Seccomp]),
        ("tcp_bind", TcpListener::bind((anywhere, 0)).map(drop), from(ABI_OF_TCP)),
        ("tcp_connect", connected, from(ABI_OF_TCP)),
        ("disconnect_listener", disconnect(), vec![Part::Seccomp]),
        ("open_elsewhere", File::open(ELSEWHERE).map(drop), by_name.clone()),
        ("make_file_elsewhere", make_file(), by_name),
        ("execute", execute(), from(0)),
        ("signal_parent", kill(getppid(), None).map_err(io::Error::from), from(ABI_OF_SIGNALS)),
    ]
}

/// Would turn a listener into a socket that can be connected. Tried on an invalid descriptor: "bad
/// descriptor" shows that the call is allowed.
fn disconnect() -> io::Result<()> {
    match shutdown(-1, Shutdown::Both) {
        Ok(()) | Err(Errno::EBADF) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn make_file() -> io::Result<()> {
    let path = std::env::temp_dir().join(format!("twinring-check-{}", std::process::id()));
    File::create_new(&path)?;
    // Removing it may be refused although creating it is not. The remaining directory is empty.
    let _ = std::fs::remove_file(&path);
    Ok(())
}

fn execute() -> io::Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--version");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().map(drop)
}

fn keep_capabilities() -> io::Result<()> {
    match caps::read(None, CapSet::Permitted) {
        Ok(held) if held.is_empty() => Err(io::Error::other("the process has none")),
        Ok(_) => Ok(()),
        Err(error) => Err(io::Error::other(error)),
    }
}

fn gain_privileges() -> io::Result<()> {
    match nix::sys::prctl::get_no_new_privs() {
        Ok(true) => Err(io::Error::other("no_new_privs is set")),
        Ok(false) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
