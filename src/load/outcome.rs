//! Before a load, what does not fit; after it, its result and the exit code.

use crate::output::{self, complain};
use clap::error::ErrorKind;
use std::error::Error;
use std::fmt::Display;
use std::process::ExitCode;
use twinring_services::raise_descriptor_limit;
use twinring_wire::load::Gate;

/// Ends the program if the settings make no sense.
pub(super) fn refuse(checked: Result<(), String>) {
    if let Err(wrong) = checked {
        clap::Error::raw(ErrorKind::ValueValidation, format!("{wrong}\n")).exit();
    }
}

/// Raises the limit of descriptors, and reports an unexpected engine.
pub(super) fn prepare(fallback_reason: Option<&str>) {
    if let Err(error) = raise_descriptor_limit() {
        complain(&format!("twinring: cannot raise the limit of open descriptors: {error}"));
    }
    if let Some(fallback_reason) = fallback_reason {
        let why = format!("because io_uring cannot be used: {fallback_reason}");
        complain(&format!("twinring: loading with epoll, {why}"));
    }
}

/// Prints a result: as a line of JSON, or as its table.
pub(super) fn print(
    result: &impl serde::Serialize,
    table: impl Display,
    json: bool,
) -> Result<(), Box<dyn Error>> {
    let text = if json { serde_json::to_string(result)? } else { table.to_string() };
    Ok(output::print(&format!("{text}\n"))?)
}

/// The exit code of a run that breached a gate.
const BREACHED: u8 = 3;
/// That of a run whose load was not the one that was asked for.
const NOT_AS_ASKED: u8 = 4;

/// The exit code of a run that has a result, after each reason for it.
pub(super) fn finish(
    signal: Option<u8>,
    failure: Option<String>,
    gates: &[Gate],
    shortfall: &[String],
) -> ExitCode {
    shortfall.iter().for_each(|what| complain(&format!("twinring: {what}")));
    let breached = gates.iter().filter(|gate| gate.breached);
    let breached: Vec<String> = breached.map(twinring_load::gates::in_words).collect();
    breached.iter().for_each(|what| complain(&format!("twinring: {what}")));
    failure.iter().for_each(|what| complain(&format!("twinring: failed: {what}")));
    match (signal, failure) {
        (Some(signal), _) => ExitCode::from(128 + signal),
        (None, Some(_)) => ExitCode::FAILURE,
        (None, None) if !breached.is_empty() => ExitCode::from(BREACHED),
        (None, None) if !shortfall.is_empty() => ExitCode::from(NOT_AS_ASKED),
        (None, None) => ExitCode::SUCCESS,
    }
}
