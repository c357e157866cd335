//! Values of the configuration file: written as text or as numbers, and read by the parsers that the command line has.

use serde::de::{Deserialize, Deserializer, Error};
use std::fmt::Display;
use std::str::FromStr;
use toml::Value;

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

fn parse<T: FromStr<Err: Display>, E: Error>(value: Value) -> Result<T, E> {
    let text = match value {
        Value::String(text) => text,
        Value::Array(_) => return Err(E::custom("expected one value, found a list")),
        Value::Table(_) => return Err(E::custom("expected one value, found a table")),
        other => other.to_string(),
    };
    text.parse().map_err(E::custom)
}

impl<'de, T: FromStr<Err: Display>> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Text<T>, D::Error> {
        parse(Value::deserialize(deserializer)?).map(Text)
    }
}

impl<'de, T: FromStr<Err: Display>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<List<T>, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Array(values) => {
                values.into_iter().map(parse).collect::<Result<_, _>>().map(List)
            }
            value => Ok(List(vec![parse(value)?])),
        }
    }
}
