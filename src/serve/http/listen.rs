//! The addresses of the file server, and the sockets that systemd passes to it (sd_listen_fds(3)).

use crate::output::complain;
use crate::values;
use socket2::{Domain, Socket, Type};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{FromRawFd, RawFd};
use std::str::FromStr;

/// Names of passed sockets, in their order, separated by colons.
const NAMES: &str = "LISTEN_FDNAMES";

/// The first passed descriptor (SD_LISTEN_FDS_START).
const FIRST: RawFd = 3;

/// Sockets that are looked at, like systemd's own limit.
const SOCKETS_MAX: usize = 128;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ListenOn {
    /// On an address.
    Address(SocketAddr),
    /// On all passed sockets that no option takes by name.
    Passed,
    /// On those of this name.
    Named(String),
}

impl FromStr for ListenOn {
    type Err = String;

    fn from_str(text: &str) -> Result<ListenOn, String> {
        match text.strip_prefix("fd:") {
            Some(name) if name.is_empty() || name.contains(':') => {
                Err(format!("`{text}`: expected fd:NAME, with the name of a passed socket"))
            }
            Some(name) => Ok(ListenOn::Named(name.to_owned())),
            None if text == "systemd" => Ok(ListenOn::Passed),
            None => values::listen(text).map(ListenOn::Address),
        }
    }
}

pub(super) fn addresses(list: &[ListenOn]) -> Vec<SocketAddr> {
    let address = |on: &ListenOn| match on {
        ListenOn::Address(address) => Some(*address),
        _ => None,
    };
    list.iter().filter_map(address).collect()
}

/// The passed sockets of each list. A socket that none takes is named in a warning.
pub(super) fn passed<const LISTS: usize>(
    lists: [&[ListenOn]; LISTS],
) -> Result<[Vec<TcpListener>; LISTS], String> {
    let mut sockets = [const { Vec::new() }; LISTS];
    if lists.iter().all(|list| addresses(list).len() == list.len()) {
        return Ok(sockets);
    }
    let text = std::env::var(NAMES).unwrap_or_default();
    let mut names: Vec<&str> = text.split(':').filter(|_| !text.is_empty()).collect();
    // Names are optional.
    names.resize(count_passed(), "unknown");
    let mut left = Vec::new();
    for (number, (name, list)) in names.iter().zip(assign(&names, lists)?).enumerate() {
        let wrong = |error| format!("passed socket {number} (`{name}`): {error}");
        match list {
            Some(list) => sockets[list].push(take(number).map_err(wrong)?),
            None => left.push(*name),
        }
    }
    if !left.is_empty() {
        complain(&format!("twinring: not listening on passed sockets: {}", left.join(", ")));
    }
    Ok(sockets)
}

/// How many sockets were passed to this process. Without LISTEN_PID, they are for whoever reads the variable.
fn count_passed() -> usize {
    let text = |name: &str| std::env::var(name).unwrap_or_default();
    let process = text("LISTEN_PID");
    if !process.is_empty() && process.parse() != Ok(std::process::id()) {
        return 0;
    }
    text("LISTEN_FDS").parse().map_or(0, |count: usize| count.min(SOCKETS_MAX))
}

/// The passed socket of this number, which must not have been taken before.
fn take(number: usize) -> io::Result<TcpListener> {
    let descriptor = FIRST + RawFd::try_from(number).map_err(io::Error::other)?;
    // SAFETY: the call changes a flag of a descriptor, and fails if there is none.
    if unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, and by sd_listen_fds(3) it belongs to this process, in which nothing else knows of it.
    // The caller takes each number once.
    let socket = unsafe { Socket::from_raw_fd(descriptor) };
    let is_internet = matches!(socket.domain()?, Domain::IPV4 | Domain::IPV6);
    if !is_internet || socket.r#type()? != Type::STREAM || !socket.is_listener()? {
        return Err(io::Error::other("not a listening TCP socket"));
    }
    Ok(socket.into())
}

/// For each socket of these names the list that wants it.
fn assign<const LISTS: usize>(
    names: &[&str],
    lists: [&[ListenOn]; LISTS],
) -> Result<Vec<Option<usize>>, String> {
    if names.is_empty() {
        return Err("no sockets were passed: start it from a socket unit of systemd, as in \
                    deploy/twinring-http.socket"
            .to_owned());
    }
    let list_of = |on: &ListenOn| lists.iter().position(|list| list.contains(on));
    let by_name = |name: &str| list_of(&ListenOn::Named(name.to_owned()));
    let all = || lists.iter().copied().flatten();
    for on in all() {
        let what = match on {
            ListenOn::Address(_) => continue,
            on if all().filter(|other| *other == on).count() > 1 => {
                "a passed socket is wanted twice".to_owned()
            }
            ListenOn::Named(name) if !names.contains(&name.as_str()) => {
                format!("no socket named `{name}` was passed")
            }
            ListenOn::Passed if names.iter().all(|name| by_name(name).is_some()) => {
                "every passed socket is taken by name".to_owned()
            }
            _ => continue,
        };
        let names = names.join(", ");
        return Err(format!(
            "{what}: FileDescriptorName= in the socket unit names it; passed are: {names}"
        ));
    }
    let rest = list_of(&ListenOn::Passed);
    Ok(names.iter().map(|name| by_name(name).or(rest)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(texts: &[&str]) -> Vec<ListenOn> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn sockets_are_taken_by_name_and_the_rest_at_once() {
        for (names, plain, tls, expected) in [
            (&["a.socket"][..], &["systemd"][..], &[][..], &[Some(0)][..]),
            (&["a", "b", "a"], &["systemd"], &["fd:a"], &[Some(1), Some(0), Some(1)]),
            (&["a", "b"], &["fd:b", "127.0.0.1:80"], &[], &[None, Some(0)]),
            (&["unknown", "unknown"], &["systemd"], &[], &[Some(0), Some(0)]),
        ] {
            let (plain, tls) = (list(plain), list(tls));
            assert_eq!(assign(names, [&plain, &tls]).unwrap(), expected);
        }
        for (names, plain, words) in [
            (&[][..], &["systemd"][..], "no sockets were passed"),
            (&["a", "b"], &["fd:c"], "no socket named `c` was passed"),
            (&["a"], &["fd:a", "fd:a"], "wanted twice"),
            (&["a"], &["fd:a", "systemd"], "every passed socket is taken by name"),
        ] {
            let plain = list(plain);
            let error = assign(names, [&plain[..]]).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
