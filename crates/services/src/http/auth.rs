//! Basic authentication (RFC 7617): paths for which a user and a password are needed.
//!
//! The passwords are bcrypt hashes, which take tens to hundreds of milliseconds to verify. That
//! happens on threads for blocking work, a few at a time. Verified credentials are remembered by a
//! keyed hash, so that later requests are answered at once.

mod users;

pub(super) use users::Busy;
pub use users::Users;

use super::request::Request;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::str::FromStr;
use std::sync::Arc;

/// Longest value of `Authorization` that is decoded, in bytes.
const FIELD_BYTES_MAX: usize = 1024;

/// Longest realm, in bytes.
const REALM_BYTES_MAX: usize = 200;

/// The name of the protected part, which clients show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Realm(String);

impl Default for Realm {
    fn default() -> Realm {
        Realm("Restricted".to_owned())
    }
}

impl FromStr for Realm {
    type Err = String;

    fn from_str(text: &str) -> Result<Realm, String> {
        let is_plain = |byte: u8| (b' '..=b'~').contains(&byte) && !b"\"\\".contains(&byte);
        match text.bytes().all(is_plain) && text.len() <= REALM_BYTES_MAX {
            true => Ok(Realm(text.to_owned())),
            false => Err(format!(
                "`{text}` is not a realm: expected up to {REALM_BYTES_MAX} ASCII characters without \
                 quotes and backslashes"
            )),
        }
    }
}

/// Who is asked for a password, and by what name.
#[derive(Debug)]
pub struct Auth {
    /// See there.
    pub realm: Realm,
    /// See there.
    pub users: Users,
}

/// Whether a request may be answered.
#[derive(Debug)]
pub(super) enum Access {
    Granted,
    /// Not with these credentials, or without any: what asks for better ones.
    Denied(String),
    /// The password must be verified first, by each of these.
    Unknown(Vec<Arc<Auth>>, Credentials),
}

/// Whether a request may be answered that all of these ask for a password.
pub(super) fn access(all: &[&Arc<Auth>], request: &Request<'_>) -> Access {
    let Some(first) = all.first() else { return Access::Granted };
    let Some(credentials) = request.field("authorization").and_then(Credentials::parse) else {
        return Access::Denied(first.challenge());
    };
    let unknown = all.iter().filter(|auth| !auth.users.are_verified(&credentials));
    let unknown: Vec<Arc<Auth>> = unknown.map(|auth| Arc::clone(auth)).collect();
    match unknown.is_empty() {
        true => Access::Granted,
        false => Access::Unknown(unknown, credentials),
    }
}

impl Auth {
    /// The value of `WWW-Authenticate`.
    pub(super) fn challenge(&self) -> String {
        format!("Basic realm=\"{}\", charset=\"UTF-8\"", self.realm.0)
    }
}

/// A user and a password, as sent.
#[derive(Clone)]
pub struct Credentials {
    user: Vec<u8>,
    password: Vec<u8>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials")
    }
}

impl Credentials {
    /// The user, verified or not.
    pub(super) fn user(&self) -> &[u8] {
        &self.user
    }

    /// Parses the value of `Authorization`; none for other schemes and wrong syntax.
    pub fn parse(field: &[u8]) -> Option<Credentials> {
        if field.len() > FIELD_BYTES_MAX {
            return None;
        }
        let (scheme, encoded) = field.split_at_checked(6)?;
        if !scheme.eq_ignore_ascii_case(b"basic ") {
            return None;
        }
        let text = STANDARD.decode(encoded.trim_ascii()).ok()?;
        let colon = memchr::memchr(b':', &text)?;
        // RFC 7617 section 2: no control characters.
        let is_plain = !text.iter().any(u8::is_ascii_control);
        is_plain.then(|| Credentials {
            user: text[..colon].to_vec(),
            password: text[colon + 1..].to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_parsed_strictly() {
        let parsed = |text: &str| {
            let Credentials { user, password } = Credentials::parse(text.as_bytes())?;
            let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
            Some((text(user), text(password)))
        };
        let expected = |user: &str, password: &str| Some((user.to_owned(), password.to_owned()));
        assert_eq!(parsed("Basic YTpi"), expected("a", "b"));
        assert_eq!(parsed("bASIC   YTpi"), expected("a", "b"));
        assert_eq!(parsed("Basic YTpiOmM="), expected("a", "b:c"));
        assert_eq!(parsed("Basic Og=="), expected("", ""));
        for wrong in [
            "",
            "Basic",
            "Basic ",
            "Basic YTpi YTpi",
            "Bearer YTpi",
            "Basic YQ==",
            "Basic YTpi=",
            "Basic !",
            // A line break in the password.
            "Basic YTpiCmM=",
            &format!("Basic {}", "YTpi".repeat(300)),
        ] {
            assert_eq!(parsed(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn realms_cannot_end_the_field() {
        for wrong in ["a\"b", "a\\", "a\r\nX: y", "\u{fc}", &"x".repeat(201)] {
            assert!(wrong.parse::<Realm>().is_err(), "{wrong:?}");
        }
    }
}
