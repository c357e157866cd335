//! Proxies in front of the service, and the clients that they name: by the PROXY protocol for a
//! connection, or by a header field for a request.

use super::request::Request;
use ipnet::IpNet;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// Networks. IPv4 addresses mapped to IPv6 count as IPv4.
#[derive(Clone, Debug, Default)]
pub struct Networks(Box<[IpNet]>);

impl Networks {
    /// True if the address is in one of them.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }

    /// True without any.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<IpNet> for Networks {
    fn from_iter<I: IntoIterator<Item = IpNet>>(networks: I) -> Networks {
        Networks(networks.into_iter().collect())
    }
}

/// The field in which trusted proxies name the client. Only one is read: a client can send the other
/// one through proxies that do not know it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForwardedField {
    /// `X-Forwarded-For`.
    #[default]
    XForwardedFor,
    /// `Forwarded`, RFC 7239.
    Forwarded,
}

impl FromStr for ForwardedField {
    type Err = String;

    fn from_str(text: &str) -> Result<ForwardedField, String> {
        match text {
            "x-forwarded-for" => Ok(ForwardedField::XForwardedFor),
            "forwarded" => Ok(ForwardedField::Forwarded),
            _ => Err("expected x-forwarded-for or forwarded".to_owned()),
        }
    }
}

/// The proxies in front of the service.
#[derive(Clone, Debug, Default)]
pub struct Forwarders {
    /// Connections from here must begin with a header of the PROXY protocol.
    pub proxy_protocol: Networks,
    /// Header fields of these are believed.
    pub trusted: Networks,
    /// The field of these.
    pub field: ForwardedField,
}

impl Forwarders {
    /// The client of a request from `peer`, if a trusted proxy names it. Each proxy appends the
    /// address that it got the request from, so the list is read from its end, up to the first
    /// address that is no trusted proxy: what is before it comes from there, and may be invented.
    pub(super) fn client(&self, peer: IpAddr, request: &Request<'_>) -> Option<IpAddr> {
        if !self.trusted.contains(peer) {
            return None;
        }
        let lines = |name| request.lines(name).map(|line| line.split(|byte| *byte == b','));
        match self.field {
            ForwardedField::XForwardedFor => self.client_in(lines("x-forwarded-for"), address_in),
            ForwardedField::Forwarded => self.client_in(lines("forwarded"), forwarded_for),
        }
    }

    /// True if a trusted proxy that sent the request says that its client used TLS: in
    /// `X-Forwarded-Proto`, or as `proto` in `Forwarded`. The first value counts, which is about the
    /// client. A client that invents it only keeps itself from being redirected to https.
    fn says_https(&self, peer: IpAddr, request: &Request<'_>) -> bool {
        if !self.trusted.contains(peer) {
            return false;
        }
        let elements = |name| request.lines(name).flat_map(|line| line.split(|byte| *byte == b','));
        let protocol = match self.field {
            ForwardedField::XForwardedFor => elements("x-forwarded-proto").next(),
            ForwardedField::Forwarded => {
                elements("forwarded").find_map(|element| parameter(element, b"proto="))
            }
        };
        protocol.is_some_and(|protocol| protocol.trim_ascii().eq_ignore_ascii_case(b"https"))
    }

    fn client_in<'a, L>(
        &self,
        lines: impl DoubleEndedIterator<Item = L>,
        address: fn(&[u8]) -> Option<IpAddr>,
    ) -> Option<IpAddr>
    where
        L: DoubleEndedIterator<Item = &'a [u8]>,
    {
        let mut client = None;
        for element in lines.rev().flat_map(Iterator::rev) {
            // A wrong element ends what can be believed.
            let Some(found) = address(element) else { break };
            client = Some(found);
            if !self.trusted.contains(found) {
                break;
            }
        }
        client
    }
}

/// An address, with a port or without.
fn address_in(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text.trim_ascii()).ok()?;
    let bracketed = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok().map(IpAddr::V6);
    let address = text.parse::<IpAddr>().ok();
    let address = address.or_else(|| text.parse::<SocketAddr>().ok().map(|address| address.ip()));
    address.or_else(bracketed).map(|address| address.to_canonical())
}

/// The address in an element such as `for="[2001:db8::7]:4711";proto=https`.
fn forwarded_for(element: &[u8]) -> Option<IpAddr> {
    address_in(parameter(element, b"for=")?)
}

/// The value of a parameter in an element, without its quotes; the name has its `=`.
fn parameter<'a>(element: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let mut pairs = element.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    let value = pairs.find_map(|pair| {
        let (found, value) = pair.split_at_checked(name.len())?;
        found.eq_ignore_ascii_case(name).then_some(value)
    })?;
    let unquoted = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\""));
    Some(unquoted.unwrap_or(value))
}

/// How requests of a connection arrive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transport {
    /// The connection uses TLS.
    pub(super) has_tls: bool,
    /// Who sends them, if that matters.
    pub(super) peer: Option<SocketAddr>,
}

impl Transport {
    /// True if the client of a request used TLS.
    pub(super) fn is_secure(self, forwarders: &Forwarders, request: &Request<'_>) -> bool {
        self.has_tls || self.peer.is_some_and(|peer| forwarders.says_https(peer.ip(), request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forwarders(field: ForwardedField) -> Forwarders {
        let trusted = ["10.0.0.0/8", "2001:db8:1::/48"];
        let trusted = trusted.iter().map(|network| network.parse().unwrap()).collect();
        Forwarders { trusted, field, ..Forwarders::default() }
    }

    fn client(field: ForwardedField, lines: &[&str]) -> Option<String> {
        let address = match field {
            ForwardedField::XForwardedFor => address_in,
            ForwardedField::Forwarded => forwarded_for,
        };
        let lines = lines.iter().map(|line| line.as_bytes().split(|byte| *byte == b','));
        let client = forwarders(field).client_in(lines, address);
        client.map(|client| client.to_string())
    }

    #[test]
    fn the_client_is_the_last_address_that_is_no_trusted_proxy() {
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
            let found = client(ForwardedField::XForwardedFor, lines);
            assert_eq!(found.as_deref(), expected, "{lines:?}");
        }
    }

    #[test]
    fn elements_of_rfc_7239_are_read() {
        for (line, expected) in [
            ("for=192.0.2.7", Some("192.0.2.7")),
            ("For=\"[2001:db8::7]:4711\";proto=https, for=10.1.1.1", Some("2001:db8::7")),
            ("proto=https; FOR=192.0.2.7 ;by=10.1.1.1", Some("192.0.2.7")),
            ("for=\"192.0.2.7:80\"", Some("192.0.2.7")),
            ("for=unknown, for=10.1.1.1", Some("10.1.1.1")),
            ("for=_hidden", None),
            ("for=\"192.0.2.7", None),
            // A quote that the client did not close reaches no later element.
            ("for=\"x, for=192.0.2.7", Some("192.0.2.7")),
            ("by=192.0.2.7", None),
        ] {
            let found = client(ForwardedField::Forwarded, &[line]);
            assert_eq!(found.as_deref(), expected, "{line}");
        }
    }
}
