//! URLs, their requests, and the bytes of those.

use crate::address;
use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TE, TRANSFER_ENCODING, UPGRADE};
use http::uri::Scheme;
use http::{HeaderName, HeaderValue, Method, Uri, Version};
use std::net::SocketAddr;

/// A request: a parsed URL, and what is sent to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The URL as given.
    pub url: String,
    /// Its weight relative to the others.
    pub weight: u32,
    /// Method, header fields and content.
    pub request: Request,
    pub(super) tls: bool,
    /// A name or an address, without brackets.
    pub(super) host: String,
    port: u16,
    /// Host and port as the Host field has them.
    authority: String,
    /// The path with the query.
    path: String,
}

impl Target {
    /// Parses `http://HOST[:PORT][/PATH][?QUERY]`, or the same with https. The path is sent
    /// unchanged, with all dots and percent signs.
    ///
    /// # Errors
    /// The error, for a user.
    pub fn parse(url: &str, weight: u32) -> Result<Target, String> {
        let wrong = |why: &str| format!("{url}: {why}; expected http://HOST[:PORT][/PATH]");
        let (before, _fragment) = url.split_once('#').unwrap_or((url, ""));
        let uri: Uri = before.parse().map_err(|error| wrong(&format!("{error}")))?;
        let tls = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => false,
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            _ => return Err(wrong("neither http nor https")),
        };
        let authority = uri.authority().ok_or_else(|| wrong("no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("a user name goes into -H 'Authorization: ...'"));
        }
        // Servers refuse it in a Host field.
        if authority.as_str().contains('%') {
            return Err(wrong("a zone goes into --connect-to '[ADDRESS%ZONE]:PORT'"));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(wrong("no host"));
        }
        Ok(Target {
            url: url.to_owned(),
            weight,
            request: Request::default(),
            tls,
            host: host.to_owned(),
            port: authority.port_u16().unwrap_or(if tls { 443 } else { 80 }),
            authority: authority.as_str().to_owned(),
            // Written out, a query without a path gets its slash.
            path: uri.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string),
        })
    }

    /// The same URL with another request.
    #[must_use]
    pub fn asking(self, request: Request) -> Target {
        Target { request, ..self }
    }

    /// Scheme, host and port.
    pub fn origin(&self) -> String {
        format!("{}://{}", if self.tls { "https" } else { "http" }, self.authority)
    }

    pub(super) fn is_beside(&self, other: &Target) -> bool {
        (self.tls, &self.host, self.port) == (other.tls, &other.host, other.port)
    }

    /// The addresses of the server.
    ///
    /// # Errors
    /// When the name cannot be resolved.
    pub fn resolve(&self) -> Result<Vec<SocketAddr>, String> {
        address::of_host(&self.host, self.port)
    }

    /// The request of HTTP/2, without its content.
    pub(super) fn http2(&self) -> Result<http::Request<()>, String> {
        let Request { method, headers, body } = &self.request;
        let host = headers.iter().find(|(name, _)| name == HOST);
        let authority = match host {
            None => self.authority.as_bytes(),
            Some((_, value)) => value.as_bytes(),
        };
        let scheme = if self.tls { Scheme::HTTPS } else { Scheme::HTTP };
        let uri = Uri::builder().scheme(scheme).authority(authority).path_and_query(&*self.path);
        let uri = uri.build().map_err(|error| format!("{}: {error}", self.url))?;
        let mut request = http::Request::new(());
        *request.version_mut() = Version::HTTP_2;
        *request.method_mut() = method.clone();
        *request.uri_mut() = uri;
        let fields = request.headers_mut();
        for (name, value) in headers.iter().filter(|(name, _)| name != HOST) {
            // RFC 9113 section 8.2.2.
            let of_connection = [TE, UPGRADE].contains(name)
                || ["keep-alive", "proxy-connection"].contains(&name.as_str());
            if of_connection && !(name == TE && value == "trailers") {
                return Err(format!(
                    "-H '{name}: ...' is about a connection of HTTP/1.1, and is not \
                                    allowed with --http2"
                ));
            }
            fields.append(name.clone(), value.clone());
        }
        if self.request.states_length() {
            fields.insert(CONTENT_LENGTH, body.len().into());
        }
        Ok(request)
    }

    pub(super) fn bytes(&self, keepalive: bool) -> Vec<u8> {
        let Request { method, headers, body } = &self.request;
        let mut bytes = Vec::new();
        let mut put = |parts: &[&[u8]]| parts.iter().for_each(|part| bytes.extend_from_slice(part));
        put(&[method.as_str().as_bytes(), b" ", self.path.as_bytes(), b" HTTP/1.1\r\n"]);
        if !headers.iter().any(|(name, _)| name == HOST) {
            put(&[b"Host: ", self.authority.as_bytes(), b"\r\n"]);
        }
        for (name, value) in headers {
            put(&[name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"]);
        }
        if !keepalive {
            put(&[b"Connection: close\r\n"]);
        }
        if self.request.states_length() {
            put(&[b"Content-Length: ", body.len().to_string().as_bytes(), b"\r\n"]);
        }
        put(&[b"\r\n", body]);
        bytes
    }
}

/// What is sent to a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The method.
    pub method: Method,
    /// Further header fields.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The content.
    pub body: Bytes,
}

impl Default for Request {
    fn default() -> Request {
        Request { method: Method::GET, headers: Vec::new(), body: Bytes::new() }
    }
}

impl Request {
    /// Parses a header field, `NAME: VALUE`.
    ///
    /// # Errors
    /// The error, for a user.
    pub fn field(text: &str) -> Result<(HeaderName, HeaderValue), String> {
        let (name, value) = text.split_once(':').ok_or("expected `NAME: VALUE`")?;
        let name: HeaderName = name.parse().map_err(|error| format!("{error}"))?;
        let value =
            HeaderValue::from_str(value.trim_ascii()).map_err(|error| format!("{error}"))?;
        match name {
            CONTENT_LENGTH | TRANSFER_ENCODING => {
                Err(format!("{name} follows from --body and cannot be given"))
            }
            CONNECTION => Err("for `Connection: close` there is --no-keepalive".to_owned()),
            _ => Ok((name, value)),
        }
    }

    /// True if the length of the content is stated, even if there is none.
    fn states_length(&self) -> bool {
        let takes_content = [Method::POST, Method::PUT, Method::PATCH].contains(&self.method);
        takes_content || !self.body.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(text: &str, request: &Request, keepalive: bool) -> String {
        let target = Target { request: request.clone(), ..Target::parse(text, 1).unwrap() };
        String::from_utf8(target.bytes(keepalive)).unwrap()
    }

    #[test]
    fn a_zone_is_not_sent() {
        for url in ["http://[::1%1]/", "http://[fe80::1%25lo]:81/", "http://[fe80::1%lo]:81/"] {
            assert!(Target::parse(url, 1).is_err(), "{url}");
        }
    }

    #[test]
    fn requests_are_as_short_as_they_can_be() {
        let plain = request("http://localhost:8080", &Request::default(), true);
        assert_eq!(plain, "GET / HTTP/1.1\r\nHost: localhost:8080\r\n\r\n");
        assert!(request("http://h?q=1", &Request::default(), true).starts_with("GET /?q=1 HTTP"));
        let closing = request("https://[::1]/a/../%2e?q#part", &Request::default(), false);
        assert_eq!(closing, "GET /a/../%2e?q HTTP/1.1\r\nHost: [::1]\r\nConnection: close\r\n\r\n");
        let post = Request {
            method: Method::POST,
            headers: vec![Request::field("Host: other").unwrap(), Request::field("x:1").unwrap()],
            body: b"content".to_vec().into(),
        };
        let expected =
            "POST /x HTTP/1.1\r\nhost: other\r\nx: 1\r\nContent-Length: 7\r\n\r\ncontent";
        assert_eq!(request("http://h/x", &post, true), expected);
    }
}
