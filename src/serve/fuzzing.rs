//! Entry points for the fuzz targets of `fuzz/`. Not part of the interface.

use super::allow::AllowArgs;
use super::http::HttpArgs;
use super::http::config::{self, File};
use clap::Parser;
use std::net::{IpAddr, SocketAddr};
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

/// Reads the arguments after `twinring serve`. Returns the message if they are invalid or request help.
pub fn arguments<'a>(arguments: impl Iterator<Item = &'a str>) -> Option<String> {
    let all = ["twinring", "serve"].into_iter().chain(arguments);
    let read = crate::Cli::try_parse_from(all);
    read.err().map(|error| error.to_string())
}

/// The clients that a reflector on this address answers.
#[derive(Debug)]
pub struct Allowed {
    /// Its description in the ready line.
    pub list: Vec<String>,
    allow: Result<twinring_services::AllowList, String>,
}

impl Allowed {
    /// Reads the values of `--allow`; `None` if one of them is wrong.
    pub fn read<'a>(values: impl Iterator<Item = &'a str>, listen: SocketAddr) -> Option<Allowed> {
        let allowed = values.map(str::parse).collect::<Result<_, _>>().ok()?;
        let args = AllowArgs { allowed };
        Some(Allowed { list: args.list(), allow: args.list_for(&[listen]) })
    }

    /// Whether this address is answered; `None` if the service would not even start.
    pub fn admits(&self, address: IpAddr) -> Option<bool> {
        self.allow.as_ref().ok().map(|allow| allow.admits(address))
    }
}
