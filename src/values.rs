//! Values as people write them: sizes with units, addresses to listen on, times.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// Units of a size, by their first letter: 1 K is 1,024 bytes, as in dd(1) and nginx.
const UNITS: [(char, u64); 3] = [('k', 1 << 10), ('m', 1 << 20), ('g', 1 << 30)];

/// A number of bytes, such as `512`, `4K`, `4KB`, `4KiB` or `1M`.
pub(crate) fn size(text: &str) -> Result<u32, String> {
    let wrong = || format!("`{text}` is no size: expected bytes, such as 512, 4K or 1M");
    let lower = text.trim().to_ascii_lowercase();
    let digits = lower.trim_end_matches(|c: char| c.is_ascii_alphabetic()).trim_end();
    let unit = lower[digits.len()..].trim_start();
    let factor = match unit {
        "" | "b" => 1,
        _ => {
            let (_, factor) =
                UNITS.iter().find(|(letter, _)| unit.starts_with(*letter)).ok_or_else(wrong)?;
            match &unit[1..] {
                "" | "b" | "ib" => *factor,
                _ => return Err(wrong()),
            }
        }
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    let bytes = number.checked_mul(factor).and_then(|bytes| u32::try_from(bytes).ok());
    bytes.ok_or_else(|| format!("`{text}` is too large: at most {} bytes", u32::MAX))
}

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
            "`{text}` is no address: expected IP:PORT, [IPV6]:PORT, localhost:PORT, a PORT of \
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

/// A time, such as `500ms`, `10s` or `5m`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = |_| "expected a duration such as 500ms, 10s or 5m".to_owned();
    text.parse::<jiff::SignedDuration>().and_then(Duration::try_from).map_err(wrong)
}

/// The same, and not zero.
pub(crate) fn timeout(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("a timeout of 0 would close every connection at once".to_owned()),
        timeout => Ok(timeout),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_and_without_units() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("512B", 512),
            ("4K", 4096),
            ("4k", 4096),
            ("4 KB", 4096),
            ("4KiB", 4096),
            ("1M", 1 << 20),
            ("3GiB", 3 << 30),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "K", "4X", "4KX", "-1", "1.5K", "4G", "99999999999999999999", "4KiBs", "é"]
        {
            assert!(size(text).is_err(), "{text}");
        }
    }

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
