//! Entry points for the fuzz targets of `fuzz/`. Not part of the interface.

use super::http::HttpArgs;
use super::http::config::{self, File};
use std::path::Path;

/// Reads a configuration file of `serve http` of this name and text: all options and sites, in the format of `Debug`.
///
/// # Errors
/// The first one of the file.
pub fn configuration(name: &str, text: &str) -> Result<String, String> {
    let file = File { path: Path::new(name), text };
    config::merge(&file, &HttpArgs::default()).map(|read| format!("{read:?}"))
}
