//! Media types, from the extension of a file's name.

use super::hosts::Site;
use super::text::read;
use http::HeaderValue;
use serde::Deserialize;
use serde::de::{Deserializer, Error};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// The media type of a file of a site, for `Content-Type`.
pub(super) fn media_type(site: &Site, path: &Path) -> Cow<'static, str> {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or("");
    let owned = |media_type: &String| Cow::Owned(media_type.clone());
    let own = site.types.get(&extension.to_ascii_lowercase()).map(owned);
    let other = site.default_type.as_ref().map(owned);
    let known = || new_mime_guess::from_ext(extension).first_raw().map(Cow::Borrowed);
    let media_type: Cow<'static, str> =
        own.or_else(known).or(other).unwrap_or(Cow::Borrowed("application/octet-stream"));
    let is_text = media_type.starts_with("text/") || is_text_by_another_name(&media_type);
    // Text nearly always is that, and a client that guesses can be misled.
    let charset = site.charset.as_deref().unwrap_or("utf-8");
    match is_text && !charset.is_empty() && !media_type.contains(';') {
        true => Cow::Owned(format!("{media_type}; charset={charset}")),
        false => media_type,
    }
}

pub(super) fn one<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    read(from, checked).map(Some)
}

fn checked(text: &str) -> Result<String, String> {
    let is_type = text
        .split_once('/')
        .is_some_and(|(kind, rest)| !kind.is_empty() && !rest.is_empty() && !rest.contains('/'))
        && HeaderValue::from_str(text).is_ok();
    let wrong = || format!("`{text}` is not a media type: expected one such as text/plain");
    is_type.then(|| text.to_owned()).ok_or_else(wrong)
}

/// Media types by extension, with or without a dot.
pub(super) fn types<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<HashMap<String, String>, D::Error> {
    let all: BTreeMap<String, String> = BTreeMap::deserialize(from)?;
    let one = |(name, media_type): (String, String)| {
        let name = name.trim_start_matches('.').to_ascii_lowercase();
        Ok((name, checked(&media_type).map_err(Error::custom)?))
    };
    all.into_iter().map(one).collect()
}

/// A charset of a configuration; empty for `off`.
pub(super) fn charset<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    read(from, |text| {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        match !text.is_empty() && text.bytes().all(is_part) {
            true if text == "off" => Ok(Some(String::new())),
            true => Ok(Some(text.to_owned())),
            false => Err(format!("`{text}` is not a charset: expected one such as utf-8, or off")),
        }
    })
}

/// True for the types whose content is text, or as repetitive as text.
pub(super) fn is_compressible(content_type: &str) -> bool {
    let media_type = content_type.split(';').next().unwrap_or_default();
    media_type.starts_with("text/")
        || media_type.ends_with("+json")
        || media_type.ends_with("+xml")
        || is_text_by_another_name(media_type)
        || TEXT_LIKE.split(' ').any(|other| other == media_type)
}

const TEXT_LIKE: &str = "application/json application/wasm application/x-javascript application/toml \
                         application/yaml font/ttf font/otf application/vnd.ms-fontobject";

/// Types outside `text/` whose definition has a charset parameter.
fn is_text_by_another_name(media_type: &str) -> bool {
    matches!(
        media_type,
        "application/javascript" | "application/xml" | "application/xhtml+xml" | "image/svg+xml"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_files_have_their_media_type_and_text_is_compressible() {
        for (names, expected, compressible) in [
            ("a.mjs", "application/javascript; charset=utf-8", true),
            ("a.svg", "image/svg+xml; charset=utf-8", true),
            ("a.json", "application/json", true),
            ("a.wasm", "application/wasm", true),
            ("a.png", "image/png", false),
            ("a.woff2", "font/woff2", false),
            ("a.gz", "application/gzip", false),
        ] {
            let found = media_type(&Site::default(), Path::new(names));
            assert_eq!((&*found, is_compressible(&found)), (expected, compressible), "{names}");
        }
    }

    #[test]
    fn own_types_come_first_and_the_charset_is_that_of_the_site() {
        let site = |json: &str| serde_json::from_str::<Site>(json).unwrap();
        let types = r#"{"md": "text/markdown", ".TXT": "text/plain; charset=koi8-r"}"#;
        let rest = r#""default-type": "text/plain", "charset": "iso-8859-1""#;
        let own = site(&format!("{{\"types\": {types}, {rest}}}"));
        for (name, expected) in [
            ("a.MD", "text/markdown; charset=iso-8859-1"),
            ("a.txt", "text/plain; charset=koi8-r"),
            ("README", "text/plain; charset=iso-8859-1"),
            ("a.png", "image/png"),
        ] {
            assert_eq!(media_type(&own, Path::new(name)), expected, "{name}");
        }
        assert_eq!(media_type(&site(r#"{"charset": "off"}"#), Path::new("a.html")), "text/html");
    }
}
