//! Basic authentication (RFC 7617): paths for which a user and a password are needed, and the users of a file in the
//! format of htpasswd.
//!
//! The passwords are bcrypt hashes, which take tens to hundreds of milliseconds to verify. That
//! happens on threads for blocking work, a few at a time. Verified credentials are remembered by a
//! keyed hash, so that later requests are answered at once.

use crate::lock;
use crate::server::{ConnectionLimiter, Permit};
use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bcrypt::HashParts;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::str::FromStr;
use std::sync::{Arc, LazyLock, Mutex};
use tokio::sync::Semaphore;
use twinring::spawn_blocking;

/// Longest value of `Authorization` that is decoded, in bytes.
const FIELD_BYTES_MAX: usize = 1024;

const REALM_BYTES_MAX: usize = 200;

/// A user and a password, as sent.
#[derive(Clone)]
pub struct Credentials {
    pub(super) user: Vec<u8>,
    password: Vec<u8>,
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

const FILE_BYTES_MAX: u64 = 1 << 20;

const COST_MIN: u32 = 4;

/// The highest cost of a hash. Each further one doubles the time: 14 takes about a second.
const COST_MAX: u32 = 14;

/// Verifications at a time, of the whole process: the workers need the CPUs.
const RUNNING_MAX: usize = 2;

/// Verifications that run or wait, of the whole process; a request beyond gets 503.
const WAITING_MAX: usize = 64;

/// Those of one IPv4 address, or of one IPv6 network of 64 bits: whoever tries passwords leaves room for others.
const WAITING_OF_CLIENT_MAX: usize = 4;

/// Credentials of one file that are remembered as verified. When there are more, all are forgotten.
const VERIFIED_MAX: usize = 1024;

/// Salt and hash of no known password.
const OF_NOBODY: &str = "......................012345678901234567890123456789C";

static WAITING: LazyLock<Arc<ConnectionLimiter>> =
    LazyLock::new(|| ConnectionLimiter::new(WAITING_MAX, WAITING_OF_CLIENT_MAX));
static RUNNING: Semaphore = Semaphore::const_new(RUNNING_MAX);

/// Users who are asked for a password, with the hashes of their passwords.
pub struct Auth {
    pub(super) challenge: String,
    hashes: HashMap<Vec<u8>, String>,
    /// Verified for unknown users, so that these take as long as others.
    of_nobody: String,
    verified: Mutex<HashSet<[u8; 32]>>,
    key: hmac::Key,
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Auth of {} users", self.hashes.len())
    }
}

/// Clients show `realm`, the name of the protected part.
fn challenge(realm: &str) -> Result<String, String> {
    let is_plain = |byte: u8| (b' '..=b'~').contains(&byte) && !b"\"\\".contains(&byte);
    if !realm.bytes().all(is_plain) || realm.len() > REALM_BYTES_MAX {
        return Err(format!(
            "`{realm}` is not a realm: expected up to {REALM_BYTES_MAX} ASCII characters without quotes and \
             backslashes"
        ));
    }
    Ok(format!("Basic realm=\"{realm}\", charset=\"UTF-8\""))
}

impl Auth {
    /// Reads a file of lines `USER:HASH`, as `htpasswd -B` writes them.
    pub(super) fn read(realm: &str, path: &Path) -> Result<Auth, String> {
        let in_context = |error: &dyn fmt::Display| {
            format!("cannot read the users of auth, {}: {error}", path.display())
        };
        let challenge = challenge(realm)?;
        let text = twinring_input::read_to_string(path, FILE_BYTES_MAX);
        let text = text.map_err(|error| in_context(&error))?;
        let auth = Auth::parse(&text);
        let auth = auth.map_err(|(line, error)| in_context(&format!("line {line}: {error}")))?;
        Ok(Auth { challenge, ..auth })
    }

    /// Parses the content of a file.
    ///
    /// # Errors
    /// The number of a line, and its error. The error shows no part of the line.
    pub fn parse(text: &str) -> Result<Auth, (usize, String)> {
        let mut hashes = HashMap::new();
        let mut highest = COST_MIN;
        for (number, line) in text.lines().enumerate() {
            let line = line.trim_end();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |why: &str| Err((number + 1, why.to_owned()));
            let Some((user, hash)) = line.split_once(':') else {
                return wrong("expected USER:HASH, as `htpasswd -B` writes it");
            };
            let is_bcrypt = ["$2y$", "$2b$", "$2a$"].iter().any(|start| hash.starts_with(start));
            let Some(parts) = HashParts::from_str(hash).ok().filter(|_| is_bcrypt) else {
                return wrong("its hash is not bcrypt; make one by `htpasswd -B`");
            };
            if parts.get_cost() > COST_MAX {
                return wrong("its hash has a cost above 14, which takes seconds to verify");
            }
            highest = highest.max(parts.get_cost());
            if hashes.insert(user.as_bytes().to_vec(), hash.to_owned()).is_some() {
                return wrong("its user has a line already");
            }
        }
        let of_nobody = format!("$2b${highest:02}${OF_NOBODY}");
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &aws_lc_rs::rand::SystemRandom::new())
            .map_err(|_| (0, "no random numbers".to_owned()))?;
        let (challenge, verified) = (String::new(), Mutex::default());
        Ok(Auth { challenge, hashes, of_nobody, verified, key })
    }

    /// A keyed hash: without the key, the time of a comparison with it shows nothing.
    fn tag(&self, credentials: &Credentials) -> [u8; 32] {
        let Credentials { user, password } = credentials;
        let mut context = hmac::Context::with_key(&self.key);
        // A user has no colon.
        [&user[..], b":", &password[..]].iter().for_each(|part| context.update(part));
        let mut tag = [0; 32];
        tag.copy_from_slice(context.sign().as_ref());
        tag
    }

    pub(super) fn are_verified(&self, credentials: &Credentials) -> bool {
        lock(&self.verified).contains(&self.tag(credentials))
    }

    /// Verifies credentials without blocking the worker; none if there are too many verifications at a time.
    pub(super) async fn verify(
        self: Arc<Auth>,
        credentials: Credentials,
        client: Option<IpAddr>,
    ) -> Option<bool> {
        let place = place(client)?;
        // It is never closed.
        let turn = RUNNING.acquire().await.ok();
        // A panic would be one of bcrypt; its input is not the peer's alone.
        let verified = spawn_blocking(move || {
            let _places = (place, turn);
            self.verify_now(&credentials)
        });
        Some(verified.await.unwrap_or(false))
    }

    fn verify_now(&self, credentials: &Credentials) -> bool {
        let tag = self.tag(credentials);
        // Another request of the same client may have been first.
        if lock(&self.verified).contains(&tag) {
            return true;
        }
        let hash = self.hashes.get(&credentials.user);
        let matches = bcrypt::verify(&credentials.password, hash.unwrap_or(&self.of_nobody));
        let is_right = hash.is_some() && matches.unwrap_or(false);
        if is_right {
            let mut verified = lock(&self.verified);
            if verified.len() >= VERIFIED_MAX {
                verified.clear();
            }
            verified.insert(tag);
        }
        is_right
    }
}

/// A place among the verifications that run or wait; none for a client that has left, which has no address.
fn place(client: Option<IpAddr>) -> Option<Permit> {
    let client = client?;
    Some((WAITING.admit()?, WAITING.count(|| Some(client))?))
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
        let long = format!("Basic {}", "YTpi".repeat(300));
        // The last one has a line break in the password.
        let wrong = "|Basic|Basic |Basic YTpi YTpi|Bearer YTpi|Basic YQ==|Basic YTpi=|Basic !|Basic YTpiCmM=";
        for wrong in wrong.split('|').chain([&*long]) {
            assert_eq!(parsed(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn realms_cannot_end_the_field() {
        for wrong in ["a\"b", "a\\", "a\r\nX: y", "\u{fc}", &"x".repeat(201)] {
            assert!(challenge(wrong).is_err(), "{wrong:?}");
        }
    }

    /// An invalid hash would be refused at once, and tell that the user does not exist.
    #[test]
    fn the_hash_of_nobody_is_valid_and_as_expensive_as_the_others() {
        let hash = bcrypt::hash("x", 4).unwrap().replacen("$04$", "$13$", 1);
        let users = Auth::parse(&format!("a:{hash}")).unwrap();
        assert_eq!(HashParts::from_str(&users.of_nobody).unwrap().get_cost(), 13);
        let cheap = users.of_nobody.replacen("$13$", "$04$", 1);
        assert_eq!(bcrypt::verify("x", &cheap).ok(), Some(false));
    }

    /// Twenty connections with wrong passwords kept all other users out.
    #[test]
    fn one_client_leaves_places_to_others() {
        let of = |client: &str| place(client.parse().ok());
        let taken: Vec<_> = std::iter::from_fn(|| of("192.0.2.1")).collect();
        assert_eq!(taken.len(), WAITING_OF_CLIENT_MAX);
        assert!(of("192.0.2.2").is_some());
        let network = |n: usize| of(&format!("2001:db8::{n}"));
        let of_network: Vec<_> = (0..9).filter_map(network).collect();
        assert_eq!(of_network.len(), WAITING_OF_CLIENT_MAX);
        drop(taken);
        assert!(of("192.0.2.1").is_some());
        // One that had reset its connections took all places.
        assert!(of("gone").is_none());
    }

    #[test]
    fn wrong_lines_are_named_and_not_shown() {
        for (text, line) in [
            ("secret", 1),
            ("#\na:secret", 2),
            ("a:{SHA}secret", 1),
            ("a:$apr1$secret$x", 1),
            ("a:$2y$05$secret", 1),
            (&format!("a:$2y$31${OF_NOBODY}"), 1),
        ] {
            let (found, error) = Auth::parse(text).unwrap_err();
            assert!(found == line && !error.contains("secret"), "{text}: {found} {error}");
        }
    }
}
