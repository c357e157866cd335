//! Why a service cannot start: how that is printed, and the exit code.

use crate::output::complain;
use std::io;
use std::process::ExitCode;

/// Exit code for invalid arguments and configuration files.
pub(super) const USAGE: u8 = 2;

/// Errors of a command line or configuration file that are printed; further ones are counted.
const PROBLEMS_MAX: usize = 50;

/// Prints the errors.
pub(super) fn refuse(problems: &[String], code: u8) -> ExitCode {
    let told = problems.iter().take(PROBLEMS_MAX);
    told.for_each(|problem| complain(&format!("twinring: {problem}")));
    if let Some(more @ 1..) = problems.len().checked_sub(PROBLEMS_MAX) {
        complain(&format!("twinring: and {more} more"));
    }
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
