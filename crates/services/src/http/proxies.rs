//! Proxies in front of the service, and the clients that they name: by a header of the PROXY protocol, versions 1 and 2,
//! at the beginning of a connection (haproxy's doc/proxy-protocol.txt), or by a header field for a request.
//!
//! The header is required from certain proxies and from no one else, so it never has to be guessed.

use super::request::Request;
use crate::Network;
use crate::server::contain;
use std::net::{IpAddr, SocketAddr};

/// The client of a request from `peer`, if a trusted proxy names it. Each proxy appends the address that it got the
/// request from, so the list is read from its end, up to the first address that is no trusted proxy: what is before it
/// comes from there, and may be invented.
pub(super) fn client(trusted: &[Network], peer: IpAddr, request: &Request<'_>) -> Option<IpAddr> {
    if !contain(trusted, peer) {
        return None;
    }
    let mut client = None;
    let lines = request.lines("x-forwarded-for").rev();
    for element in lines.flat_map(|line| line.rsplit(|byte| *byte == b',')) {
        // A wrong element ends what can be believed.
        let Some(found) = address_in(element) else { break };
        client = Some(found);
        if !contain(trusted, found) {
            break;
        }
    }
    client
}

fn address_in(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text.trim_ascii()).ok()?;
    let bracketed = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok().map(IpAddr::V6);
    let address = text.parse::<IpAddr>().ok();
    let address = address.or_else(|| text.parse::<SocketAddr>().ok().map(|address| address.ip()));
    address.or_else(bracketed).map(|address| address.to_canonical())
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Transport {
    pub(super) has_tls: bool,
    pub(super) peer: Option<SocketAddr>,
}

impl Transport {
    /// It came over TLS, or a trusted proxy says so of its client. The first value counts, which is about the client. A
    /// client that invents it only keeps itself from being redirected to https.
    pub(super) fn is_secure(self, trusted: &[Network], request: &Request<'_>) -> bool {
        let mut lines = request.lines("x-forwarded-proto");
        let protocol = lines.next().and_then(|line| line.split(|byte| *byte == b',').next());
        self.has_tls
            || self.peer.is_some_and(|peer| contain(trusted, peer.ip()))
                && protocol.is_some_and(|it| it.trim_ascii().eq_ignore_ascii_case(b"https"))
    }
}

const V1_BYTES_MAX: usize = 107;

/// The longest header of version 2, in bytes: it may have extensions, which are skipped.
const V2_BYTES_MAX: usize = 4096;

const V1_START: &[u8] = b"PROXY ";
const V2_START: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

const V2_FIXED_BYTES: usize = 16;

/// A complete header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyHeader {
    /// Its length in bytes; behind it the client's data begins.
    pub length: usize,
    /// The client; none for a connection of the proxy itself, such as a health check, and for
    /// clients without an Internet address.
    pub client: Option<SocketAddr>,
}

/// The bytes are no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoProxyHeader;

impl ProxyHeader {
    /// Parses the beginning of a connection; none if more of it is needed, and an error if it cannot become a header.
    pub fn parse(bytes: &[u8]) -> Result<Option<ProxyHeader>, NoProxyHeader> {
        let begins = |start: &[u8]| {
            let common = bytes.len().min(start.len());
            bytes[..common] == start[..common]
        };
        match (begins(V1_START), begins(V2_START)) {
            (true, _) => parse_v1(bytes),
            (_, true) => parse_v2(bytes),
            _ => Err(NoProxyHeader),
        }
    }
}

fn parse_v1(bytes: &[u8]) -> Result<Option<ProxyHeader>, NoProxyHeader> {
    let window = &bytes[..bytes.len().min(V1_BYTES_MAX)];
    let Some(end) = memchr::memchr(b'\n', window) else {
        return if window.len() < V1_BYTES_MAX { Ok(None) } else { Err(NoProxyHeader) };
    };
    let line = window[..end].strip_suffix(b"\r").ok_or(NoProxyHeader)?;
    let line = std::str::from_utf8(line).map_err(|_| NoProxyHeader)?;
    let client = match line.split(' ').collect::<Vec<_>>()[..] {
        [_, "UNKNOWN", ..] => None,
        [_, family @ ("TCP4" | "TCP6"), from, to, from_port, to_port] => {
            let address = |text: &str| {
                let address = text.parse().ok();
                address.filter(|address: &IpAddr| address.is_ipv4() == (family == "TCP4"))
            };
            // Without leading zeros and signs.
            let port = |text: &str| text.parse().ok().filter(|port: &u16| port.to_string() == text);
            let from = address(from).zip(port(from_port)).ok_or(NoProxyHeader)?;
            let _to = address(to).zip(port(to_port)).ok_or(NoProxyHeader)?;
            Some(SocketAddr::from(from))
        }
        _ => return Err(NoProxyHeader),
    };
    Ok(Some(ProxyHeader { length: end + 1, client }))
}

fn parse_v2(bytes: &[u8]) -> Result<Option<ProxyHeader>, NoProxyHeader> {
    let Some((fixed, rest)) = bytes.split_first_chunk::<V2_FIXED_BYTES>() else {
        return Ok(None);
    };
    let [.., command, family, high, low] = *fixed;
    let length = usize::from(u16::from_be_bytes([high, low]));
    if !matches!(command, 0x20 | 0x21) || V2_FIXED_BYTES + length > V2_BYTES_MAX {
        return Err(NoProxyHeader);
    }
    let Some(addresses) = rest.get(..length) else { return Ok(None) };
    let length = V2_FIXED_BYTES + length;
    let client = match (command, family) {
        // LOCAL: a connection of the proxy itself.
        (0x20, _) => None,
        (_, 0x11) => Some(source::<4>(addresses).ok_or(NoProxyHeader)?),
        (_, 0x21) => Some(source::<16>(addresses).ok_or(NoProxyHeader)?),
        // Unspecified, and stream sockets of Unix.
        (_, 0x00 | 0x31) => None,
        _ => return Err(NoProxyHeader),
    };
    Ok(Some(ProxyHeader { length, client }))
}

/// The first address, of `N` bytes, and the first port: there are two of each.
fn source<const N: usize>(addresses: &[u8]) -> Option<SocketAddr>
where
    IpAddr: From<[u8; N]>,
{
    let (source, rest) = addresses.split_first_chunk::<N>()?;
    let [high, low, _, _] = *rest.get(N..)?.first_chunk()?;
    Some(SocketAddr::new(IpAddr::from(*source), u16::from_be_bytes([high, low])))
}

#[cfg(test)]
mod tests {
    use super::super::request::tests::with_head;
    use super::*;

    #[test]
    fn the_client_is_the_last_address_that_is_no_trusted_proxy() {
        let trusted =
            ["10.0.0.0/8", "2001:db8:1::/48"].map(|text| text.parse::<Network>().unwrap());
        for (lines, expected) in [
            (&["192.0.2.7"][..], Some("192.0.2.7")),
            (&["192.0.2.7, 10.1.1.1"], Some("192.0.2.7")),
            (&["192.0.2.7", "10.1.1.1 ,10.2.2.2"], Some("192.0.2.7")),
            // The beginning is invented.
            (&["198.51.100.1, 192.0.2.7, 10.1.1.1"], Some("192.0.2.7")),
            (&["10.9.9.9, 192.0.2.7"], Some("192.0.2.7")),
            (&["10.1.1.1, 10.2.2.2"], Some("10.1.1.1")),
            (&["192.0.2.7:4711"], Some("192.0.2.7")),
            (&["[2001:db8::7]:4711, 2001:db8:1::1"], Some("2001:db8::7")),
            (&["[2001:db8::7]"], Some("2001:db8::7")),
            (&["::ffff:192.0.2.7"], Some("192.0.2.7")),
            (&["unknown, 10.1.1.1"], Some("10.1.1.1")),
            (&["192.0.2.7, x"], None),
            (&["192.0.2.7,"], None),
            (&["192.0.2.07"], None),
            (&[""], None),
            (&[], None),
        ] {
            let lines: String =
                lines.iter().map(|line| format!("X-Forwarded-For: {line}\r\n")).collect();
            let text = format!("GET / HTTP/1.1\r\nHost: h\r\n{lines}\r\n");
            let of_peer = |peer: &str| {
                with_head(&text, |request| client(&trusted, peer.parse().unwrap(), request))
            };
            let expected = expected.map(|address: &str| address.parse().unwrap());
            assert_eq!((of_peer("10.0.0.1"), of_peer("192.0.2.1")), (expected, None), "{lines}");
        }
    }

    fn v2(command: u8, family: u8, addresses: &[u8]) -> Vec<u8> {
        let length = (addresses.len() as u16).to_be_bytes();
        [V2_START, &[command, family], &length, addresses].concat()
    }

    /// Parses a header with data behind it, and all its beginnings, which are incomplete.
    fn named(header: &[u8]) -> Option<SocketAddr> {
        for end in 0..header.len() {
            assert_eq!(ProxyHeader::parse(&header[..end]), Ok(None), "{end}");
        }
        let parsed = ProxyHeader::parse(&[header, b"GET / "].concat()).unwrap().unwrap();
        assert_eq!(parsed.length, header.len());
        parsed.client
    }

    #[test]
    fn both_versions_name_the_client() {
        let v4 = Some("192.0.2.7:4711".parse().unwrap());
        let v6 = Some("[2001:db8::7]:4711".parse().unwrap());
        assert_eq!(named(b"PROXY TCP4 192.0.2.7 192.0.2.1 4711 80\r\n"), v4);
        assert_eq!(named(b"PROXY TCP6 2001:db8::7 ::1 4711 80\r\n"), v6);
        assert_eq!(named(b"PROXY UNKNOWN\r\n"), None);
        assert_eq!(named(b"PROXY UNKNOWN ffff::1 x 1 2\r\n"), None);
        let in_v4 = [192, 0, 2, 7, 192, 0, 2, 1, 0x12, 0x67, 0, 80];
        assert_eq!(named(&v2(0x21, 0x11, &in_v4)), v4);
        // With an extension.
        assert_eq!(named(&v2(0x21, 0x11, &[&in_v4[..], &[4, 0, 1, 0]].concat())), v4);
        let mut in_v6 = [0; 36];
        in_v6[..4].copy_from_slice(&[0x20, 1, 0x0d, 0xb8]);
        (in_v6[15], in_v6[32], in_v6[33]) = (7, 0x12, 0x67);
        assert_eq!(named(&v2(0x21, 0x21, &in_v6)), v6);
        assert_eq!(named(&v2(0x20, 0x00, &[])), None);
        assert_eq!(named(&v2(0x20, 0x11, &in_v4)), None);
        assert_eq!(named(&v2(0x21, 0x00, b"x")), None);
        assert_eq!(named(&v2(0x21, 0x31, &[0; 216])), None);
    }

    #[test]
    fn anything_else_is_refused() {
        let long = format!("PROXY UNKNOWN {}", "x".repeat(200));
        let lines = "GET / HTTP/1.1\r\n|PROXX|\r\nx|PROXY TCP4 192.0.2.7 192.0.2.1 4711 80\n|\
            PROXY TCP4 192.0.2.7 192.0.2.1 4711\r\n|PROXY TCP4 192.0.2.7 192.0.2.1 4711 80 90\r\n|\
            PROXY TCP4  192.0.2.7 192.0.2.1 4711 80\r\n|PROXY TCP4 ::1 ::1 4711 80\r\n|\
            PROXY TCP6 192.0.2.7 192.0.2.1 4711 80\r\n|PROXY TCP4 192.0.2.07 192.0.2.1 4711 80\r\n|\
            PROXY TCP4 192.0.2.7 192.0.2.1 04711 80\r\n|PROXY TCP4 192.0.2.7 192.0.2.1 65536 80\r\n|\
            PROXY TCP4 192.0.2.7 192.0.2.1 +1 80\r\n|PROXY UDP4 192.0.2.7 192.0.2.1 1 80\r\n|PROXY \r\n";
        let lines = lines.split('|').chain([&*long]).map(|line| line.as_bytes().to_vec());
        let headers = [
            v2(0x11, 0x11, &[0; 12]),
            v2(0x22, 0x11, &[0; 12]),
            v2(0x21, 0x11, &[0; 11]),
            v2(0x21, 0x21, &[0; 35]),
            v2(0x21, 0x12, &[0; 12]),
            v2(0x21, 0x11, &[0; 5000]),
        ];
        for wrong in lines.chain(headers) {
            let shown = String::from_utf8_lossy(&wrong);
            assert_eq!(ProxyHeader::parse(&wrong), Err(NoProxyHeader), "{shown:?}");
        }
    }
}
