//! Where something stands in the text of an experiment, for messages.

use crate::error::LabError;

pub(crate) struct Source<'a> {
    name: &'a str,
    /// Nothing if it is no file at all.
    text: &'a str,
}

impl<'a> Source<'a> {
    pub(super) fn of_file(name: &'a str, text: &'a str) -> Source<'a> {
        Source { name, text }
    }

    pub(super) fn named(name: &'a str) -> Source<'a> {
        Source { name, text: "" }
    }

    pub(super) fn at_offset(&self, offset: Option<usize>) -> String {
        let before = offset.map(|offset| self.text.bytes().take(offset));
        self.at_line(before.map(|it| it.filter(|byte| *byte == b'\n').count() + 1))
    }

    fn at_line(&self, line: Option<usize>) -> String {
        line.map_or_else(|| self.name.to_owned(), |line| format!("{}:{line}", self.name))
    }

    /// File and line of `key`, for example `tcp.connections` or `subjects.2.name`; if it is not
    /// there, those of the table that lacks it.
    fn at(&self, key: &str) -> String {
        let steps: Vec<&str> = key.split('.').collect();
        let (head, number) = match steps[..] {
            [list, number, _] => (format!("[[{list}]]"), number.parse().unwrap_or(0)),
            [table, _] => (format!("[{table}]"), 0),
            _ => (String::new(), 0),
        };
        let key = steps[steps.len() - 1];
        let is_it = |line: &str| {
            let rest = line.trim_start_matches('[').strip_prefix(key).map(str::trim_start);
            !key.is_empty() && rest.is_some_and(|rest| rest.starts_with(['=', ']']))
        };
        let mut lines = (1..).zip(self.text.lines().map(str::trim_start));
        let of_table = match &*head {
            "" => None,
            head => lines.by_ref().filter(|(_, line)| line.starts_with(head)).nth(number),
        };
        let mut own = lines.take_while(|(_, line)| head.is_empty() || !line.starts_with('['));
        let found = own.find(|(_, line)| is_it(line)).or(of_table);
        self.at_line(found.map(|(line, _)| line))
    }

    /// Refuses with where it is, what was found, and what was expected.
    pub(crate) fn unless(
        &self,
        right: bool,
        key: &str,
        found: impl std::fmt::Display,
        expected: &str,
    ) -> Result<(), LabError> {
        if right { Ok(()) } else { Err(LabError::request(self.at(key), found, expected)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_on_its_line() {
        let text = "a = 1\n[tcp]\n# no\nsizes = [\n 1, 2]\n\n[[who]]\nname = 'x'\n[[who]]\n\
                    name = 'y'\n";
        let source = Source::of_file("f.toml", text);
        for (key, line) in
            [("a", 1), ("tcp", 2), ("tcp.sizes", 4), ("tcp.none", 2), ("who.0.name", 8)]
        {
            assert_eq!(source.at(key), format!("f.toml:{line}"), "{key}");
        }
        assert_eq!(source.at("who.1.name"), "f.toml:10");
        assert_eq!(source.at("who.1.engine"), "f.toml:9");
        assert_eq!(source.at("nowhere"), "f.toml");
        assert_eq!(Source::named("the options").at("a"), "the options");
    }
}
