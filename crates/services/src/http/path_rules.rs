//! Rules for paths: for exactly one, or for all beneath a directory.

use super::path::clean;
use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

/// The longest path that a rule is for, in bytes. A request is compared with prefixes up to this
/// length only.
const PATH_BYTES_MAX: usize = 1024;

/// The paths that a rule is for: `/a/b`, or `/a/*` for all beneath `/a/`, which is one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPattern {
    /// A clean path. With `is_prefix` it ends with a slash.
    path: String,
    is_prefix: bool,
}

impl PathPattern {
    /// The path, without a star.
    pub(super) fn path(&self) -> &[u8] {
        self.path.as_bytes()
    }

    /// True for all beneath a directory.
    pub fn is_prefix(&self) -> bool {
        self.is_prefix
    }
}

impl FromStr for PathPattern {
    type Err = String;

    /// Paths of requests are compared when they are clean, so another pattern would match none.
    fn from_str(text: &str) -> Result<PathPattern, String> {
        let (path, is_prefix) = match text.strip_suffix('*') {
            Some(prefix) if prefix.ends_with('/') => (prefix, true),
            _ => (text, false),
        };
        let wrong = |why: &str| Err(format!("`{text}` is not a path for a rule: {why}"));
        match clean(path.as_bytes()) {
            _ if path.len() > PATH_BYTES_MAX => wrong("it has more than 1024 bytes"),
            _ if !path.starts_with('/') => wrong("it must begin with a slash"),
            _ if path.contains('*') => wrong("`*` is allowed at its end only, behind a slash"),
            _ if path.contains(|c: char| c.is_ascii_control()) => {
                wrong("it has control characters")
            }
            _ if path.contains('?') => wrong("the query of a request selects no rule"),
            Ok(cleaned) if *cleaned == *path.as_bytes() => {
                Ok(PathPattern { path: path.to_owned(), is_prefix })
            }
            _ => wrong("write it decoded, without `.`, `..`, a double slash or a hidden name"),
        }
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.path, if self.is_prefix { "*" } else { "" })
    }
}

/// Values by paths. One for exactly a path counts before one for all beneath a directory, and a
/// longer one of these before a shorter one.
#[derive(Clone, Debug)]
pub(super) struct PathMap<T> {
    exact: HashMap<Vec<u8>, T>,
    prefixes: HashMap<Vec<u8>, T>,
    longest_prefix: usize,
}

impl<T> Default for PathMap<T> {
    fn default() -> PathMap<T> {
        PathMap { exact: HashMap::new(), prefixes: HashMap::new(), longest_prefix: 0 }
    }
}

impl<T> PathMap<T> {
    /// Adds a value; returns the previous one of the same paths.
    pub(super) fn add(&mut self, pattern: &PathPattern, value: T) -> Option<T> {
        let map = if pattern.is_prefix { &mut self.prefixes } else { &mut self.exact };
        if pattern.is_prefix {
            self.longest_prefix = self.longest_prefix.max(pattern.path.len());
        }
        map.insert(pattern.path().to_vec(), value)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.prefixes.is_empty()
    }

    /// The value for a clean path.
    pub(super) fn find(&self, path: &[u8]) -> Option<&T> {
        if let Some(value) = self.exact.get(path) {
            return Some(value);
        }
        let reach = &path[..path.len().min(self.longest_prefix)];
        let mut slashes = memchr::memrchr_iter(b'/', reach);
        slashes.find_map(|slash| self.prefixes.get(&reach[..=slash]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_that_match_no_path_are_refused() {
        let long = format!("/{}", "x".repeat(PATH_BYTES_MAX));
        for wrong in [
            "", "a", "*", "/a*", "/*/a", "/a/**", "/a//b", "/a/../b", "/.a", "/%61", "/a?b",
            "/a\0", &long,
        ] {
            assert!(wrong.parse::<PathPattern>().is_err(), "{wrong:?}");
        }
        for sound in ["/", "/*", "/a", "/a/", "/a/*", "/a b/\u{fc}/*", "/.well-known/*"] {
            let pattern: PathPattern = sound.parse().unwrap();
            assert_eq!(pattern.to_string(), sound);
        }
    }

    #[test]
    fn exact_paths_come_first_and_then_the_longest_prefix() {
        let mut map = PathMap::default();
        for pattern in ["/a", "/a/*", "/a/b/*", "/a/b/c", "/*"] {
            assert_eq!(map.add(&pattern.parse().unwrap(), pattern), None);
        }
        for (path, expected) in [
            ("/a", "/a"),
            ("/a/", "/a/*"),
            ("/a/b", "/a/*"),
            ("/a/b/", "/a/b/*"),
            ("/a/b/c", "/a/b/c"),
            ("/a/b/c/", "/a/b/*"),
            ("/ab", "/*"),
            ("/", "/*"),
        ] {
            assert_eq!(map.find(path.as_bytes()), Some(&expected), "{path}");
        }
        assert_eq!(map.add(&"/a/*".parse().unwrap(), "new"), Some("/a/*"));
    }
}
