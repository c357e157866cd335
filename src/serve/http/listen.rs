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

/// Where to listen.
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

/// The addresses in a list.
pub(super) fn addresses(list: &[ListenOn]) -> Vec<SocketAddr> {
    let address = |on: &ListenOn| match on {
        ListenOn::Address(address) => Some(*address),
        _ => None,
    };
    list.iter().filter_map(address).collect()
}

/// The passed sockets of each list. A socket that none takes is named in a warning.
///
/// # Errors
/// When a list wants sockets that were not passed, or one is no listening TCP socket.
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
    let mut is_taken = vec![false; names.len()];
    for (list, number) in assign(&names, lists)? {
        let wrong = |why: &str| format!("passed socket {number} (`{}`): {why}", names[number]);
        if std::mem::replace(&mut is_taken[number], true) {
            return Err(wrong("it is taken already"));
        }
        sockets[list].push(take(number).map_err(|error| wrong(&error.to_string()))?);
    }
    let left = names.iter().zip(is_taken).filter(|(_, is_taken)| !is_taken);
    let left: Vec<&str> = left.map(|(name, _)| *name).collect();
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

/// For each wanted socket of these names its list and its number.
fn assign<const LISTS: usize>(
    names: &[&str],
    lists: [&[ListenOn]; LISTS],
) -> Result<Vec<(usize, usize)>, String> {
    if names.is_empty() {
        return Err("no sockets were passed: start it from a socket unit of systemd, as in \
                    deploy/twinring-http.socket"
            .to_owned());
    }
    let numbered = || names.iter().copied().enumerate();
    let by_name = |name: &str| lists.iter().copied().flatten().any(|on| is_named(on, name));
    let mut assigned = Vec::new();
    for (number_of_list, list) in lists.into_iter().enumerate() {
        for on in list {
            let wanted = |name: &str| match on {
                ListenOn::Address(_) => false,
                ListenOn::Passed => !by_name(name),
                on => is_named(on, name),
            };
            let before = assigned.len();
            let found = numbered().filter(|(_, name)| wanted(name));
            assigned.extend(found.map(|(number, _)| (number_of_list, number)));
            if assigned.len() == before && !matches!(on, ListenOn::Address(_)) {
                let what = match on {
                    ListenOn::Named(name) => format!("no socket named `{name}` was passed"),
                    _ => "every passed socket is taken by name".to_owned(),
                };
                let names = names.join(", ");
                return Err(format!(
                    "{what}: FileDescriptorName= in the socket unit names it; passed are: {names}"
                ));
            }
        }
    }
    Ok(assigned)
}

fn is_named(on: &ListenOn, name: &str) -> bool {
    matches!(on, ListenOn::Named(wanted) if wanted == name)
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
            (&["a.socket"][..], &["systemd"][..], &[][..], &[(0, 0)][..]),
            (&["a", "b", "a"], &["systemd"], &["fd:a"], &[(0, 1), (1, 0), (1, 2)]),
            (&["a", "b"], &["fd:b", "127.0.0.1:80"], &[], &[(0, 1)]),
            (&["unknown", "unknown"], &["systemd"], &[], &[(0, 0), (0, 1)]),
        ] {
            let (plain, tls) = (list(plain), list(tls));
            assert_eq!(assign(names, [&plain, &tls]).unwrap(), expected);
        }
        for (names, plain, words) in [
            (&[][..], &["systemd"][..], "no sockets were passed"),
            (&["a", "b"], &["fd:c"], "no socket named `c` was passed"),
            (&["a"], &["fd:a", "systemd"], "every passed socket is taken by name"),
        ] {
            let plain = list(plain);
            let error = assign(names, [&plain[..]]).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn names_and_addresses_are_told_apart() {
        let on = list(&["8080", "systemd", "fd:http"]);
        let address = "127.0.0.1:8080".parse().unwrap();
        let expected =
            [ListenOn::Address(address), ListenOn::Passed, ListenOn::Named("http".into())];
        assert_eq!(on, expected);
        assert_eq!(addresses(&on), [address]);
        for wrong in ["fd:", "fd:a:b", "fd", "systemd:80"] {
            assert!(wrong.parse::<ListenOn>().is_err(), "{wrong}");
        }
    }
}
