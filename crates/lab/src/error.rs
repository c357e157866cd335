//! What can go wrong, as values: what failed, why, and what to do.

use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::Value;

/// Why the lab could not do what it was asked. A subject that misbehaves is not an error but a
/// result: see `analysis::checks`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// The experiment, or an option that overrides a part of it, makes no sense.
    #[error("{place}: {problem}; expected {expected}")]
    BadExperiment {
        /// File and line, or the option.
        place: String,
        /// What was found.
        problem: String,
        /// What would have been right.
        expected: String,
    },

    /// There is no built-in experiment and no file of this name.
    #[error(
        "no experiment `{name}`{}; built in are: {known}; or give the path of a TOML file",
        suggestion.as_ref().map_or(String::new(), |it| format!(", did you mean `{it}`?"))
    )]
    UnknownExperiment {
        /// What was asked for.
        name: String,
        /// The built-in one whose name is like that.
        suggestion: Option<&'static str>,
        /// The names there are, separated by commas.
        known: String,
    },

    /// A network was asked for by name and cannot be had.
    #[error("cannot set up the network `{net}`: {why}; use --net lo, or run as root")]
    Net {
        /// `lo`, `rps` or `napi`.
        net: String,
        /// The step that failed and the kernel's answer.
        why: String,
    },

    /// The program of a subject or of the load could not be started at all.
    #[error("cannot start `{program}`: {source}; check the path and that it may be executed")]
    Spawn {
        /// The program.
        program: String,
        /// The answer of the system.
        source: io::Error,
    },

    /// A file of the bundle could not be written.
    #[error(
        "cannot write {path}: {source}; what was written before stays readable (`twinring lab \
         report`); free some space or choose another place with --out"
    )]
    Write {
        /// The file.
        path: PathBuf,
        /// The answer of the system.
        source: io::Error,
    },

    /// A file could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The answer of the system.
        source: io::Error,
    },

    /// A directory is not a bundle, or not one that this version understands.
    #[error("{path} is not a bundle this version can read: {why}")]
    NotABundle {
        /// The directory or file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },

    /// Bundles that are not of the same experiment, or not of one machine where they have to be.
    #[error("{path} cannot be joined: {why}")]
    CannotJoin {
        /// The bundle.
        path: PathBuf,
        /// What differs.
        why: String,
    },

    /// Other processes, or a quota, disturb every run.
    #[error(
        "stopped after {blocks} excluded blocks in a row: {why}; end that, and measure again; or go on with --busy"
    )]
    Noisy {
        /// Excluded blocks.
        blocks: usize,
        /// What disturbs, with figures.
        why: String,
    },

    /// The machine lacks something without which nothing can be measured.
    #[error("this machine cannot be measured: {why}")]
    Machine {
        /// What is missing.
        why: String,
    },
}

impl LabError {
    /// The exit code of the command: 2 when the request was wrong, 1 when carrying it out failed.
    pub fn exit_code(&self) -> u8 {
        match self {
            LabError::BadExperiment { .. } | LabError::UnknownExperiment { .. } => 2,
            _ => 1,
        }
    }

    /// A file could not be written.
    pub fn write(path: &Path, source: io::Error) -> LabError {
        LabError::Write { path: path.to_owned(), source }
    }

    pub(crate) fn not_a_bundle(path: &Path, why: &str) -> LabError {
        LabError::NotABundle { path: path.to_owned(), why: shortened(why, MESSAGE_CHARS_MAX) }
    }

    /// For a place without a bundle, as it was given.
    pub(crate) fn no_bundle(path: &Path) -> LabError {
        let why = match path.is_dir() {
            true => "it has no bundle.json; name the directory that `twinring lab run` printed",
            false => "there is no such directory",
        };
        LabError::not_a_bundle(path, why)
    }

    /// [`LabError::Read`] for this file.
    pub fn read(path: impl AsRef<Path>, source: io::Error) -> LabError {
        LabError::Read { path: path.as_ref().to_owned(), source }
    }

    /// For a process whose signal handlers cannot be installed: see [`crate::Stop::on_signals`].
    pub fn signals(source: io::Error) -> LabError {
        LabError::Machine { why: format!("no signal handlers: {source}") }
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
