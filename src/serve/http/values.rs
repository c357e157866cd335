//! Values of the configuration file: written as text or as numbers, and read by the parsers that the command line has.

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use std::fmt::{self, Display};
use std::marker::PhantomData;
use std::str::FromStr;

/// One value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Text<T>(pub(super) T);

/// One value or several.
#[derive(Clone, Debug)]
pub(super) struct List<T>(pub(super) Vec<T>);

impl<T> Default for List<T> {
    fn default() -> List<T> {
        List(Vec::new())
    }
}

/// Reads one value; several, too, if that is allowed.
struct Reader<T> {
    several: bool,
    of: PhantomData<T>,
}

impl<T: FromStr<Err: Display>> Reader<T> {
    fn read<E: Error>(text: &str) -> Result<Vec<T>, E> {
        text.parse().map(|value| vec![value]).map_err(E::custom)
    }
}

impl<'de, T: FromStr<Err: Display>> Visitor<'de> for Reader<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.several { "a value or a list of values" } else { "one value" })
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Vec<T>, E> {
        Reader::read(text)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Vec<T>, E> {
        Reader::read(&number.to_string())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Vec<T>, E> {
        Reader::read(&number.to_string())
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Vec<T>, E> {
        Reader::read(&number.to_string())
    }

    fn visit_bool<E: Error>(self, switch: bool) -> Result<Vec<T>, E> {
        Reader::read(&switch.to_string())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
        if !self.several {
            return Err(A::Error::custom("expected one value, found a list"));
        }
        let mut values = Vec::new();
        while let Some(Text(value)) = list.next_element()? {
            values.push(value);
        }
        Ok(values)
    }
}

impl<'de, T: FromStr<Err: Display>> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Text<T>, D::Error> {
        let one = deserializer.deserialize_any(Reader { several: false, of: PhantomData })?;
        one.into_iter().next().map(Text).ok_or_else(|| D::Error::custom("expected one value"))
    }
}

impl<'de, T: FromStr<Err: Display>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<List<T>, D::Error> {
        deserializer.deserialize_any(Reader { several: true, of: PhantomData }).map(List)
    }
}
