//! Edits of a bundle are found, also when the manifest was rewritten to match.

use std::fs;
use std::path::Path;
use std::process::Command;

use proptest::prelude::*;
use serde_json::{Value, json};
use testing::{Test, tests};
use twinring_lab::{add, first_page, merge, rerender, verify};

pub(crate) const TESTS: &[Test] = tests![
    edited_raw_data_are_found_by_what_follows_from_them,
    runs_left_out_doubled_swapped_or_renamed_are_found,
    bundles_that_pass_for_others_are_found,
    a_session_is_added_once_and_as_a_whole,
    any_edited_figure_is_found
];

/// A bundle of a short `quick`.
const STORED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/bundle");

/// A run of the stored bundle.
pub(crate) fn stored_run(number: usize) -> Value {
    let text = fs::read_to_string(Path::new(STORED).join("runs.jsonl")).unwrap();
    serde_json::from_str(text.lines().nth(number).unwrap()).unwrap()
}

/// A copy of the stored bundle, with summary and reports.
pub(crate) fn copy() -> tempfile::TempDir {
    let stored = Path::new(STORED);
    let directory = tempfile::tempdir().unwrap();
    for name in ["bundle.json", "runs.jsonl"] {
        fs::copy(stored.join(name), directory.path().join(name)).unwrap();
    }
    rerender(directory.path()).unwrap();
    let found = verify(directory.path()).unwrap();
    assert!(found.holds() && found.notes.is_empty(), "{found}");
    directory
}

/// Rewrites the manifest for the files as they are now.
fn seal(directory: &Path) {
    let sums = Command::new("sha256sum")
        .args(["bundle.json", "runs.jsonl", "report.md", "report.html"])
        .current_dir(directory)
        .output()
        .unwrap();
    assert!(sums.status.success());
    fs::write(directory.join("manifest.sha256"), sums.stdout).unwrap();
}

/// What is found once a file has this content and the manifest matches; the file is restored.
fn problems_with(directory: &Path, name: &str, content: &str) -> Vec<String> {
    let path = directory.join(name);
    let before = fs::read_to_string(&path).unwrap();
    assert_ne!(before, content, "nothing was edited");
    fs::write(&path, content).unwrap();
    seal(directory);
    let problems = match verify(directory) {
        Ok(found) => found.problems,
        // What can no longer be read is found as well.
        Err(error) => vec![error.to_string()],
    };
    fs::write(&path, before).unwrap();
    seal(directory);
    problems
}

/// The paths of all leaves of a tree.
fn leaves(value: &Value) -> Vec<String> {
    let below = |key: &str, value: &Value| {
        let key = key.replace('~', "~0").replace('/', "~1");
        leaves(value).into_iter().map(move |rest| format!("/{key}{rest}")).collect::<Vec<_>>()
    };
    match value {
        Value::Object(fields) => fields.iter().flat_map(|(key, value)| below(key, value)).collect(),
        Value::Array(items) => {
            let items = items.iter().enumerate();
            items.flat_map(|(index, value)| below(&index.to_string(), value)).collect()
        }
        _ => vec![String::new()],
    }
}

/// Makes a leaf another one of its kind.
fn edit(leaf: &mut Value) {
    *leaf = match &*leaf {
        Value::Null => json!(1),
        Value::Bool(it) => json!(!*it),
        Value::Number(it) => match (it.as_u64(), it.as_f64()) {
            (Some(whole), _) => json!(whole + 1),
            (None, Some(number)) => json!(number * 1.01 + 1e-6),
            (None, None) => json!(0),
        },
        Value::String(it) => json!(format!("{it}x")),
        Value::Array(_) | Value::Object(_) => Value::Null,
    };
}

/// The raw data, with one line of them changed.
fn with_line(text: &str, number: usize, change: impl FnOnce(&mut Value)) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let mut run: Value = serde_json::from_str(&lines[number]).unwrap();
    change(&mut run);
    lines[number] = run.to_string();
    lines.join("\n") + "\n"
}

/// Runs of the stored bundle that count: of TCP, UDP and HTTP.
const TCP: usize = 6;
pub(crate) const UDP: usize = 10;
pub(crate) const HTTP: usize = 13;

fn edited_raw_data_are_found_by_what_follows_from_them() {
    let directory = copy();
    let text = fs::read_to_string(directory.path().join("runs.jsonl")).unwrap();
    let mut not_found = Vec::new();
    for (number, path) in [
        (TCP, "/loads/0/requests/answered"),
        (TCP, "/loads/0/whole_run/sent"),
        (TCP, "/loads/0/window/seconds"),
        (TCP, "/loads/0/latency_us/p99"),
        (TCP, "/loads/0/histogram/data"),
        (TCP, "/loads/0/errors/mismatch"),
        (TCP, "/cpu/window_s"),
        (TCP, "/cpu/server_cpu/busy_s"),
        (TCP, "/cpu/client_cpu/busy_s"),
        (TCP, "/cpu/server_cpu/cpu"),
        (TCP, "/cpu/server/cpu_s"),
        (TCP, "/cpu/server/user_s"),
        (TCP, "/cpu/server/voluntary_switches"),
        (TCP, "/server_final/runtime_counters/syscalls"),
        (TCP, "/subject"),
        (TCP, "/index"),
        (TCP, "/block"),
        (TCP, "/cell/connections"),
        (UDP, "/loads/0/packets/lost"),
        (UDP, "/loads/0/packets/received"),
        (UDP, "/loads/0/histograms/round_trip/data"),
        (UDP, "/loads/0/histograms/send_lateness/data"),
        (UDP, "/cell/streams"),
        (HTTP, "/loads/0/requests/answered"),
        (HTTP, "/loads/0/bytes/bodies"),
        (HTTP, "/cell/tls"),
    ] {
        let edited = with_line(&text, number, |run| {
            let leaf = run.pointer_mut(path);
            match leaf.unwrap_or_else(|| panic!("run {number} has no {path}")) {
                // Of the many by a little, or audits and tolerances of 0.5 % forgive it.
                Value::Number(it) if it.as_u64().is_some_and(|it| it > 100) => {
                    let whole = it.as_u64().unwrap();
                    *run.pointer_mut(path).unwrap() = json!(whole + whole / 50);
                }
                leaf if path.ends_with("latency_us/p99") => {
                    *leaf = json!(leaf.as_f64().unwrap() * 1.1);
                }
                // A histogram without its end is none.
                Value::String(data) if path.ends_with("/data") => {
                    data.truncate(data.len() / 2);
                }
                leaf => edit(leaf),
            }
        });
        if problems_with(directory.path(), "runs.jsonl", &edited).is_empty() {
            not_found.push(format!("run {number}: {path}"));
        }
    }
    assert!(not_found.is_empty(), "edited, and nothing was found: {not_found:?}");
    assert!(verify(directory.path()).unwrap().holds());
}

fn runs_left_out_doubled_swapped_or_renamed_are_found() {
    let directory = copy();
    let text = fs::read_to_string(directory.path().join("runs.jsonl")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let renumbered = |lines: &[&str]| -> String {
        let renumber = |(index, line): (usize, &&str)| {
            let mut run: Value = serde_json::from_str(line).unwrap();
            run["index"] = json!(index);
            format!("{run}\n")
        };
        lines.iter().enumerate().map(renumber).collect()
    };
    let without = |number: usize| {
        let mut left = lines.clone();
        left.remove(number);
        left
    };
    let mut swapped = lines.clone();
    swapped.swap(TCP, TCP + 1);
    let doubled = [&lines[..], &lines[TCP..=TCP]].concat();
    for (what, edited) in [
        ("left out", without(TCP).join("\n") + "\n"),
        ("left out and renumbered", renumbered(&without(TCP))),
        ("doubled", renumbered(&doubled)),
        ("swapped", swapped.join("\n") + "\n"),
        ("cut off", lines[..TCP].join("\n") + "\n"),
        ("all gone", String::new()),
    ] {
        let found = problems_with(directory.path(), "runs.jsonl", &edited);
        assert!(!found.is_empty(), "{what}");
    }
    let renamed = text.replace("\"subject\":\"epoll\"", "\"subject\":\"x\"");
    assert!(!problems_with(directory.path(), "runs.jsonl", &renamed).is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    fn any_edited_figure_is_found(pick: prop::sample::Index) {
        let directory = copy();
        let text = fs::read_to_string(directory.path().join("bundle.json")).unwrap();
        let mut bundle: Value = serde_json::from_str(&text).unwrap();
        let paths = leaves(&bundle["summary"]);
        let path = format!("/summary{}", pick.get(&paths));
        edit(bundle.pointer_mut(&path).unwrap());
        let edited = serde_json::to_string_pretty(&bundle).unwrap();
        let found = problems_with(directory.path(), "bundle.json", &edited);
        let is_found =
            found.iter().any(|it| it.contains("raw data give") || it.contains("not a bundle"));
        prop_assert!(is_found, "{}: {:?}", path, found);
    }
}

/// Less is looked at in a bundle that is old, or not finished: one that is neither must not pass for it.
fn bundles_that_pass_for_others_are_found() {
    let directory = copy();
    let path = directory.path();
    let text = fs::read_to_string(path.join("bundle.json")).unwrap();
    let edited = |change: &dyn Fn(&mut Value)| {
        let mut bundle: Value = serde_json::from_str(&text).unwrap();
        change(&mut bundle);
        fs::write(path.join("report.md"), "epoll is twice as fast").unwrap();
        let problems = problems_with(path, "bundle.json", &bundle.to_string());
        rerender(path).unwrap();
        problems
    };
    let older = edited(&|it| it["schema"] = json!("twinring.lab.bundle/3"));
    assert!(older.iter().any(|it| it.contains("its schema is")), "{older:?}");
    let unfinished = edited(&|it| {
        it["state"] = json!({"is": "running"});
        it["summary"] = Value::Null;
    });
    assert!(unfinished.iter().any(|it| it.contains("no summary")), "{unfinished:?}");
}

/// One session that was merged with itself counted three times, and was told as the machine's.
fn a_session_is_added_once_and_as_a_whole() {
    let (first, second, out) = (copy(), copy(), tempfile::tempdir().unwrap());
    let (first, second) = (first.path(), second.path());
    let error = merge(&out.path().join("twice"), &[first, second]).unwrap_err();
    assert!(error.to_string().contains("would count twice"), "{error}");
    let path = second.join("bundle.json");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replacen("T06:30:", "T06:35:", 1)).unwrap();
    let merged = merge(&out.path().join("merged"), &[first, second]).unwrap();
    assert!(verify(&out.path().join("merged")).unwrap().holds());
    assert!(first_page(&merged, "b").contains("sessions only 5 min apart"));
    // The page of two machines named one of them.
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replacen("\"cpus_online\": ", "\"cpus_online\": 9", 1)).unwrap();
    let of_two = merge(&out.path().join("of two"), &[first, second]).unwrap();
    assert!(first_page(&of_two, "b").contains("the first of 2 machines"));
    fs::write(&path, text).unwrap();
    // Of a bundle that was added to on a full disk only the raw data were replaced.
    let before = fs::read(first.join("runs.jsonl")).unwrap();
    fs::create_dir(first.join("report.html.draft")).unwrap();
    add(first, second).unwrap_err();
    assert!(fs::read(first.join("runs.jsonl")).unwrap() == before && second.exists());
    fs::remove_dir(first.join("report.html.draft")).unwrap();
    assert_eq!(add(first, second).unwrap().occasions.len(), 2);
    assert!(verify(first).unwrap().holds() && !second.exists());
}
