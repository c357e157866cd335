//! UDP from one end to the other: our own reflector, simulator and lab together.

use crate::tried;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

fn lab(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_twinring"));
    command.arg("lab").args(arguments).output().unwrap()
}

/// Runs one short pair, again if of so many subjects one was never run, or nothing came back or was timed in a
/// run; returns what was said and the bundle.
fn run(arguments: &[&str], subjects: usize) -> (TempDir, String, PathBuf) {
    let attempt = || {
        let out = tempfile::tempdir().unwrap();
        let (said, bundle) = run_into(out.path(), arguments);
        (out, said, bundle)
    };
    tried(attempt, |(_, _, bundle)| {
        let runs = runs(bundle);
        let names: BTreeSet<&str> = runs.iter().filter_map(|run| run["subject"].as_str()).collect();
        names.len() == subjects && runs.iter().all(|run| is_answered(run) || is_disturbed(run))
    })
}

fn run_into(out: &Path, arguments: &[&str]) -> (String, PathBuf) {
    let short = ["--pairs", "1", "--spares", "0", "--window", "0.4", "--warmup", "0.2", "--out"];
    let output = lab(&[&["run"], arguments, &short, &[out.to_str().unwrap()]].concat());
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    let mut bundles = std::fs::read_dir(out).unwrap().map(|entry| entry.unwrap().path());
    (said, bundles.next().expect("a bundle was written"))
}

/// Every run of the bundle, and that the bundle holds.
fn runs(bundle: &Path) -> Vec<Value> {
    let verified = lab(&["verify", bundle.to_str().unwrap()]);
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stdout));
    let text = std::fs::read_to_string(bundle.join("runs.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What the lab relies on, in the words of the load generator.
fn assert_sound(run: &Value) {
    let load = &run["load"];
    assert_eq!(load["schema"], "twinring.load.udp/1", "{run}");
    let packets = |name: &str| load["packets"][name].as_u64().unwrap();
    assert_eq!(packets("due"), packets("sent") + packets("unsent") + packets("refused"));
    assert_eq!(packets("sent"), packets("received") + packets("lost"));
    if is_disturbed(run) {
        return println!("other processes took the CPUs of run {}", run["index"]);
    }
    assert!(is_answered(run), "{run}");
}

/// Packets came back, and calls were timed if they were to be.
fn is_answered(run: &Value) -> bool {
    let load = &run["load"];
    load["packets"]["received"].as_u64() > Some(0)
        && run["failures"] == serde_json::json!([])
        && load["calls"].as_array().is_none_or(|calls| !calls.is_empty())
}

/// Others used the CPUs for a tenth of the run: then nothing may have come back in its short window.
fn is_disturbed(run: &Value) -> bool {
    let others = |name: &str| run["others"][name].as_f64().unwrap_or_default();
    others("cpu_s") > 0.1 * others("span_s")
}

#[test]
fn streams_run_both_sides_on_the_subjects_engine() {
    let (_out, said, bundle) = run(&["udp-streams", "--streams", "50,100"], 2);
    assert!(said.contains("50 streams x 50/s x 172 B"), "{said}");
    assert!(said.contains("100 streams x 50/s x 172 B"), "{said}");
    assert!(!said.contains("bad result") && !said.contains("unaccounted"), "{said}");
    let runs = runs(&bundle);
    assert!(runs.len() >= 4, "{said}");
    for run in &runs {
        assert_sound(run);
        assert_eq!(run["ready"]["engine"], run["subject"], "{run}");
        assert_eq!(run["load"]["engine"], run["subject"], "{run}");
    }
}

#[test]
fn one_socket_is_measured_with_pending_receives_and_published_figures_beside() {
    let subjects = twinring_lab::Experiment::find("udp-single").unwrap().subjects.len();
    let (_out, said, bundle) = run(&["udp-single", "--pps", "2000"], subjects);
    let report = std::fs::read_to_string(bundle.join("report.md")).unwrap();
    for published in ["AsyncUdpTests", "110.0 %", "81.7 %", "113.4 %", "110.6 %", "72.0 %"] {
        assert!(report.contains(published), "{published}: {report}");
    }
    let runs = runs(&bundle);
    runs.iter().for_each(assert_sound);
    for pending in [200, 1000, 2000, 4000] {
        let is_it = |run: &&Value| run["load"]["settings"]["pending"] == pending;
        let run = runs.iter().find(is_it).unwrap_or_else(|| panic!("no {pending}: {said}"));
        assert!(run["load"]["calls"].is_array(), "{run}");
        assert!(is_answered(run) || is_disturbed(run), "{run}");
    }
}

#[test]
fn bulk_is_measured_with_and_without_segmentation_offload() {
    let (_out, said, bundle) = run(&["udp-bulk", "--pps", "5000", "--sizes", "1200"], 4);
    assert!(said.contains("1 stream x 5000/s x 1200 B"), "{said}");
    let runs = runs(&bundle);
    runs.iter().for_each(assert_sound);
    for gso in [true, false] {
        assert!(runs.iter().any(|run| run["load"]["settings"]["gso"] == gso), "{said}");
    }
}

#[test]
fn a_foreign_reflector_goes_through_the_same_door() {
    let twinring = env!("CARGO_BIN_EXE_twinring");
    // Without --json it says nothing that the lab reads: its port is all that can be seen.
    let foreign =
        format!("foreign={twinring} serve udp --listen {{addr}} --allow any --engine epoll");
    let arguments =
        ["udp-streams", "--streams", "20", "--subject", "ours=epoll", "--subject", &foreign];
    let (_out, said, bundle) = run(&arguments, 2);
    let runs = runs(&bundle);
    let run = runs.iter().find(|run| run["subject"] == "foreign").expect("it ran");
    assert_sound(run);
    assert!(run["ready"].is_null() && said.contains("foreign"), "{said}");
}
