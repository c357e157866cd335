//! Redirects of a site: from a path to another path, from a host to another host, from http to
//! https.
//!
//! A location consists of what the operator wrote, the rest of a clean path, encoded again, and the
//! query of the request, which is checked when its head is parsed. A client can therefore neither
//! choose another host nor add a line. In a redirect to https, the host is the one that it addressed.

use super::Status;
use super::pattern::{PathGlob, REST};
use super::request::Request;
use super::target::{Target, encode};

const TO_BYTES_MAX: usize = 4096;

/// Where requests are sent instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Redirect {
    pub(super) status: Status,
    to: String,
    /// The rest of the path is appended.
    with_rest: bool,
}

impl Redirect {
    /// A redirect to `to`, for these patterns. `**` at its end stands for what `**` matches at theirs.
    pub(super) fn new(to: &str, status: u16, patterns: &[PathGlob]) -> Result<Redirect, String> {
        let is_redirect = matches!(status, 301 | 302 | 307 | 308);
        let wrong =
            || format!("`{status}` is not a redirect status: expected 301, 302, 307 or 308");
        let status = Status::from_u16(status).ok().filter(|_| is_redirect).ok_or_else(wrong)?;
        // A rule without a pattern is for all paths, which have a rest.
        let have_rest = patterns.iter().all(|pattern| pattern.directory().is_some());
        let (to, with_rest) = match to.strip_suffix("**") {
            Some(prefix) if to.ends_with(REST) && have_rest => (prefix, true),
            _ => (to, false),
        };
        check_to(to)?;
        if with_rest && to.contains('?') {
            return Err(format!(
                "`{to}**` is not a redirect target: its query cannot end with `**`"
            ));
        }
        Ok(Redirect { status, to: to.to_owned(), with_rest })
    }

    pub(super) fn location(&self, rest: &[u8], query: Option<&str>) -> String {
        let mut location = self.to.clone();
        if self.with_rest {
            location.push_str(&encode(rest));
        }
        if let Some(query) = query {
            location.push(if location.contains('?') { '&' } else { '?' });
            location.push_str(query);
        }
        location
    }
}

/// A path of this site, or a URL of http or https.
fn check_to(to: &str) -> Result<(), String> {
    let wrong = |why: &str| Err(format!("`{to}` is not a redirect target: {why}"));
    if to.len() > TO_BYTES_MAX {
        return wrong("it has more than 4096 bytes");
    }
    let is_url = to.starts_with("http://") || to.starts_with("https://");
    // A browser reads `//host` and `/\host` as another host.
    let is_path = to.starts_with('/') && !to.starts_with("//");
    if !is_url && !is_path {
        return wrong(
            "expected a path such as /new/, or a URL that begins with http:// or https://",
        );
    }
    match Target::parse(to, false) {
        Ok(target) if target.path.contains('*') => {
            wrong("`**` is allowed at its end only, behind a slash, and if all patterns end so")
        }
        // `https://host` would swallow what is appended to it.
        Ok(_) if is_url && to.split('?').next().is_none_or(|url| url.matches('/').count() < 3) => {
            wrong("its path is missing; end it with a slash")
        }
        Ok(_) => Ok(()),
        Err(_) => wrong("it is not a valid URL, or has a fragment; encode special characters"),
    }
}

/// Where a request without TLS is sent, to this port; none if it does not name its host.
pub(super) fn to_https(port: u16, request: &Request<'_>) -> Option<String> {
    let host = std::str::from_utf8(request.host()?).ok()?;
    let host = match host.rsplit_once(':') {
        Some((name, _)) if !host.ends_with(']') => name,
        _ => host,
    };
    let port = if port == 443 { String::new() } else { format!(":{port}") };
    let query = request.query.map(|query| format!("?{query}")).unwrap_or_default();
    (!host.is_empty()).then(|| format!("https://{host}{port}{}{query}", request.path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redirect(from: &str, status: u16, to: &str) -> Result<Redirect, String> {
        Redirect::new(to, status, &[from.parse()?])
    }

    #[test]
    fn targets_with_a_foreign_line_or_host_are_refused() {
        let wrong = "/a |/a b|/a //evil.example/|/a /\\evil.example|/a /b\r\nX: y|/a /b c|/a /b#c|/a https://|\
            /a https://user@h/|/a https://h|/a/** https://h**|/a ftp://h/|/a javascript:alert(1)|/a /b/**|\
            *.html /b/**|/*/a/** /b/**|/a/** /b**|/a/** /b/**/c|/a/** /b?c=/**|/a/** https://h?/**";
        for line in wrong.split('|') {
            let (from, to) = line.split_once(' ').unwrap();
            assert!(redirect(from, 301, to).is_err(), "{from} {to:?}");
        }
        for status in [200, 300, 303, 304] {
            assert!(redirect("/a", status, "/b").is_err(), "{status}");
        }
        assert!(Redirect::new("https://example.org/**", 308, &[]).is_ok());
    }
}
