//! What can go wrong, as a value: what failed, why, and what to do.

use std::fmt::Display;
use std::io;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::Value;

/// Why the lab could not do what it was asked. A subject that misbehaves is not an error but a
/// result: see `analysis::checks`.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct LabError {
    message: String,
    exit_code: u8,
}

impl LabError {
    /// The exit code of the command: 2 when the request was wrong, 1 when carrying it out failed.
    pub fn exit_code(&self) -> u8 {
        self.exit_code
    }

    /// The experiment, or an option, makes no sense: file and line or the option, what was found, and what would have
    /// been right.
    pub fn request(place: impl Display, found: impl Display, expected: impl Display) -> LabError {
        LabError { message: format!("{place}: {found}; expected {expected}"), exit_code: 2 }
    }

    pub(crate) fn unknown(message: String) -> LabError {
        LabError { message, exit_code: 2 }
    }

    pub(crate) fn failed(message: String) -> LabError {
        LabError { message, exit_code: 1 }
    }

    /// The machine lacks something without which nothing can be measured.
    pub(crate) fn machine(why: impl Display) -> LabError {
        LabError::failed(format!("this machine cannot be measured: {why}"))
    }

    /// A network was asked for by name and cannot be had: the step that failed, and the kernel's answer.
    pub(crate) fn net(net: impl Display, why: impl Display) -> LabError {
        let what_to_do = "use --net lo, or run as root";
        LabError::failed(format!("cannot set up the network `{net}`: {why}; {what_to_do}"))
    }

    /// A file could not be written.
    pub fn write(path: &Path, source: io::Error) -> LabError {
        LabError::failed(format!(
            "cannot write {}: {source}; what was written before stays readable (`twinring lab report`); free some \
             space or choose another place with --out",
            path.display()
        ))
    }

    /// A file could not be read.
    pub fn read(path: impl AsRef<Path>, source: io::Error) -> LabError {
        LabError::failed(format!("cannot read {}: {source}", path.as_ref().display()))
    }

    pub(crate) fn not_a_bundle(path: &Path, why: &str) -> LabError {
        let (path, why) = (path.display(), shortened(why, MESSAGE_CHARS_MAX));
        LabError::failed(format!("{path} is not a bundle this version can read: {why}"))
    }

    /// For a place without a bundle, as it was given.
    pub(crate) fn no_bundle(path: &Path) -> LabError {
        let why = match path.is_dir() {
            true => "it has no bundle.json; name the directory that `twinring lab run` printed",
            false => "there is no such directory",
        };
        LabError::not_a_bundle(path, why)
    }

    /// For a process whose signal handlers cannot be installed: see [`crate::Stop::on_signals`].
    pub fn signals(source: io::Error) -> LabError {
        LabError::machine(format!("no signal handlers: {source}"))
    }
}

/// The most characters that are printed of one problem with a bundle, whose author may have put
/// anything into it.
pub(crate) const MESSAGE_CHARS_MAX: usize = 500;

/// The first `chars_max` characters of a text from elsewhere, without control characters.
pub(crate) fn shortened(text: &str, chars_max: usize) -> String {
    let printable = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    let mut short: String = text.chars().take(chars_max).map(printable).collect();
    let left_out = text.chars().count().saturating_sub(chars_max);
    if left_out > 0 {
        short += &format!("... ({left_out} more characters)");
    }
    short
}

/// Reads a type from a value, by way of its text. `serde_json::from_value` would compile a second
/// reader of every type in a bundle, hundreds of kilobytes of the program.
pub(crate) fn from_value<T: DeserializeOwned>(value: &Value) -> Result<T, String> {
    serde_json::from_str(&value.to_string()).map_err(|error| {
        // A place in this text is of no use to anybody.
        let place = format!(" at line {} column {}", error.line(), error.column());
        let text = error.to_string();
        text.strip_suffix(&place).unwrap_or(&text).to_owned()
    })
}
