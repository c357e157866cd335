//! What the service manager is told: sd_notify(3), for `Type=notify-reload` of systemd.
//!
//! Not the crate sd-notify: it opens a socket for each message, which the sandbox refuses. This one is connected before
//! the sandbox is entered, and written to.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::OnceLock;

/// The socket of the manager: a path, or an abstract name behind `@`.
const SOCKET: &str = "NOTIFY_SOCKET";

static MANAGER: OnceLock<Option<File>> = OnceLock::new();

/// Connects to the manager, if there is one. Call it before the sandbox is entered.
pub(super) fn connect() {
    MANAGER.get_or_init(|| {
        let name = std::env::var_os(SOCKET)?;
        let address = match name.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name).ok()?,
            None => SocketAddr::from_pathname(&name).ok()?,
        };
        let socket = UnixDatagram::unbound().ok()?;
        socket.connect_addr(&address).ok()?;
        // A manager that does not read delays no server.
        socket.set_nonblocking(true).ok()?;
        Some(File::from(OwnedFd::from(socket)))
    });
}

/// Tells the manager: assignments, one a line.
pub(super) fn tell(state: &str) {
    if let Some(Some(mut manager)) = MANAGER.get().map(Option::as_ref) {
        let _nobody_reads = manager.write_all(state.as_bytes());
    }
}

pub(super) fn reloading() {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
    let us = now.map_or(0, |now| now.tv_sec() * 1_000_000 + now.tv_nsec() / 1000);
    tell(&format!("RELOADING=1\nMONOTONIC_USEC={us}"));
}

pub(super) fn reloaded(how: &str) {
    tell(&format!("READY=1\nSTATUS={}", how.replace('\n', " ")));
}
