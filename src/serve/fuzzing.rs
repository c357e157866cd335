//! Entry points for the fuzz targets of `fuzz/`. Not part of the interface.

use super::http::HttpArgs;
use super::http::config::{self, File};
use std::path::Path;

/// The result of reading a configuration file of `serve http`.
#[derive(Debug, PartialEq, Eq)]
pub struct Configured {
    /// All options and sites, in the format of `Debug`, if there is no error.
    pub options: Option<String>,
    /// The first error.
    pub problem: Option<String>,
}

/// Reads a configuration file of this name and text.
pub fn configuration(name: &str, text: &str) -> Configured {
    let file = File { path: Path::new(name), text };
    match config::merge(&file, &HttpArgs::default()) {
        Ok(read) => Configured { options: Some(format!("{read:?}")), problem: None },
        Err(problem) => Configured { options: None, problem: Some(problem) },
    }
}
