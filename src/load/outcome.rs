//! A run of any load: what is said before, while and after it, and the exit code.

use super::observe::Live;
use super::options::Output;
use crate::output::{self, complain, raise_descriptor_limit};
use clap::error::ErrorKind;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use twinring_load::{Load, LoadError, Stopper, Table, gates, hgrm};
use twinring_wire::LoadResult;

/// The exit code of a run that breached a gate.
const BREACHED: u8 = 3;
/// That of a run whose load was not the one that was asked for.
const NOT_AS_ASKED: u8 = 4;

/// Ends the program if the arguments make no sense.
pub(super) fn refuse<T>(checked: Result<T, String>) -> T {
    checked.unwrap_or_else(|wrong| {
        clap::Error::raw(ErrorKind::ValueValidation, format!("{wrong}\n")).exit()
    })
}

/// Runs a load: `expected` is the maximum length of its window, `noun` the unit of its counts.
pub(super) fn drive<S>(
    load: Load<S>,
    output: Output,
    (expected, noun): (Duration, &'static str),
    run: impl FnOnce(Load<S>, &mut Live) -> Result<LoadResult, LoadError>,
) -> Result<ExitCode, Box<dyn Error>> {
    raise_descriptor_limit();
    if let Some(fallback_reason) = load.fallback_reason() {
        let why = format!("because io_uring cannot be used: {fallback_reason}");
        complain(&format!("twinring: loading with epoll, {why}"));
    }
    let signal = watch(load.stopper())?;
    let mut observer = Live::new(expected, noun, output.json, output.start_at);
    let result = run(load, &mut observer);
    observer.finish()?;
    let result = result?;
    let text = match output.json {
        true => serde_json::to_string(&result)?,
        false => Table(&result).to_string(),
    };
    output::print(&format!("{}\n", text.trim_end()))?;
    if let Some(path) = output.hgrm {
        write_hgrm(&result, &path).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(ended(signal.load(Ordering::Acquire), &result))
}

/// Handles SIGINT and SIGTERM: the first, 0 before it, ends the window, and the second ends the program.
fn watch(stopper: Stopper) -> std::io::Result<Arc<AtomicU8>> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let first = Arc::new(AtomicU8::new(0));
    let seen = Arc::clone(&first);
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            if seen.load(Ordering::Acquire) != 0 {
                std::process::exit(128 + signal);
            }
            seen.store(signal as u8, Ordering::Release);
            stopper.stop();
        }
    })?;
    Ok(first)
}

fn write_hgrm(result: &LoadResult, path: &Path) -> std::io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    let latencies_ns = result.latencies().map_err(std::io::Error::other)?;
    hgrm::write(&latencies_ns, &mut file)?;
    file.flush()
}

/// The exit code of a run that has a result, after each reason for it.
fn ended(signal: u8, result: &LoadResult) -> ExitCode {
    let (shortfall, failure) = (result.shortfall(), result.failure());
    let breached: Vec<String> =
        result.gates().iter().filter(|gate| gate.breached).map(gates::in_words).collect();
    let failed = failure.iter().map(|what| format!("failed: {what}"));
    for what in shortfall.iter().cloned().chain(breached.iter().cloned()).chain(failed) {
        complain(&format!("twinring: {what}"));
    }
    match signal {
        1.. => ExitCode::from(128 + signal),
        0 if failure.is_some() => ExitCode::FAILURE,
        0 if !breached.is_empty() => ExitCode::from(BREACHED),
        0 if !shortfall.is_empty() => ExitCode::from(NOT_AS_ASKED),
        0 => ExitCode::SUCCESS,
    }
}
