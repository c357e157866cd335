//! Where something stands in the text of an experiment, for messages.

use toml::de::{DeTable, DeValue};

use crate::error::LabError;

pub(crate) struct Source<'a> {
    name: &'a str,
    text: &'a str,
    /// The text with the place of each value; nothing if it is no TOML, or no file at all.
    table: Option<DeValue<'a>>,
}

impl<'a> Source<'a> {
    pub(super) fn of_file(name: &'a str, text: &'a str) -> Source<'a> {
        let table = DeTable::parse(text).ok().map(|table| DeValue::Table(table.into_inner()));
        Source { name, text, table }
    }

    pub(super) fn named(name: &'a str) -> Source<'a> {
        Source { name, text: "", table: None }
    }

    pub(super) fn at_offset(&self, offset: Option<usize>) -> String {
        let Some(offset) = offset else { return self.name.to_owned() };
        let before = self.text.bytes().take(offset);
        let line = before.filter(|byte| *byte == b'\n').count() + 1;
        format!("{}:{line}", self.name)
    }

    /// File and line of `key`, for example `tcp.connections` or `subjects.2.name`; if it is not
    /// there, those of the table that lacks it.
    pub(super) fn at(&self, key: &str) -> String {
        let (mut value, mut offset) = (self.table.as_ref(), None);
        for step in key.split('.') {
            let found = match value {
                Some(DeValue::Table(table)) => {
                    table.get_key_value(step).map(|(key, found)| (key.span(), found))
                }
                Some(DeValue::Array(array)) => {
                    let found = step.parse().ok().and_then(|index: usize| array.get(index));
                    found.map(|found| (found.span(), found))
                }
                _ => None,
            };
            offset = found.as_ref().map(|(span, _)| span.start).or(offset);
            value = found.map(|(_, found)| found.get_ref());
        }
        self.at_offset(offset)
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
