//! Attempts everything that the sandbox must refuse, from inside. Each attempt is harmless if it succeeds.

use super::filter::Needs;
use super::{CAPABILITIES, LANDLOCK, NO_NEW_PRIVS, Part, Report, SECCOMP};
use crate::serve::notices::REPORTS;
use caps::CapSet;
use landlock::ABI;
use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::sys::socket::{Shutdown, shutdown};
use nix::unistd::getppid;
use serde_json::json;
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};

/// Makes all attempts and prints a line for each; true if one succeeded that an active part must
/// refuse. `abi` is that of Landlock, if it is active.
pub(super) fn run(report: &Report, needs: Needs, abi: i32, rights: Vec<Tried>, json: bool) -> bool {
    let mut leaky = false;
    for (attempt, outcome, parts) in attempts(needs, abi).into_iter().chain(rights) {
        let refused_by: Vec<Part> = parts.into_iter().filter(|part| report.has(part)).collect();
        leaky |= outcome.is_ok() && !refused_by.is_empty();
        let error = outcome.err().map(|error| error.to_string());
        if json {
            let line = json!({
                "event": "sandbox_check",
                "attempt": attempt,
                "refused": error.is_some(),
                "error": error,
                "refused_by": refused_by,
            });
            REPORTS.print(line.to_string());
            continue;
        }
        let verdict = match (error, refused_by.is_empty()) {
            (Some(error), _) => format!("refused: {error}"),
            (None, true) => "possible: no active part covers it".to_owned(),
            (None, false) => format!("POSSIBLE, in spite of {}", refused_by.join(", ")),
        };
        REPORTS.print(format!("sandbox check: {attempt}: {verdict}"));
    }
    leaky
}

/// The attempt, its result, and the parts that must refuse it.
pub(super) type Tried = (&'static str, io::Result<()>, Vec<Part>);

pub(super) fn rights() -> Vec<Tried> {
    let has = |what: Result<bool, String>| match what {
        Ok(true) => Ok(()),
        Ok(false) => Err(io::Error::other("the process has none")),
        Err(error) => Err(io::Error::other(error)),
    };
    let capabilities = caps::read(None, CapSet::Permitted).map_err(|error| error.to_string());
    let no_new_privs = nix::sys::prctl::get_no_new_privs().map_err(|error| error.to_string());
    vec![
        ("keep_capabilities", has(capabilities.map(|held| !held.is_empty())), vec![CAPABILITIES]),
        ("gain_privileges", has(no_new_privs.map(|is_set| !is_set)), vec![NO_NEW_PRIVS]),
    ]
}

fn attempts(needs: Needs, abi: i32) -> Vec<Tried> {
    let anywhere = Ipv4Addr::LOCALHOST;
    // Port 9 is `discard`: without a listener, "connection refused" shows that the call is allowed.
    let connected = match TcpStream::connect((anywhere, 9)) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        other => other.map(drop),
    };
    let by_name = if needs.paths { vec![LANDLOCK] } else { vec![SECCOMP, LANDLOCK] };
    let from = |least: ABI| match abi >= least as i32 {
        true => vec![SECCOMP, LANDLOCK],
        false => vec![SECCOMP],
    };
    vec![
        ("udp_socket", UdpSocket::bind((anywhere, 0)).map(drop), vec![SECCOMP]),
        ("tcp_bind", TcpListener::bind((anywhere, 0)).map(drop), from(ABI::V4)),
        ("tcp_connect", connected, from(ABI::V4)),
        ("disconnect_listener", disconnect(), vec![SECCOMP]),
        // No service reads it.
        ("open_elsewhere", File::open("/").map(drop), by_name.clone()),
        ("make_file_elsewhere", make_file(), by_name),
        ("execute", execute(), from(ABI::V1)),
        ("signal_parent", kill(getppid(), None).map_err(io::Error::from), from(ABI::V6)),
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
