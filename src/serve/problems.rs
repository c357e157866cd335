//! Why a service cannot start: how that is printed, and the exit code.

use crate::output::complain;
use std::io;
use std::process::ExitCode;

/// Exit code for invalid arguments and configuration files.
pub(super) const USAGE: u8 = 2;

pub(super) fn refuse(problems: &[String], code: u8) -> ExitCode {
    problems.iter().for_each(|problem| complain(&format!("twinring: {problem}")));
    ExitCode::from(code)
}

/// Adds a fix to the reason why an address could not be bound; `ss` is the command that shows the
/// socket that has it.
pub(super) fn with_remedy(error: &io::Error, ss: &str) -> String {
    let remedy = match error.kind() {
        io::ErrorKind::AddrInUse => {
            &format!("; another socket has this address: `{ss}` shows it; or choose another port")
        }
        io::ErrorKind::PermissionDenied => {
            "; ports below net.ipv4.ip_unprivileged_port_start need CAP_NET_BIND_SERVICE: choose \
             a higher port or grant the capability"
        }
        io::ErrorKind::AddrNotAvailable => {
            "; no interface of this machine has this address: `ip address` lists those it has"
        }
        _ => "",
    };
    format!("{error}{remedy}")
}
