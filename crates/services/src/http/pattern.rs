//! Patterns of paths, as in a shell.

use regex_lite::Regex;
use std::iter::Peekable;
use std::mem::take;
use std::path::Path;
use std::str::Chars;

/// The longest pattern, in bytes.
const BYTES_MAX: usize = 4096;

/// How deep braces may be nested.
const DEPTH_MAX: usize = 16;

/// A pattern, which has to match a whole path: `*` stands for any characters, slashes included, `?`
/// for one, `[ab]` and `[!a-c]` for a choice, `{a,b}` for alternatives; `**/` also for no directory,
/// and `\` takes away the meaning of the next character.
///
/// It is translated into a regular expression for a small engine: the globset crate, which defines
/// the same patterns, brings a large one, 0.7 MB of the binary. Paths are compared when a file is
/// loaded and for error pages, not for each request.
#[derive(Clone, Debug)]
pub(super) struct Pattern(Regex);

impl Pattern {
    /// # Errors
    /// What is wrong with it.
    pub(super) fn new(text: &str) -> Result<Pattern, String> {
        let wrong = |why: String| format!("the pattern `{text}` {why}");
        if text.len() > BYTES_MAX {
            return Err(wrong(format!("is longer than {BYTES_MAX} bytes")));
        }
        let expression = Translator::translate(text).map_err(wrong)?;
        Regex::new(&expression)
            .map(Pattern)
            .map_err(|error| wrong(format!("is too large: {error}")))
    }

    /// True if it matches all of the path. Bytes that are not UTF-8 count as U+FFFD.
    pub(super) fn matches(&self, path: &Path) -> bool {
        self.0.is_match(&path.to_string_lossy())
    }
}

/// Translates a pattern into a regular expression.
struct Translator<'a> {
    rest: Peekable<Chars<'a>>,
    /// The last character of the pattern that was read.
    last: Option<char>,
    /// The expression so far, of the innermost alternative.
    current: String,
    /// Of each open brace: the expression before it, and its alternatives that have ended.
    open: Vec<(String, Vec<String>)>,
}

impl Translator<'_> {
    fn translate(text: &str) -> Result<String, String> {
        let rest = text.chars().peekable();
        let mut this = Translator { rest, last: None, current: String::new(), open: Vec::new() };
        while let Some(next) = this.rest.next() {
            this.token(next)?;
        }
        match this.open.is_empty() {
            true => Ok(format!("(?s)^{}$", this.current)),
            false => Err("has a `{` without its `}`".to_owned()),
        }
    }

    fn token(&mut self, token: char) -> Result<(), String> {
        let before = self.last.replace(token);
        match token {
            '?' => self.current.push('.'),
            '*' => self.stars(before),
            '[' => self.class()?,
            '{' if self.open.len() == DEPTH_MAX => {
                return Err(format!("has more than {DEPTH_MAX} braces in each other"));
            }
            '{' => self.open.push((take(&mut self.current), Vec::new())),
            ',' => match self.open.last_mut() {
                Some((_, alternatives)) => alternatives.push(take(&mut self.current)),
                None => literal(&mut self.current, ','),
            },
            '}' => {
                let (outer, mut alternatives) =
                    self.open.pop().ok_or("has a `}` without its `{`")?;
                alternatives.push(std::mem::replace(&mut self.current, outer));
                alternatives.retain(|alternative| !alternative.is_empty());
                if !alternatives.is_empty() {
                    self.current.push_str(&format!("(?:{})", alternatives.join("|")));
                }
            }
            '\\' => {
                let escaped = self.rest.next().ok_or("ends with a `\\`")?;
                // Of escaped characters, only a slash is what it would be without.
                self.last = Some(if escaped == '/' { '/' } else { token });
                literal(&mut self.current, escaped);
            }
            other => literal(&mut self.current, other),
        }
        Ok(())
    }

    /// One star or several. `**/` at the beginning of a component also stands for none.
    fn stars(&mut self, before: Option<char>) {
        let mut count = 1;
        while self.rest.next_if_eq(&'*').is_some() {
            count += 1;
        }
        let begins = match before {
            None | Some('/') => true,
            Some('{' | ',') => !self.open.is_empty(),
            Some(_) => false,
        };
        if count == 2 && begins && self.rest.next_if_eq(&'/').is_some() {
            self.last = Some('/');
            self.current.push_str("(?:.*/)?");
        } else {
            self.current.push_str(".*");
        }
    }

    /// The rest of a choice, after its `[`.
    fn class(&mut self) -> Result<(), String> {
        let negated = self.rest.next_if(|next| matches!(next, '!' | '^')).is_some();
        let mut ranges: Vec<(char, char)> = Vec::new();
        let mut is_range = false;
        loop {
            let next = self.rest.next().ok_or("has a `[` without its `]`")?;
            match (next, ranges.last_mut()) {
                // First, it stands for itself.
                (']', Some(_)) => break,
                (_, Some((first, last))) if is_range => {
                    if next < *first {
                        return Err(format!("has the range `{first}-{next}`, which is empty"));
                    }
                    *last = next;
                    is_range = false;
                }
                ('-', Some(_)) => is_range = true,
                _ => ranges.push((next, next)),
            }
        }
        if is_range {
            ranges.push(('-', '-'));
        }
        self.last = Some(']');
        self.current.push_str(if negated { "[^" } else { "[" });
        for (first, last) in ranges {
            literal(&mut self.current, first);
            if first != last {
                self.current.push('-');
                literal(&mut self.current, last);
            }
        }
        self.current.push(']');
        Ok(())
    }
}

/// Adds a character that stands for itself.
fn literal(expression: &mut String, character: char) {
    match character.is_ascii() && !character.is_ascii_alphanumeric() {
        true => expression.push_str(&format!("\\x{{{:x}}}", u32::from(character))),
        false => expression.push(character),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use globset::Glob;
    use proptest::prelude::*;

    fn matches(pattern: &str, path: &str) -> bool {
        Pattern::new(pattern).expect("a pattern").matches(Path::new(path))
    }

    #[test]
    fn a_choice_and_one_character_may_be_of_any_script() {
        assert!(matches("/caf?", "/café") && matches("/[é-ü]a", "/öa"));
        assert!(!matches("/[!é]", "/é") && matches("/{é,日本}/*", "/日本/x\ny"));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (pattern, why) in [
            ("/[a", "has a `[` without its `]`"),
            ("/[z-a]", "has the range `z-a`, which is empty"),
            ("/{a,b", "has a `{` without its `}`"),
            ("/a}", "has a `}` without its `{`"),
            ("/a\\", "ends with a `\\`"),
        ] {
            let error = Pattern::new(pattern).expect_err(pattern);
            assert_eq!(error, format!("the pattern `{pattern}` {why}"));
        }
    }

    #[test]
    fn patterns_are_bounded() {
        let nested = |depth| format!("{}a{}", "{".repeat(depth), "}".repeat(depth));
        assert!(matches(&nested(DEPTH_MAX), "a"));
        assert!(Pattern::new(&nested(DEPTH_MAX + 1)).is_err());
        // The longest is either refused, or matched in linear time.
        for part in ["*", "**/", "{a,b}", "[!a]", "?"] {
            let longest = part.repeat(BYTES_MAX / part.len());
            if let Ok(pattern) = Pattern::new(&longest) {
                pattern.matches(Path::new(&"/a".repeat(100)));
            }
            assert!(Pattern::new(&format!("{longest}{longest}")).is_err());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 4_000,
            max_global_rejects: 40_000,
            ..ProptestConfig::default()
        })]

        /// The exceptions: `**/` alone there matches everything, and an escaped comma before `**` and
        /// repetitions of `**/` are taken in odd ways.
        #[test]
        fn it_is_what_globset_matches(
            pattern in "([a-c/.,!^-]|\\*|\\*\\*|/\\*\\*/|\\?|\\[[!^]?[a-c-]{1,4}\\]|[\\[\\]{}]|\\{[a-c*/,]{0,5}\\}|\\\\){0,8}",
            paths in prop::collection::vec("[a-c/.,!{-]{0,6}", 1..20),
        ) {
            let recursive = pattern.contains("**");
            prop_assume!(pattern != "**/" && !pattern.contains("**/**"));
            prop_assume!(!recursive || !pattern.contains('\\'));
            let (ours, theirs) = (Pattern::new(&pattern), Glob::new(&pattern));
            prop_assert_eq!(ours.is_ok(), theirs.is_ok(), "{} {:?} {:?}", pattern, ours, theirs);
            if let (Ok(ours), Ok(theirs)) = (ours, theirs) {
                let theirs = theirs.compile_matcher();
                for path in paths {
                    let expected = theirs.is_match(&path);
                    prop_assert_eq!(ours.matches(Path::new(&path)), expected, "{} {}", pattern, path);
                }
            }
        }
    }
}
