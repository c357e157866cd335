//! Patterns of paths, which are those of globset.

use globset::{Glob, GlobBuilder};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

const PATTERN_BYTES_MAX: usize = 4096;

/// The end of a pattern for all beneath a directory.
pub(super) const REST: &str = "/**";

/// A pattern of paths. `*` stands for any characters but a slash, `**` for any, `?` for one, `[ab]` for a choice,
/// `{a,b}` for alternatives. A pattern without a slash is one of file names, in any directory.
#[derive(Clone, Debug)]
pub(super) struct PathGlob(pub(super) Glob);

impl PathGlob {
    pub(super) fn all() -> Result<PathGlob, String> {
        REST.parse()
    }

    /// True for all beneath directories.
    pub(super) fn is_directory(&self) -> bool {
        self.0.glob().ends_with(REST)
    }

    /// The directory, with its slash, if the pattern is for all beneath one.
    pub(super) fn directory(&self) -> Option<&str> {
        let directory = self.0.glob().strip_suffix("**")?;
        let is_literal = !directory.contains(['*', '?', '[', '{', '\\']);
        (directory.ends_with('/') && is_literal).then_some(directory)
    }
}

impl FromStr for PathGlob {
    type Err = String;

    /// Patterns are compared with clean paths that begin with a slash.
    fn from_str(text: &str) -> Result<PathGlob, String> {
        let wrong = |why: &dyn fmt::Display| format!("the pattern `{text}`: {why}");
        let nothing = |why: &str| Err(format!("the pattern `{text}` matches no path: {why}"));
        if text.len() > PATTERN_BYTES_MAX {
            return Err(wrong(&"it has more than 4096 bytes"));
        }
        let whole = match text {
            "" => return nothing("it is empty"),
            "*" | "**" => Cow::Borrowed(REST),
            // globset takes it for all paths.
            "**/" => Cow::Borrowed("/**/"),
            name if !name.contains('/') => Cow::Owned(format!("**/{name}")),
            path if path.starts_with('/') || path.starts_with("**/") => Cow::Borrowed(path),
            _ => return nothing("all paths begin with a slash, so begin it with `/` or `**/`"),
        };
        let inner = whole.split('/').skip(1);
        if inner.clone().any(|segment| matches!(segment, "." | "..")) || whole.contains("//") {
            return nothing(
                "paths are compared when they have no `.`, no `..` and no double slash any more",
            );
        }
        let glob = GlobBuilder::new(&whole).literal_separator(true).backslash_escape(true).build();
        glob.map(PathGlob).map_err(|error| wrong(error.kind()))
    }
}

impl fmt::Display for PathGlob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, path: &str) -> bool {
        let pattern: PathGlob = pattern.parse().unwrap();
        pattern.0.compile_matcher().is_match(path)
    }

    #[test]
    fn patterns_are_those_of_globset_and_paths_begin_with_a_slash() {
        let alike = "** /|* /a/b|/a /a|/a/** /a/|/a/** /a/b/c|/a/* /a/b|*.css /a.css|*.{css,js} /a/b.js|**/ /|\
            **/ /a/b/|robots.txt /robots.txt|/\u{fc} /\u{fc}|\\* /*";
        let different = "/a /a/|/a/** /a|/a/* /a/b/c|*.css /a.css/b|**/ /a|\\* /a";
        for (pairs, expected) in [(alike, true), (different, false)] {
            for (pattern, path) in pairs.split('|').filter_map(|pair| pair.split_once(' ')) {
                assert_eq!(matches(pattern, path), expected, "{pattern} {path}");
            }
        }
        let long = format!("/{}", "x".repeat(PATTERN_BYTES_MAX));
        // They were accepted, without effect.
        for wrong in ["", "css/*", "../x", "./*", "/../x", "/a/./b", "/a//b", "[", "{a,/b}", &long]
        {
            assert!(wrong.parse::<PathGlob>().is_err(), "{wrong:?}");
        }
    }
}
