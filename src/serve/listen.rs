//! Addresses to listen on: as people write them, those of sockets that systemd passes (sd_listen_fds(3)), each once, and
//! of a family that this machine has (not IPv6 under `ipv6.disable=1`).

use crate::output::complain;
use socket2::{Domain, Socket, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{FromRawFd, RawFd};
use std::str::FromStr;

/// An address to listen on: `127.0.0.1:8080`, `[::1]:8080`, `localhost:8080`; a port alone is
/// one of 127.0.0.1, and `:8080` or `*:8080` one of every IPv4 address.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let wrong = || {
        let hint = match text.parse::<IpAddr>() {
            Ok(IpAddr::V6(ip)) => format!("; did you mean [{ip}]:8080?"),
            Ok(IpAddr::V4(ip)) => format!("; did you mean {ip}:8080?"),
            Err(_) => String::new(),
        };
        format!(
            "`{text}` is not an address: expected IP:PORT, [IPV6]:PORT, localhost:PORT, a PORT of \
             127.0.0.1, or :PORT for every IPv4 address{hint}"
        )
    };
    let (host, port) =
        text.rsplit_once(':').map_or((None, text), |(host, port)| (Some(host), port));
    let ip = match host {
        None | Some("localhost") => Ipv4Addr::LOCALHOST.into(),
        Some("" | "*") => Ipv4Addr::UNSPECIFIED.into(),
        Some("[::]") => Ipv6Addr::UNSPECIFIED.into(),
        Some(_) => return Err(wrong()),
    };
    // `+80` would parse.
    let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
    let port: u16 = port.parse().ok().filter(|_| is_number).ok_or_else(wrong)?;
    Ok(SocketAddr::new(ip, port))
}

/// An address that stands twice: binding it again would blame another process.
pub(super) fn once(mut addresses: Vec<SocketAddr>) -> Result<(), String> {
    addresses.sort_unstable();
    let twice = addresses.windows(2).find(|pair| pair[0] == pair[1] && pair[0].port() != 0);
    twice.map_or(Ok(()), |pair| Err(format!("{} stands twice among the addresses", pair[0])))
}

/// These addresses without those whose family the machine lacks, with a warning for each. If no
/// address remains, all of them: binding them returns the error.
pub(super) fn available(all: &[SocketAddr]) -> Vec<SocketAddr> {
    let (lacking, left): (Vec<_>, _) = all.iter().copied().partition(|it| lacks_family(*it));
    if left.is_empty() {
        return lacking;
    }
    for address in lacking {
        complain(&format!(
            "twinring: not listening on {address}: this machine has no IPv6; the other addresses \
             are served"
        ));
    }
    left
}

/// True if this address cannot be bound because there is no IPv6. If `::1` can be bound, the reason
/// is another one, such as an address that this machine does not have.
fn lacks_family(address: SocketAddr) -> bool {
    let refusal = |mut address: SocketAddr| {
        address.set_port(0);
        UdpSocket::bind(address).err().and_then(|error| error.raw_os_error())
    };
    let loopback = SocketAddr::from((Ipv6Addr::LOCALHOST, 0));
    address.is_ipv6()
        && match refusal(address) {
            Some(libc::EAFNOSUPPORT) => true,
            Some(libc::EADDRNOTAVAIL) => refusal(loopback) == Some(libc::EADDRNOTAVAIL),
            _ => false,
        }
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
            None => address(text).map(ListenOn::Address),
        }
    }
}

pub(super) fn addresses(list: &[ListenOn]) -> Vec<SocketAddr> {
    let is = |on: &ListenOn| if let ListenOn::Address(is) = on { Some(*is) } else { None };
    list.iter().filter_map(is).collect()
}

/// The passed sockets of each list. A socket that none takes is named in a warning.
pub(super) fn passed<const LISTS: usize>(
    lists: [&[ListenOn]; LISTS],
) -> Result<[Vec<TcpListener>; LISTS], String> {
    let mut sockets = [const { Vec::new() }; LISTS];
    if lists.iter().all(|list| addresses(list).len() == list.len()) {
        return Ok(sockets);
    }
    let text = variable("LISTEN_FDNAMES");
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

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

/// How many sockets were passed to this process. Without LISTEN_PID, they are for whoever reads the variable.
fn count_passed() -> usize {
    let process = variable("LISTEN_PID");
    if !process.is_empty() && process.parse() != Ok(std::process::id()) {
        return 0;
    }
    variable("LISTEN_FDS").parse().map_or(0, |count: usize| count.min(SOCKETS_MAX))
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

    #[test]
    fn addresses_are_read_as_people_write_them() {
        let loopback = ["127.0.0.1:80", "80", "localhost:80"].map(|text| (text, "127.0.0.1:80"));
        let others = [("[::1]:80", "[::1]:80"), (":80", "0.0.0.0:80"), ("*:80", "0.0.0.0:80")];
        for (text, expected) in loopback.into_iter().chain(others) {
            assert_eq!(address(text).unwrap().to_string(), expected, "{text}");
        }
        for text in ["", ":", "+80", "65536", "a.org:80", "127.0.0.1", "80:80", "localhost:"] {
            assert!(address(text).is_err(), "{text}");
        }
        assert!(address("::1").unwrap_err().contains("did you mean [::1]:8080?"));
    }

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
