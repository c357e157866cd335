//! Media types, from the extension of a file's name.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

/// The charset that text is declared to be in: it nearly always is, and a client that guesses can be misled.
const CHARSET: &str = "utf-8";

/// How files get their media types.
#[derive(Clone, Debug, Default)]
pub struct MediaTypes {
    /// By extension, in lower case and without the dot, before those that everybody knows.
    pub own: HashMap<String, String>,
    /// That of unknown extensions. `application/octet-stream` if there is none.
    pub default: Option<String>,
    /// The charset of text. UTF-8 if there is none; no charset is declared if it is empty.
    pub charset: Option<String>,
}

impl MediaTypes {
    /// The media type of a file, for `Content-Type`.
    pub(super) fn of(&self, path: &Path) -> Cow<'static, str> {
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or("");
        let owned = |media_type: &String| Cow::Owned(media_type.clone());
        let own = self.own.get(&extension.to_ascii_lowercase()).map(owned);
        let known = || new_mime_guess::from_ext(extension).first_raw().map(Cow::Borrowed);
        let media_type: Cow<'static, str> = own
            .or_else(known)
            .or_else(|| self.default.as_ref().map(owned))
            .unwrap_or(Cow::Borrowed("application/octet-stream"));
        let charset = self.charset.as_deref().unwrap_or(CHARSET);
        let is_text = media_type.starts_with("text/") || is_text_by_another_name(&media_type);
        match is_text && !charset.is_empty() && !media_type.contains(';') {
            true => Cow::Owned(format!("{media_type}; charset={charset}")),
            false => media_type,
        }
    }
}

/// True for the types whose content is text, or as repetitive as text.
pub(super) fn is_compressible(content_type: &str) -> bool {
    let media_type = content_type.split(';').next().unwrap_or_default();
    media_type.starts_with("text/")
        || media_type.ends_with("+json")
        || media_type.ends_with("+xml")
        || is_text_by_another_name(media_type)
        || matches!(
            media_type,
            "application/json"
                | "application/wasm"
                | "application/x-javascript"
                | "application/toml"
                | "application/yaml"
                | "font/ttf"
                | "font/otf"
                | "application/vnd.ms-fontobject"
        )
}

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
        for (names, media_type, compressible) in [
            ("a.html", "text/html; charset=utf-8", true),
            ("a.js", "text/javascript; charset=utf-8", true),
            ("a.mjs", "application/javascript; charset=utf-8", true),
            ("a.css", "text/css; charset=utf-8", true),
            ("a.svg", "image/svg+xml; charset=utf-8", true),
            ("a.json", "application/json", true),
            ("a.wasm", "application/wasm", true),
            ("a.png", "image/png", false),
            ("a.woff2", "font/woff2", false),
            ("a.gz", "application/gzip", false),
            ("README", "application/octet-stream", false),
        ] {
            let found = MediaTypes::default().of(Path::new(names));
            assert_eq!((&*found, is_compressible(&found)), (media_type, compressible), "{names}");
        }
    }

    #[test]
    fn own_types_come_first_and_the_charset_is_that_of_the_site() {
        let own = [("md", "text/markdown"), ("txt", "text/plain; charset=koi8-r")];
        let types = MediaTypes {
            own: own.map(|(name, media_type)| (name.to_owned(), media_type.to_owned())).into(),
            default: Some("text/plain".to_owned()),
            charset: Some("iso-8859-1".to_owned()),
        };
        for (name, expected) in [
            ("a.MD", "text/markdown; charset=iso-8859-1"),
            ("a.txt", "text/plain; charset=koi8-r"),
            ("README", "text/plain; charset=iso-8859-1"),
            ("a.png", "image/png"),
        ] {
            assert_eq!(types.of(Path::new(name)), expected, "{name}");
        }
        let bare = MediaTypes { charset: Some(String::new()), ..types };
        assert_eq!(bare.of(Path::new("a.html")), "text/html");
    }
}
