//! Basic authentication (RFC 7617): directories of a site for which a user and a password are needed.
//!
//! The passwords are bcrypt hashes, which take tens to hundreds of milliseconds to verify. That
//! happens on threads for blocking work, a few at a time. Verified credentials are remembered by a
//! keyed hash, so that later requests are answered at once.

mod users;

pub(super) use users::Busy;
pub use users::Users;

use super::head::Head;
use super::path_rules::{PathMap, PathPattern};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// Longest value of `Authorization` that is decoded, in bytes.
const FIELD_BYTES_MAX: usize = 1024;

/// Longest realm, in bytes.
const REALM_BYTES_MAX: usize = 200;

/// A rule: the paths, and the file of their users.
#[derive(Clone, Debug)]
pub struct AuthRule {
    /// All beneath a directory: a file may be reachable by several paths, such as that of its
    /// directory.
    pub paths: PathPattern,
    /// In the format of htpasswd.
    pub file: PathBuf,
}

impl FromStr for AuthRule {
    type Err = String;

    /// From `PATH/*=FILE`.
    fn from_str(text: &str) -> Result<AuthRule, String> {
        let (paths, file) = text
            .split_once('=')
            .filter(|(_, file)| !file.is_empty())
            .ok_or_else(|| format!("`{text}` is not PATH/*=FILE, such as /private/*=/etc/users"))?;
        let paths: PathPattern = paths.parse()?;
        if !paths.is_prefix() {
            return Err(format!("`{paths}`: only directories can be protected; write `/dir/*`"));
        }
        Ok(AuthRule { paths, file: file.into() })
    }
}

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

/// The protected directories of a site.
#[derive(Clone, Debug, Default)]
pub struct Auth {
    realm: Realm,
    users: PathMap<Arc<Users>>,
}

/// Whether a request may be answered.
#[derive(Debug)]
pub(super) enum Access {
    Granted,
    /// Not with these credentials, or without any.
    Denied,
    /// The password must be verified first.
    Unknown(Arc<Users>, Credentials),
}

impl Auth {
    /// Protects these directories.
    ///
    /// # Errors
    /// When two rules are for the same one.
    pub fn new(
        realm: Realm,
        rules: impl IntoIterator<Item = (PathPattern, Arc<Users>)>,
    ) -> Result<Auth, String> {
        let mut auth = Auth { realm, users: PathMap::default() };
        for (paths, users) in rules {
            if auth.users.add(&paths, users).is_some() {
                return Err(format!("two files of users are for {paths}"));
            }
        }
        Ok(auth)
    }

    /// True if nothing is protected.
    pub(super) fn is_empty(&self) -> bool {
        self.users.is_empty()
    }

    /// Whether a request for a clean path may be answered.
    pub(super) fn access(&self, path: &[u8], head: &Head<'_, '_>) -> Access {
        let Some(users) = self.users.find(path) else { return Access::Granted };
        match head.field("authorization").and_then(Credentials::parse) {
            None => Access::Denied,
            Some(credentials) if users.are_verified(&credentials) => Access::Granted,
            Some(credentials) => Access::Unknown(Arc::clone(users), credentials),
        }
    }

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
    fn only_directories_are_protected_and_realms_cannot_end_the_field() {
        assert!("/private/*=/etc/users".parse::<AuthRule>().is_ok());
        for wrong in ["", "/*", "/*=", "/a=/etc/users", "a/*=/etc/users", "/a*=/etc/users"] {
            assert!(wrong.parse::<AuthRule>().is_err(), "{wrong:?}");
        }
        for wrong in ["a\"b", "a\\", "a\r\nX: y", "\u{fc}", &"x".repeat(201)] {
            assert!(wrong.parse::<Realm>().is_err(), "{wrong:?}");
        }
    }
}
