//! Values of a configuration: text, numbers or switches, read by the parsers that the command line has. The functions
//! are for `#[serde(deserialize_with = "…")]`.

use super::response::Field;
use http::{HeaderName, HeaderValue};
use serde::Deserialize;
use serde::de::{Deserializer, Error};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;
use twinring_input::quantity::{self, Count, Size};

/// Header fields that the service sets itself; another value would be wrong. And those that HTTP/2 forbids, of which
/// the h2 crate makes no answer.
const RESERVED: &str = "accept-ranges allow cache-control connection content-encoding content-length content-range \
                        content-type date etag keep-alive last-modified proxy-connection te transfer-encoding upgrade";

fn text(value: Value) -> Result<String, &'static str> {
    match value {
        Value::String(text) => Ok(text),
        Value::Array(_) => Err("expected one value, found a list"),
        Value::Object(_) => Err("expected one value, found a table"),
        other => Ok(other.to_string()),
    }
}

/// One value or several.
fn texts(value: Value) -> Result<Vec<String>, &'static str> {
    match value {
        Value::Array(values) => values.into_iter().map(text).collect(),
        one => Ok(vec![text(one)?]),
    }
}

/// One value, by this parser.
pub fn read<'de, T, E: Display, D: Deserializer<'de>>(
    from: D,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, D::Error> {
    let text = text(Value::deserialize(from)?).map_err(Error::custom)?;
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
    let texts = texts(Value::deserialize(from)?).map_err(Error::custom)?;
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

/// Header fields that the operator chooses.
pub(super) fn header_fields<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Field>, D::Error> {
    let mut fields = Vec::new();
    for (name, values) in BTreeMap::<String, Value>::deserialize(from)? {
        for value in texts(values).map_err(Error::custom)? {
            fields.push(header_field(&name, &value).map_err(Error::custom)?);
        }
    }
    Ok(fields)
}

pub(super) fn header_field(name: &str, value: &str) -> Result<Field, String> {
    match RESERVED.split(' ').any(|reserved| reserved.eq_ignore_ascii_case(name)) {
        true => Err(format!("the service itself decides on `{name}`")),
        false => any_field(name, value),
    }
}

pub(super) fn cache_control<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Field>, D::Error> {
    read(from, |value| any_field("Cache-Control", value)).map(Some)
}

pub(super) fn any_field(name: &str, value: &str) -> Result<Field, String> {
    let value = value.trim();
    let parsed = HeaderValue::from_bytes(value.as_bytes());
    match (HeaderName::from_bytes(name.as_bytes()), parsed) {
        (Ok(_), Ok(parsed)) if !value.is_empty() => Ok((Cow::Owned(name.to_owned()), parsed)),
        _ => Err(format!("`{name}: {value}` is not a header field")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_complete_and_not_those_of_the_service() {
        let field = header_field("X-A", " b c ").unwrap();
        assert_eq!((&*field.0, field.1.as_bytes()), ("X-A", &b"b c"[..]));
        let wrong = ":b|a b:c|A:|A:b\r\nc: d|A:b\nc|A:\0|Date:x|content-length:5|Cache-Control:x|Keep-Alive:x|TE:x";
        for (name, value) in wrong.split('|').filter_map(|line| line.split_once(':')) {
            assert!(header_field(name, value).is_err(), "{name:?} {value:?}");
        }
    }
}
