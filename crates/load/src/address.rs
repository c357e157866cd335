//! The addresses of a server by its name, and which of them can be measured.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::Duration;

const ADDRESSES_MAX: usize = 64;

/// How long a datagram may take to be refused.
const REFUSAL: Duration = Duration::from_millis(50);

/// Reads `HOST:PORT`: a name, an IPv4 address, or an IPv6 address in brackets, which may have a zone, as in
/// `[fe80::1%eth0]:80`. All addresses of a name are returned.
///
/// # Errors
/// The error, for a user.
pub fn resolve(text: &str) -> Result<Vec<SocketAddr>, String> {
    let wrong = || format!("`{text}` is no address: expected IP:PORT, [IPV6]:PORT or NAME:PORT");
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
    let port = port.parse().ok().filter(|_| is_number).ok_or_else(wrong)?;
    match (host.strip_prefix('['), host.contains(':')) {
        (Some(inside), _) => of_host(inside.strip_suffix(']').ok_or_else(wrong)?, port),
        (None, false) => of_host(host, port),
        (None, true) => Err(format!("{}; did you mean [{host}]:{port}?", wrong())),
    }
}

/// The addresses of a name, or an address without brackets.
///
/// # Errors
/// The error, for a user.
pub fn of_host(host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let found = (host, port).to_socket_addrs().map_err(|error| format!("{host}: {error}"))?;
    let mut all: Vec<SocketAddr> = Vec::new();
    for address in found.take(ADDRESSES_MAX) {
        if !all.contains(&address) {
            all.push(address);
        }
    }
    if all.is_empty() { Err(format!("{host} has no address")) } else { Ok(all) }
}

/// What is tried to learn whether a server is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// A connection within this time.
    Tcp(Duration),
    /// An empty datagram, which a host without the port refuses.
    Udp,
}

/// Those of several addresses that a server is reachable at, and why the others are left out. `localhost` often has two
/// addresses and a server at one. A single address is not tried.
///
/// # Errors
/// When none is reachable; it names all with their reasons.
pub fn reachable(
    all: Vec<SocketAddr>,
    probe: Probe,
) -> Result<(Vec<SocketAddr>, Vec<String>), String> {
    if all.len() < 2 {
        return Ok((all, Vec::new()));
    }
    let tries: Vec<io::Result<()>> = std::thread::scope(|scope| {
        let all: Vec<_> = all.iter().map(|it| scope.spawn(|| attempt(*it, probe))).collect();
        let broken = || Err(io::Error::other("the attempt failed"));
        all.into_iter().map(|it| it.join().unwrap_or_else(|_| broken())).collect()
    });
    let (mut good, mut notes) = (Vec::new(), Vec::new());
    for (address, tried) in all.into_iter().zip(tries) {
        match tried {
            Ok(()) => good.push(address),
            Err(error) => notes.push(format!("{address}: {error}")),
        }
    }
    match good.is_empty() {
        false => Ok((good, notes)),
        true => Err(format!("the server is not reachable: {}", notes.join("; "))),
    }
}

fn attempt(address: SocketAddr, probe: Probe) -> io::Result<()> {
    if let Probe::Tcp(limit) = probe {
        return TcpStream::connect_timeout(&address, limit).map(drop);
    }
    let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    socket.connect(address)?;
    socket.send(&[])?;
    socket.set_read_timeout(Some(REFUSAL))?;
    match socket.recv(&mut [0; 1]) {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::net::TcpListener;

    #[test]
    fn addresses_are_read_with_zones() {
        for (text, is) in [
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("[::1]:80", "[::1]:80"),
            ("[fe80::1%7]:80", "[fe80::1%7]:80"),
            ("[fe80::1%lo]:80", "[fe80::1%1]:80"),
        ] {
            let all = resolve(text).unwrap();
            assert_eq!(all.iter().map(ToString::to_string).collect::<Vec<_>>(), [is], "{text}");
        }
        // A minimal chroot does not know the name.
        let localhost = "localhost:7".to_socket_addrs().ok().map(HashSet::<SocketAddr>::from_iter);
        assert_eq!(resolve("localhost:7").ok().map(HashSet::from_iter), localhost);
        for wrong in ["", ":", "1.2.3.4", "1.2.3.4:", "1.2.3.4:+8", "1.2.3.4:70000", "[::1:80"] {
            assert!(resolve(wrong).unwrap_err().contains("expected"), "{wrong}");
        }
        assert!(resolve("::1:80").unwrap_err().contains("did you mean [::1]:80?"));
        for wrong in ["[fe80::1%nope]:80", "[fe80::1%..]:80", "[fe80::1%]:80"] {
            assert!(resolve(wrong).is_err(), "{wrong}");
        }
    }

    /// `localhost` was its first address only, and a server at the second was refused.
    #[test]
    fn the_addresses_without_a_server_are_left_out_and_named() {
        let there = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = there.local_addr().unwrap();
        // Bound and not listening.
        let not_there = UdpSocket::bind(("127.0.0.77", 0)).unwrap().local_addr().unwrap();
        let tcp = Probe::Tcp(Duration::from_secs(5));
        let (good, notes) = reachable(vec![not_there, here], tcp).unwrap();
        assert_eq!(good, [here]);
        assert!(notes[0].contains(&not_there.to_string()), "{notes:?}");
        let error = reachable(vec![not_there, not_there], Probe::Udp).unwrap_err();
        assert!(error.contains(&not_there.to_string()), "{error}");
        assert_eq!(reachable(vec![not_there], tcp).unwrap().0, [not_there]);
    }
}
