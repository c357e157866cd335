//! Values of the command line: addresses to listen on, and quantities within the bounds of their options.

pub(crate) use twinring_input::quantity::{
    PerSecond, count_u32 as count, duration, size_u32 as size, switch, timeout,
};

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// An address to listen on: `127.0.0.1:8080`, `[::1]:8080`, `localhost:8080`; a port alone is
/// one of 127.0.0.1, and `:8080` or `*:8080` one of every IPv4 address.
pub(crate) fn listen(text: &str) -> Result<SocketAddr, String> {
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

/// The largest count where nothing else bounds it.
pub(crate) const MOST: u64 = u32::MAX as u64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_people_write_them() {
        for (text, address) in [
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("[::1]:80", "[::1]:80"),
            ("8080", "127.0.0.1:8080"),
            ("localhost:8080", "127.0.0.1:8080"),
            (":8080", "0.0.0.0:8080"),
            ("*:8080", "0.0.0.0:8080"),
        ] {
            assert_eq!(listen(text).unwrap().to_string(), address, "{text}");
        }
        for text in ["", ":", "+80", "65536", "example.org:80", "127.0.0.1", "80:80", "localhost:"]
        {
            assert!(listen(text).is_err(), "{text}");
        }
        assert!(listen("::1").unwrap_err().contains("did you mean [::1]:8080?"));
    }
}
