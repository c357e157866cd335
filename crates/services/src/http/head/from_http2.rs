//! The head of a request of HTTP/2, by the rules of HTTP/1.1.
//!
//! The h2 crate has checked what HTTP/2 itself requires (RFC 9113 section 8.2 and 8.3): the pseudo
//! fields, and that no field is about the connection.

use super::{
    Framing, HEADERS_MAX, Head, HeadLimits, Method, Name, Status, Target, is_host, known_method,
};
use http::request::Parts;
use httparse::Header;

impl<'h, 'a> Head<'h, 'a> {
    /// Reads the head of a request; `has_body` if more than the head follows.
    ///
    /// # Errors
    /// The status to answer with.
    pub fn from_http2(
        request: &'a Parts,
        has_body: bool,
        storage: &'h mut Vec<Header<'a>>,
        limits: HeadLimits,
    ) -> Result<Head<'h, 'a>, Status> {
        let method = known_method(request.method.as_str());
        let target = request.uri.path_and_query().map_or("", |target| target.as_str());
        if target.len() > limits.target_bytes {
            return Err(Status::URI_TOO_LONG);
        }
        let authority = request.uri.authority().map(|authority| authority.as_str());
        *storage = fields(request, authority)?;
        let mut head = Head {
            method,
            target: Target::Asterisk,
            authority: None,
            is_1_0: false,
            keep_alive: true,
            framing: Framing::Empty,
            expects_continue: false,
            fields: storage,
            seen: 0,
            repeated: 0,
        };
        head.take_note_of_fields();
        head.check_host()?;
        head.read_framing()?;
        // In HTTP/2 the end of the stream ends the body, whatever is announced.
        head.framing = match (has_body, head.framing) {
            (false, _) => Framing::Empty,
            (true, Framing::Empty) => Framing::Chunked,
            (true, announced) => announced,
        };
        head.read_expectation()?;
        match method {
            Method::Unknown => return Err(Status::NOT_IMPLEMENTED),
            Method::Other if Target::is_plausible(target) => {}
            Method::Other => return Err(Status::BAD_REQUEST),
            _ => head.target = Target::parse(target, method == Method::Options)?,
        }
        Ok(head)
    }
}

/// All fields, with the authority as `Host`. Both must be the same if there are both (RFC 9113
/// section 8.3.1).
fn fields<'a>(request: &'a Parts, authority: Option<&'a str>) -> Result<Vec<Header<'a>>, Status> {
    let hosts = request.headers.get_all(http::header::HOST);
    if let Some(authority) = authority
        && (!is_host(authority.as_bytes())
            || hosts.iter().any(|host| !host.as_bytes().eq_ignore_ascii_case(authority.as_bytes())))
    {
        return Err(Status::BAD_REQUEST);
    }
    let received = request.headers.iter();
    let received = received.map(|(name, value)| (name.as_str(), value.as_bytes()));
    let fields: Vec<Header<'a>> = received
        .filter(|(name, _)| authority.is_none() || *name != Name::Host.text())
        .chain(authority.map(|authority| (Name::Host.text(), authority.as_bytes())))
        .map(|(name, value)| Header { name, value })
        .collect();
    match fields.len() > HEADERS_MAX {
        true => Err(Status::HEADER_FIELDS_TOO_LARGE),
        false => Ok(fields),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<R>(
        uri: &str,
        fields: &[(&str, &str)],
        has_body: bool,
        look: impl FnOnce(&Head<'_, '_>) -> R,
    ) -> Result<R, Status> {
        let mut request = http::Request::builder().uri(uri);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let limits = HeadLimits { target_bytes: 64, ..HeadLimits::default() };
        let mut storage = Vec::new();
        Head::from_http2(&parts, has_body, &mut storage, limits).map(|head| look(&head))
    }

    #[test]
    fn the_authority_is_the_host() {
        let host = |head: &Head<'_, '_>| head.value(Name::Host).map(<[u8]>::to_vec);
        let one = Ok(Some(b"a.org:8080".to_vec()));
        assert_eq!(read("http://a.org:8080/x", &[], false, host), one);
        assert_eq!(read("/x", &[("host", "a.org:8080")], false, host), one);
        assert_eq!(read("http://a.org:8080/", &[("host", "A.org:8080")], false, host), one);
        let bad = Err(Status::BAD_REQUEST);
        assert_eq!(read("http://a.org/", &[("host", "b.org")], false, host), bad);
        assert_eq!(read("http://u@a.org/", &[], false, host), bad);
        assert_eq!(read("/", &[], false, host), bad);
        assert_eq!(read("/", &[("host", "a"), ("host", "a")], false, host), bad);
    }

    #[test]
    fn targets_and_bodies_are_read_as_in_http_1() {
        let target = |head: &Head<'_, '_>| format!("{:?}", head.target);
        let resource = Ok(r#"Resource { path: "/a%20b", query: Some("c") }"#.to_owned());
        assert_eq!(read("http://h/a%20b?c", &[], false, target), resource);
        let long = format!("http://h/{}", "x".repeat(64));
        assert_eq!(read(&long, &[], false, target), Err(Status::URI_TOO_LONG));
        let framing = |head: &Head<'_, '_>| (head.framing, head.expects_continue);
        let length = [("content-length", "5"), ("expect", "100-continue")];
        assert_eq!(read("http://h/", &length, true, framing), Ok((Framing::Length(5), true)));
        assert_eq!(read("http://h/", &length, false, framing), Ok((Framing::Empty, false)));
        assert_eq!(read("http://h/", &[], true, framing), Ok((Framing::Chunked, false)));
        let many: Vec<_> = (0..HEADERS_MAX).map(|_| ("x", "y")).collect();
        assert_eq!(read("http://h/", &many, false, framing), Err(Status::HEADER_FIELDS_TOO_LARGE));
    }
}
