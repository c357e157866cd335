//! Media types, from the extension of a file's name.

use std::borrow::Cow;
use std::path::Path;

/// The media type of a file, for `Content-Type`. Text is declared to be UTF-8: it nearly always is,
/// and a client that guesses can be misled.
pub(super) fn content_type(path: &Path) -> Cow<'static, str> {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or("");
    let media_type =
        new_mime_guess::from_ext(extension).first_raw().unwrap_or("application/octet-stream");
    if media_type.starts_with("text/") || is_text_by_another_name(media_type) {
        Cow::Owned(format!("{media_type}; charset=utf-8"))
    } else {
        Cow::Borrowed(media_type)
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
    fn text_is_compressible_and_what_is_compressed_already_is_not() {
        for name in
            ["a.html", "a.js", "a.mjs", "a.css", "a.txt", "a.svg", "a.json", "a.wasm", "a.xml"]
        {
            assert!(is_compressible(&content_type(Path::new(name))), "{name}");
        }
        for name in ["a.png", "a.jpg", "a.woff2", "a.mp4", "a.gz", "a.zip", "a.pdf", "README"] {
            assert!(!is_compressible(&content_type(Path::new(name))), "{name}");
        }
    }

    #[test]
    fn common_files_have_their_media_type() {
        for (name, expected) in [
            ("index.html", "text/html; charset=utf-8"),
            ("A.HTML", "text/html; charset=utf-8"),
            ("app.js", "text/javascript; charset=utf-8"),
            ("app.mjs", "application/javascript; charset=utf-8"),
            ("style.css", "text/css; charset=utf-8"),
            ("a.svg", "image/svg+xml; charset=utf-8"),
            ("data.json", "application/json"),
            ("a.wasm", "application/wasm"),
            ("a.woff2", "font/woff2"),
            ("a.avif", "image/avif"),
            ("a.mp4", "video/mp4"),
            ("a.tar.gz", "application/gzip"),
            ("README", "application/octet-stream"),
            ("a.unheard-of", "application/octet-stream"),
        ] {
            assert_eq!(content_type(Path::new(name)), expected, "{name}");
        }
    }
}
