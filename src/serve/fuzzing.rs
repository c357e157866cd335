//! Entry points for the fuzz targets of `fuzz/`. Not part of the interface.

use super::allow::AllowArgs;
use super::http::HttpArgs;
use super::http::config::{self, File};
use clap::{Args, Command, FromArgMatches, Parser};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

/// The result of reading a configuration file of `serve http`.
#[derive(Debug, PartialEq, Eq)]
pub struct Configured {
    /// All options and hosts, in the format of `Debug`; `None` if it is not TOML, or has
    /// contradictory values.
    pub options: Option<String>,
    /// The errors.
    pub problems: Vec<String>,
}

/// Reads a configuration file of this name and text.
pub fn configuration(name: &str, text: &str) -> Configured {
    let file = File { path: Path::new(name), text };
    match config::merge(&file, &HttpArgs::default()) {
        Ok(mut configuration) => {
            let problems = std::mem::take(&mut configuration.problems);
            Configured { options: Some(format!("{configuration:?}")), problems }
        }
        Err(problems) => Configured { options: None, problems },
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
        let options = values.map(|value| format!("--allow={value}"));
        let command = AllowArgs::augment_args(Command::new("udp"));
        let matches = command.try_get_matches_from(["udp".to_owned()].into_iter().chain(options));
        let args = AllowArgs::from_arg_matches(&matches.ok()?).ok()?;
        Some(Allowed { list: args.list(), allow: args.list_for(&[listen]) })
    }

    /// Whether this address is answered; `None` if the service would not even start.
    pub fn admits(&self, address: IpAddr) -> Option<bool> {
        self.allow.as_ref().ok().map(|allow| allow.admits(address))
    }
}
