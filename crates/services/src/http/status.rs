//! The status codes that the service answers with.

use std::fmt;

/// A status code of RFC 9110.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Status(u16);

macro_rules! statuses {
    ($($name:ident = $code:literal $reason:literal,)*) => {
        #[allow(missing_docs)]
        impl Status {
            $(pub const $name: Status = Status($code);)*

            /// Its reason phrase.
            pub fn reason(self) -> &'static str {
                match self.0 {
                    $($code => $reason,)*
                    _ => "",
                }
            }
        }
    };
}

statuses! {
    OK = 200 "OK",
    NO_CONTENT = 204 "No Content",
    PARTIAL_CONTENT = 206 "Partial Content",
    MOVED_PERMANENTLY = 301 "Moved Permanently",
    FOUND = 302 "Found",
    NOT_MODIFIED = 304 "Not Modified",
    TEMPORARY_REDIRECT = 307 "Temporary Redirect",
    PERMANENT_REDIRECT = 308 "Permanent Redirect",
    BAD_REQUEST = 400 "Bad Request",
    UNAUTHORIZED = 401 "Unauthorized",
    FORBIDDEN = 403 "Forbidden",
    NOT_FOUND = 404 "Not Found",
    METHOD_NOT_ALLOWED = 405 "Method Not Allowed",
    REQUEST_TIMEOUT = 408 "Request Timeout",
    PRECONDITION_FAILED = 412 "Precondition Failed",
    CONTENT_TOO_LARGE = 413 "Content Too Large",
    URI_TOO_LONG = 414 "URI Too Long",
    RANGE_NOT_SATISFIABLE = 416 "Range Not Satisfiable",
    EXPECTATION_FAILED = 417 "Expectation Failed",
    MISDIRECTED_REQUEST = 421 "Misdirected Request",
    TOO_MANY_REQUESTS = 429 "Too Many Requests",
    HEADER_FIELDS_TOO_LARGE = 431 "Request Header Fields Too Large",
    INTERNAL_ERROR = 500 "Internal Server Error",
    NOT_IMPLEMENTED = 501 "Not Implemented",
    UNAVAILABLE = 503 "Service Unavailable",
    VERSION_NOT_SUPPORTED = 505 "HTTP Version Not Supported",
}

impl Status {
    /// The number.
    pub fn code(self) -> u16 {
        self.0
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0, self.reason())
    }
}
