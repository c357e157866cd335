//! Bundles of the lab that were damaged on a disk or edited by hand: `lab verify`, `lab report` and
//! `lab diff` read them or report an error, and a report rendered from readable raw data passes
//! verification.
#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::sync::LazyLock;
use tempfile::TempDir;
use twinring_lab::{Gate, diff, full, rerender, verify};

const BUNDLE: &str = include_str!("../../crates/lab/tests/data/bundle/bundle.json");
const RUNS: &str = include_str!("../../crates/lab/tests/data/bundle/runs.jsonl");
const FILES: [&str; 5] =
    ["bundle.json", "runs.jsonl", "manifest.sha256", "report.md", "report.html"];

/// The damage to a bundle.
#[derive(Arbitrary, Debug)]
struct Damage {
    /// Which protocol the runs are of, and how many of them there are.
    selection: u8,
    /// Changes of its JSON.
    edits: Vec<Edit>,
    /// Changes of its bytes, once it was rendered.
    scratches: Vec<Scratch>,
    /// The word of `--fail-if`.
    gate: Option<String>,
}

/// A change of one value.
#[derive(Arbitrary, Debug)]
struct Edit {
    /// 0 is `bundle.json`, any other number a run.
    document: u8,
    /// Which child, at each level.
    path: Vec<u8>,
    /// The new value as JSON, or text. Without one the value is removed.
    to: Option<String>,
}

/// A change of some bytes of a file.
#[derive(Arbitrary, Debug)]
struct Scratch {
    file: u8,
    at: u16,
    removed: u8,
    inserted: Vec<u8>,
}

/// A directory in memory if possible: rendering waits for the disk.
fn scratch_directory() -> TempDir {
    let directory = TempDir::new_in("/dev/shm").or_else(|_| TempDir::new());
    directory.expect("a directory for temporary files")
}

/// The stored bundle.
static DOCUMENTS: LazyLock<(Value, Vec<Value>)> = LazyLock::new(|| {
    let read = |text| serde_json::from_str(text).expect("JSON");
    (read(BUNDLE), RUNS.lines().map(read).collect())
});

/// Puts `to` in the place that a path leads to, or removes what is there.
fn edit(value: &mut Value, path: &[u8], to: Option<&Value>) {
    let count = match value {
        Value::Object(fields) => fields.len(),
        Value::Array(items) => items.len(),
        _ => 0,
    };
    let Some((first, rest)) = path.split_first().filter(|_| count > 0) else {
        return *value = to.cloned().unwrap_or_default();
    };
    let index = usize::from(*first) % count;
    let removes = rest.is_empty() && to.is_none();
    match value {
        Value::Object(fields) if removes => {
            let name = fields.keys().nth(index).cloned().expect("it is below their number");
            fields.remove(&name);
        }
        Value::Array(items) if removes => drop(items.remove(index)),
        Value::Object(fields) => {
            fields.values_mut().nth(index).into_iter().for_each(|child| edit(child, rest, to))
        }
        Value::Array(items) => edit(&mut items[index], rest, to),
        _ => {}
    }
}

fn write(damage: &Damage, directory: &Path) {
    let (mut bundle, mut runs) = DOCUMENTS.clone();
    let of = |run: &Value| match (&run["cell"]["streams"], &run["cell"]["files"]) {
        (Value::Null, Value::Null) => 0,
        (Value::Null, _) => 1,
        _ => 2,
    };
    runs.retain(|run| of(run) == damage.selection % 3);
    // A bundle of few runs, as of a lab that was interrupted, is read much sooner.
    let kept_one_in = 1 + usize::from(damage.selection / 3 % 8);
    runs = runs.into_iter().step_by(kept_one_in).collect();
    for Edit { document, path, to } in damage.edits.iter().take(8) {
        let document = match document.checked_sub(1) {
            None => &mut bundle,
            Some(number) => {
                let index = usize::from(number) % runs.len();
                &mut runs[index]
            }
        };
        let to = to.as_ref().map(|text| serde_json::from_str(text).unwrap_or(json!(text)));
        edit(document, path, to.as_ref());
    }
    let lines: String = runs.iter().map(|run| format!("{run}\n")).collect();
    fs::write(directory.join(FILES[0]), bundle.to_string()).expect("room");
    fs::write(directory.join(FILES[1]), lines).expect("room");
}

fn scratch(scratch: &Scratch, directory: &Path) {
    let path = directory.join(FILES[usize::from(scratch.file) % FILES.len()]);
    let Ok(mut bytes) = fs::read(&path) else { return };
    let at = usize::from(scratch.at) % (bytes.len() + 1);
    let end = (at + usize::from(scratch.removed)).min(bytes.len());
    bytes.splice(at..end, scratch.inserted.iter().copied());
    fs::write(&path, bytes).expect("room");
}

/// Every bundle is judged or refused.
fn check(directory: &Path) {
    let said = match verify(directory) {
        Ok(found) => found.to_string(),
        Err(error) => error.to_string(),
    };
    assert!(!said.is_empty());
}

/// Whether a problem is that something does not follow from the raw data. Others are about the raw
/// data themselves, and stay.
fn is_about_what_was_rendered(problem: &str) -> bool {
    ["raw data give", "was changed after", "does not name"]
        .iter()
        .any(|words| problem.contains(words))
}

fuzz_target!(|damage: Damage| {
    let directory = scratch_directory();
    let directory = directory.path();
    write(&damage, directory);
    check(directory);
    let Ok(bundle) = rerender(directory) else { return };
    let shown = full(&bundle, "bundle");
    assert!(!shown.is_empty());
    let found = verify(directory).expect("it was just written");
    let wrong = found.problems.iter().find(|problem| is_about_what_was_rendered(problem));
    assert_eq!(wrong, None);

    let gates: Vec<Gate> = damage.gate.iter().filter_map(|gate| gate.parse().ok()).collect();
    if let Ok(found) = diff(directory, directory, &gates, true) {
        assert!(serde_json::from_str::<Value>(&found.json_line()).is_ok());
        assert!(!found.table().is_empty());
    }

    damage.scratches.iter().take(4).for_each(|it| scratch(it, directory));
    check(directory);
});
