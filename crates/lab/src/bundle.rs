//! A bundle on disk: a directory that a stranger can check and repeat.
//!
//! - `bundle.json`: the experiment, the machine, and the summary ([`Bundle`]);
//! - `runs.jsonl`: one line per run, written as it ends ([`RunRecord`]);
//! - `report.md`, `report.html`: the summary for people;
//! - `manifest.sha256`: checksums of all of these, readable by `sha256sum -c`.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::LabError;
use crate::experiment::Experiment;
use crate::machine::sha256_of;
use crate::report;
use crate::result::{BUNDLE_SCHEMA, Bundle, EARLIER_BUNDLE_SCHEMAS, RunRecord};

pub(crate) const BUNDLE_FILE: &str = "bundle.json";
pub(crate) const RUNS_FILE: &str = "runs.jsonl";
pub(crate) const MARKDOWN_FILE: &str = "report.md";
pub(crate) const HTML_FILE: &str = "report.html";
pub(crate) const MANIFEST_FILE: &str = "manifest.sha256";

/// The files that the manifest covers, in its order.
pub(crate) const COVERED: &[&str] = &[BUNDLE_FILE, RUNS_FILE, MARKDOWN_FILE, HTML_FILE];

/// A bundle that is being written.
pub(crate) struct Writer {
    directory: PathBuf,
    runs: File,
}

impl Writer {
    /// Makes the directory and everything above it, and writes `bundle.json` for the first time.
    ///
    /// # Errors
    /// [`LabError::Write`].
    pub(crate) fn create(directory: &Path, bundle: &Bundle) -> Result<Writer, LabError> {
        fs::create_dir_all(directory).map_err(|error| LabError::write(directory, error))?;
        let path = directory.join(RUNS_FILE);
        // An older bundle is never added to.
        let runs = OpenOptions::new().append(true).create_new(true).open(&path);
        let runs = runs.map_err(|error| LabError::write(&path, error))?;
        write_bundle(directory, bundle).inspect_err(|_| {
            // Without that it is no bundle: nothing is left that nobody could read.
            let _ = fs::remove_file(&path);
            let _ = fs::remove_dir(directory);
        })?;
        Ok(Writer { directory: directory.to_owned(), runs })
    }

    /// Appends a run. The line is complete on disk or, when the disk is full, cut off again, so
    /// that the file stays readable.
    ///
    /// # Errors
    /// [`LabError::Write`].
    pub(crate) fn append(&mut self, run: &RunRecord) -> Result<(), LabError> {
        let path = self.directory.join(RUNS_FILE);
        let before = self.runs.metadata().map(|metadata| metadata.len());
        let mut line =
            serde_json::to_vec(run).map_err(|error| LabError::write(&path, error.into()))?;
        line.push(b'\n');
        let written = self.runs.write_all(&line).and_then(|()| self.runs.sync_data());
        written.map_err(|error| {
            if let Ok(length) = before {
                // If even this fails, readers still skip a last line without an end.
                let _ = self.runs.set_len(length);
            }
            LabError::write(&path, error)
        })
    }
}

/// Writes everything but the raw data: `bundle.json` with its summary, the reports, the manifest.
///
/// # Errors
/// [`LabError::Write`].
pub(crate) fn finish(
    directory: &Path,
    bundle: &Bundle,
    runs: &[RunRecord],
) -> Result<(), LabError> {
    write_bundle(directory, bundle)?;
    replace(&directory.join(MARKDOWN_FILE), report::markdown(bundle).as_bytes())?;
    replace(&directory.join(HTML_FILE), report::html(bundle, runs).as_bytes())?;
    let mut manifest = String::new();
    for name in COVERED {
        let path = directory.join(name);
        let hash = sha256_of(&path).map_err(|error| LabError::read(&path, error))?;
        manifest.push_str(&format!("{hash}  {name}\n"));
    }
    replace(&directory.join(MANIFEST_FILE), manifest.as_bytes())
}

fn write_bundle(directory: &Path, bundle: &Bundle) -> Result<(), LabError> {
    let path = directory.join(BUNDLE_FILE);
    let mut text =
        serde_json::to_vec_pretty(bundle).map_err(|e| LabError::write(&path, e.into()))?;
    text.push(b'\n');
    replace(&path, &text)
}

/// Writes a file so that at every moment there is the old one or the new one.
fn replace(path: &Path, content: &[u8]) -> Result<(), LabError> {
    let draft = path.with_extension("draft");
    let written = File::create(&draft)
        .and_then(|mut file| file.write_all(content).and_then(|()| file.sync_data()))
        .and_then(|()| fs::rename(&draft, path));
    written.map_err(|error| {
        let _ = fs::remove_file(&draft);
        LabError::write(path, error)
    })
}

/// A bundle read back.
pub(crate) struct Stored {
    pub(crate) bundle: Bundle,
    /// The summary as it stands in the file.
    pub(crate) summary: Option<Value>,
    pub(crate) runs: Vec<RunRecord>,
    /// A last line that was cut off by a crash or a full disk.
    pub(crate) cut_off: bool,
}

/// Reads a bundle. One whose lab was killed is read as far as it got.
///
/// # Errors
/// [`LabError::Read`], [`LabError::NotABundle`].
pub(crate) fn read(directory: &Path) -> Result<Stored, LabError> {
    let path = directory.join(BUNDLE_FILE);
    let text = fs::read_to_string(&path).map_err(|error| LabError::read(&path, error))?;
    let foreign = |path: &Path, why: String| LabError::NotABundle { path: path.to_owned(), why };
    let mut value: Value =
        serde_json::from_str(&text).map_err(|error| foreign(&path, error.to_string()))?;
    let schema = value.get("schema").and_then(Value::as_str).unwrap_or("none");
    if schema != BUNDLE_SCHEMA && !EARLIER_BUNDLE_SCHEMAS.contains(&schema) {
        return Err(foreign(&path, format!("its schema is {schema}, not {BUNDLE_SCHEMA}")));
    }
    let summary = value.get("summary").filter(|summary| !summary.is_null()).cloned();
    if let Some(experiment) = value.get_mut("experiment") {
        let read = Experiment::from_stored(experiment.take()).map_err(|why| foreign(&path, why))?;
        *experiment =
            serde_json::to_value(read).map_err(|error| foreign(&path, error.to_string()))?;
    }
    let bundle =
        serde_json::from_value(value).map_err(|error| foreign(&path, error.to_string()))?;
    let path = directory.join(RUNS_FILE);
    let text = fs::read_to_string(&path).map_err(|error| LabError::read(&path, error))?;
    let (whole, rest) = text.rsplit_once('\n').unwrap_or(("", &text));
    let runs = whole.lines().enumerate().map(|(number, line)| {
        serde_json::from_str(line)
            .map_err(|error| foreign(&path, format!("line {}: {error}", number + 1)))
    });
    let runs = runs.collect::<Result<_, _>>()?;
    Ok(Stored { bundle, summary, runs, cut_off: !rest.is_empty() })
}

/// A new name for a bundle in `parent`: the experiment's name and the time.
pub(crate) fn fresh_directory(parent: &Path, name: &str, started: jiff::Timestamp) -> PathBuf {
    let stamp = started.strftime("%Y%m%d-%H%M%S");
    let base = parent.join(format!("{name}-{stamp}"));
    let others = (2..100).map(|number| parent.join(format!("{name}-{stamp}-{number}")));
    std::iter::once(base.clone()).chain(others).find(|path| !path.exists()).unwrap_or(base)
}
