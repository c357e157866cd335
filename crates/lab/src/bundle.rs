//! A bundle on disk: a directory that a stranger can check and repeat.
//!
//! - `bundle.json`: the experiment, the machine, and the summary ([`Bundle`]);
//! - `runs.jsonl`: one line per run, written as it ends ([`RunRecord`]), calibrations first;
//! - `report.md`, `report.html`: the summary for people;
//! - `manifest.sha256`: checksums of all of these, readable by `sha256sum -c`.
//!
//! Each of them but the manifest may have been compressed by `zstd` since ([`Content`]).

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Take, Write};
use std::path::{Path, PathBuf};

use ruzstd::decoding::{FrameDecoder, StreamingDecoder};
use serde_json::Value;

use crate::error::{LabError, from_value};
use crate::machine::{self, sha256};
use crate::record::RunRecord;
use crate::report;
use crate::result::{BUNDLE_SCHEMA, Bundle, OCCASIONS_MAX};

pub(crate) const BUNDLE_FILE: &str = "bundle.json";
pub(crate) const RUNS_FILE: &str = "runs.jsonl";
pub(crate) const MARKDOWN_FILE: &str = "report.md";
pub(crate) const HTML_FILE: &str = "report.html";
pub(crate) const MANIFEST_FILE: &str = "manifest.sha256";

pub(crate) const COVERED: &[&str] = &[BUNDLE_FILE, RUNS_FILE, MARKDOWN_FILE, HTML_FILE];

/// The largest `runs.jsonl` that is written or read: 20,000 runs and more.
const RUNS_BYTES_MAX: u64 = 256 << 20;

/// The largest line of it; one of ours has 5 to 30 KB.
const RUN_BYTES_MAX: u64 = 4 << 20;

/// The largest of each other file of a bundle that is read; the largest of ours has 2 MB.
const OTHER_BYTES_MAX: u64 = 32 << 20;

fn bytes_max(name: &str) -> u64 {
    if name == RUNS_FILE { RUNS_BYTES_MAX } else { OTHER_BYTES_MAX }
}

pub(crate) fn text_of(directory: &Path, name: &str) -> io::Result<String> {
    twinring_input::string_of(Content::open(directory, name)?, bytes_max(name))
}

pub(crate) fn hash_of(directory: &Path, name: &str) -> io::Result<String> {
    machine::hash_of(Content::open(directory, name)?, bytes_max(name))
}

/// Whether a bundle has a file of this name, plain or compressed.
pub(crate) fn has(directory: &Path, name: &str) -> bool {
    let path = directory.join(name);
    path.exists() || compressed(&path).exists()
}

fn compressed(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(COMPRESSED);
    name.into()
}

pub(crate) struct Writer {
    directory: PathBuf,
    runs: File,
}

impl Writer {
    pub(crate) fn create(directory: &Path, bundle: &Bundle) -> Result<Writer, LabError> {
        fs::create_dir_all(directory).map_err(|error| LabError::write(directory, error))?;
        let path = directory.join(RUNS_FILE);
        // An older bundle is never added to.
        let runs = OpenOptions::new().append(true).create_new(true).open(&path);
        let runs = runs.map_err(|error| LabError::write(&path, error))?;
        let text = as_json(directory, bundle)?;
        Draft::write(directory, BUNDLE_FILE, &text).and_then(Draft::put).inspect_err(|_| {
            // A directory without this file is no bundle, so it is not left behind.
            let _ = fs::remove_file(&path);
            let _ = fs::remove_dir(directory);
        })?;
        Ok(Writer { directory: directory.to_owned(), runs })
    }

    /// Appends a run. The line is complete on disk or, when the disk is full, cut off again, so
    /// that the file stays readable.
    pub(crate) fn append(&mut self, run: &RunRecord) -> Result<(), LabError> {
        let path = self.directory.join(RUNS_FILE);
        let before = self.runs.metadata().map(|metadata| metadata.len());
        let mut line =
            serde_json::to_vec(run).map_err(|error| LabError::write(&path, error.into()))?;
        line.push(b'\n');
        if before.as_ref().is_ok_and(|before| before + line.len() as u64 > RUNS_BYTES_MAX) {
            return Err(LabError::write(&path, too_large()));
        }
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

fn too_large() -> io::Error {
    let message = format!("it would have more than {RUNS_BYTES_MAX} bytes, the most that is read");
    io::Error::new(io::ErrorKind::FileTooLarge, message)
}

/// What the raw data of a bundle are about to become.
pub(crate) fn draft_of_runs<'a>(
    directory: &Path,
    runs: impl Iterator<Item = &'a RunRecord>,
) -> Result<Draft, LabError> {
    let path = directory.join(RUNS_FILE);
    let mut content = Vec::new();
    for run in runs {
        serde_json::to_writer(&mut content, run)
            .map_err(|error| LabError::write(&path, error.into()))?;
        content.push(b'\n');
        if content.len() as u64 > RUNS_BYTES_MAX {
            return Err(LabError::write(&path, too_large()));
        }
    }
    Draft::write(directory, RUNS_FILE, &content)
}

/// Writes everything but the raw data, which may be a draft: `bundle.json` with its summary, the reports, the manifest.
/// All files are replaced, or none.
pub(crate) fn finish(
    directory: &Path,
    bundle: &Bundle,
    runs: Option<Draft>,
) -> Result<(), LabError> {
    let mut drafts = Vec::from_iter(runs);
    for (name, content) in [
        (BUNDLE_FILE, as_json(directory, bundle)?),
        (MARKDOWN_FILE, report::markdown(bundle).into_bytes()),
        (HTML_FILE, report::html(bundle).into_bytes()),
    ] {
        drafts.push(Draft::write(directory, name, &content)?);
    }
    let mut manifest = String::new();
    for name in COVERED {
        let hash = match drafts.iter().find(|draft| draft.path.ends_with(name)) {
            Some(draft) => draft.sha256.clone(),
            None => hash_of(directory, name)
                .map_err(|error| LabError::read(directory.join(name), error))?,
        };
        manifest.push_str(&format!("{hash}  {name}\n"));
    }
    drafts.push(Draft::write(directory, MANIFEST_FILE, manifest.as_bytes())?);
    drafts.into_iter().try_for_each(Draft::put)
}

fn as_json(directory: &Path, bundle: &Bundle) -> Result<Vec<u8>, LabError> {
    let unwritten = |error: serde_json::Error| LabError::write(directory, error.into());
    let mut text = serde_json::to_vec_pretty(bundle).map_err(unwritten)?;
    text.push(b'\n');
    Ok(text)
}

/// What a file is about to become: at every moment there is the old one or the new one.
pub(crate) struct Draft {
    path: PathBuf,
    draft: PathBuf,
    sha256: String,
}

impl Draft {
    fn write(directory: &Path, name: &str, content: &[u8]) -> Result<Draft, LabError> {
        let path = directory.join(name);
        let draft = directory.join(format!("{name}.draft"));
        // What stands there, in a bundle from elsewhere, may be a FIFO or lead to another file.
        let created = match fs::remove_file(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => File::create_new(&draft),
        };
        let it = Draft { path, draft, sha256: sha256(content) };
        let written = created.and_then(|mut file| {
            file.write_all(content)?;
            file.sync_data()
        });
        written.map_err(|error| LabError::write(&it.path, error))?;
        Ok(it)
    }

    fn put(self) -> Result<(), LabError> {
        let renamed = fs::rename(&self.draft, &self.path);
        renamed.map_err(|error| LabError::write(&self.path, error))?;
        // Of what the file was before.
        match fs::remove_file(compressed(&self.path)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(LabError::write(&compressed(&self.path), error))
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Draft {
    /// Deletes a temporary file that was not renamed into place.
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.draft);
    }
}

pub(crate) struct Stored {
    pub(crate) bundle: Bundle,
    /// The summary as it stands in the file.
    pub(crate) summary: Option<Value>,
    pub(crate) runs: Vec<RunRecord>,
    /// Runs that only found out what subjects can serve.
    pub(crate) calibrations: Vec<RunRecord>,
    /// A last line that was cut off by a crash or a full disk.
    pub(crate) cut_off: bool,
}

/// Reads a bundle. One whose lab was killed is read as far as it got.
pub(crate) fn read(directory: &Path) -> Result<Stored, LabError> {
    let path = directory.join(BUNDLE_FILE);
    let text = text_of(directory, BUNDLE_FILE).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => LabError::no_bundle(directory),
        _ => LabError::read(&path, error),
    })?;
    let value: Value = serde_json::from_str(&text)
        .map_err(|error| LabError::not_a_bundle(&path, &error.to_string()))?;
    let schema = value.get("schema").and_then(Value::as_str).unwrap_or("none");
    if schema != BUNDLE_SCHEMA {
        let why = format!("its schema is {schema}, not {BUNDLE_SCHEMA}");
        return Err(LabError::not_a_bundle(&path, &why));
    }
    let summary = value.get("summary").filter(|summary| !summary.is_null()).cloned();
    let unreadable = |why: String| LabError::not_a_bundle(&path, &why);
    let bundle: Bundle = from_value(&value).map_err(unreadable)?;
    bundle.experiment.check_stored().map_err(unreadable)?;
    if bundle.occasions.len() > OCCASIONS_MAX {
        return Err(unreadable(format!("it has more than {OCCASIONS_MAX} sessions")));
    }
    let (all, cut_off) = read_runs(directory)?;
    let (calibrations, runs) = all.into_iter().partition(|run: &RunRecord| run.calibration);
    Ok(Stored { bundle, summary, runs, calibrations, cut_off })
}

fn read_runs(directory: &Path) -> Result<(Vec<RunRecord>, bool), LabError> {
    let path = &directory.join(RUNS_FILE);
    let unreadable = |error| LabError::read(path, error);
    let content = Content::open(directory, RUNS_FILE).map_err(unreadable)?;
    let mut rest = BufReader::new(content).take(RUNS_BYTES_MAX + 1);
    let (mut runs, mut line) = (Vec::new(), Vec::new());
    loop {
        line.clear();
        (&mut rest).take(RUN_BYTES_MAX).read_until(b'\n', &mut line).map_err(unreadable)?;
        let is_whole = line.last() == Some(&b'\n');
        if !is_whole && (line.len() as u64 == RUN_BYTES_MAX || rest.limit() == 0) {
            let message = format!(
                "a line has at most {RUN_BYTES_MAX} bytes, and the file at most {RUNS_BYTES_MAX}"
            );
            return Err(unreadable(io::Error::new(io::ErrorKind::FileTooLarge, message)));
        }
        if !is_whole {
            return Ok((runs, !line.is_empty()));
        }
        let text = std::str::from_utf8(&line).map_err(|error| error.to_string());
        let run = text.and_then(|it| serde_json::from_str(it).map_err(|error| error.to_string()));
        runs.push(run.map_err(|why| {
            LabError::not_a_bundle(path, &format!("line {}: {why}", runs.len() + 1))
        })?);
    }
}

pub(crate) fn fresh_directory(parent: &Path, name: &str, started: jiff::Timestamp) -> PathBuf {
    let stamp = started.strftime("%Y%m%d-%H%M%S");
    let base = parent.join(format!("{name}-{stamp}"));
    let others = (2..100).map(|number| parent.join(format!("{name}-{stamp}-{number}")));
    std::iter::once(base.clone()).chain(others).find(|path| !path.exists()).unwrap_or(base)
}

/// What `zstd` appends to the name of a file that it has compressed.
const COMPRESSED: &str = ".zst";

/// The most memory for what later bytes of a compressed file refer back to. `zstd --ultra -22` takes
/// all of it, lower levels 8 MB at most.
const WINDOW_BYTES_MAX: u64 = 128 << 20;

/// Reads a file as it was written, whether it lies there plain or compressed.
///
/// The size of a compressed file does not bound its content, so the reader does.
enum Content {
    Plain(File),
    Compressed(Box<StreamingDecoder<BufReader<Take<File>>, FrameDecoder>>),
}

impl Content {
    /// Opens the file of this name, or else the one that `zstd` has made of it. The reader has to bound what it is.
    fn open(directory: &Path, name: &str) -> io::Result<Content> {
        let compressed = format!("{name}{COMPRESSED}");
        let path = directory.join(&compressed);
        if path.symlink_metadata().is_err() {
            return twinring_input::open(&directory.join(name)).map(Content::Plain);
        }
        let of_it =
            |error: io::Error| io::Error::new(error.kind(), format!("{compressed}: {error}"));
        if directory.join(name).symlink_metadata().is_ok() {
            let why = format!("is there twice, also as {compressed}; remove one of the two");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let file = twinring_input::open(&path).map_err(of_it)?;
        let source = BufReader::new(file.take(bytes_max(name)));
        let decoder = StreamingDecoder::new_with_max_window_size(source, WINDOW_BYTES_MAX);
        let decoder = decoder.map_err(|error| of_it(invalid(&error.to_string())))?;
        Ok(Content::Compressed(Box::new(decoder)))
    }
}

impl Read for Content {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let decoder = match self {
            Content::Plain(file) => return file.read(buffer),
            Content::Compressed(decoder) => decoder,
        };
        let read = decoder.read(buffer)?;
        if read > 0 || buffer.is_empty() {
            return Ok(read);
        }
        let (stored, computed) =
            (decoder.decoder.get_checksum_from_data(), decoder.decoder.get_calculated_checksum());
        if stored.is_some() && stored != computed {
            return Err(invalid("its checksum does not match what was decompressed"));
        }
        if decoder.get_mut().read(&mut [0])? > 0 {
            return Err(invalid(
                "something follows the compressed content; compress it with `zstd`",
            ));
        }
        Ok(0)
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("compressed: {why}"))
}
