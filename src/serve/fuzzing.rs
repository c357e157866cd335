//! What the fuzz targets of `fuzz/` reach of the command. No part of the interface.

use super::allow::AllowArgs;
use super::http::config::{self, Configuration, File};
use clap::{Args, Command, FromArgMatches, Parser};
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

/// What a configuration file of `serve http` comes to.
#[derive(Debug, PartialEq, Eq)]
pub struct Configured {
    /// All options and hosts, in the format of `Debug`; `None` if it is not even TOML, or has
    /// values that exclude each other.
    pub options: Option<String>,
    /// What is wrong with it.
    pub problems: Vec<String>,
}

/// Reads a configuration file of this name and text.
pub fn configuration(name: &str, text: &str) -> Configured {
    let file = File { path: Path::new(name), text };
    match config::merge(&file, ["twinring", "serve", "http"].map(OsString::from).to_vec()) {
        Ok(Configuration { args, hosts, problems }) => {
            Configured { options: Some(format!("{args:?} {hosts:?}")), problems }
        }
        Err(problems) => Configured { options: None, problems },
    }
}

/// Reads what follows `twinring serve`; what is said if it is wrong, or asks for help.
pub fn arguments<'a>(arguments: impl Iterator<Item = &'a str>) -> Option<String> {
    let all = ["twinring", "serve"].into_iter().chain(arguments);
    let read = crate::Cli::try_parse_from(all);
    read.err().map(|error| error.to_string())
}

/// Whom a reflector on this address answers.
#[derive(Debug)]
pub struct Allowed {
    /// What the ready line says of it.
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
