//! Values of a configuration: text, numbers or switches, read by the parsers that the command line has. The functions
//! are for `#[serde(deserialize_with = "…")]`.

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny};
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;
use twinring_input::quantity::{self, Count, Size};

#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Value {
    Text(String),
    Switch(bool),
    Whole(i64),
    Fraction(f64),
    List(Vec<Value>),
    Table(IgnoredAny),
}

impl Value {
    fn text(self) -> Result<String, &'static str> {
        match self {
            Value::Text(text) => Ok(text),
            Value::Switch(is_on) => Ok(is_on.to_string()),
            Value::Whole(number) => Ok(number.to_string()),
            Value::Fraction(number) => Ok(number.to_string()),
            Value::List(_) => Err("expected one value, found a list"),
            Value::Table(_) => Err("expected one value, found a table"),
        }
    }

    /// One value or several.
    pub(super) fn texts(self) -> Result<Vec<String>, &'static str> {
        match self {
            Value::List(values) => values.into_iter().map(Value::text).collect(),
            one => Ok(vec![one.text()?]),
        }
    }
}

/// One value, by this parser.
pub fn read<'de, T, E: Display, D: Deserializer<'de>>(
    from: D,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, D::Error> {
    let text = Value::deserialize(from)?.text().map_err(Error::custom)?;
    parse(&text).map_err(Error::custom)
}

/// One value that may be missing.
pub fn optional<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    read(from, T::from_str).map(Some)
}

/// One value or several.
pub fn several<'de, T: FromStr<Err: Display>, L: FromIterator<T>, D: Deserializer<'de>>(
    from: D,
) -> Result<L, D::Error> {
    let texts = Value::deserialize(from)?.texts().map_err(Error::custom)?;
    texts.iter().map(|text| text.parse().map_err(Error::custom)).collect()
}

/// A number of things.
pub fn count<'de, const MIN: u64, const MAX: u64, N: TryFrom<u64>, D: Deserializer<'de>>(
    from: D,
) -> Result<N, D::Error> {
    let count: Count<MIN, MAX> = read(from, str::parse)?;
    N::try_from(count.get()).map_err(|_| Error::custom("the number is too large"))
}

/// A number of bytes.
pub fn size<'de, const MIN: u64, const MAX: u64, N: TryFrom<u64>, D: Deserializer<'de>>(
    from: D,
) -> Result<N, D::Error> {
    let size: Size<MIN, MAX> = read(from, str::parse)?;
    N::try_from(size.get()).map_err(|_| Error::custom("the number is too large"))
}

pub(super) fn wait<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    read(from, quantity::duration)
}

/// A duration other than zero.
pub(super) fn timeout<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    read(from, quantity::timeout)
}
