//! Bundles and experiments from elsewhere, whose files are not what they pass for: nobody waits for a
//! FIFO, reads a device to its end or prints what is in them at length.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use nix::sys::stat::Mode;
use twinring_lab::{Experiment, LabError, add_to, diff, rerender, verify};

use crate::tampering::copy;
use testing::{Test, tests};

pub(crate) const TESTS: &[Test] = tests![
    files_of_a_bundle_that_are_no_files_are_refused_at_once,
    files_of_a_bundle_are_read_up_to_a_bound,
    reports_are_written_beside_what_lies_in_their_way,
    of_a_failure_a_few_lines_are_printed,
    what_is_not_a_bundle_is_refused,
    an_experiment_is_a_file_of_bounded_size
];

const FILES: [&str; 5] =
    ["bundle.json", "runs.jsonl", "report.md", "report.html", "manifest.sha256"];

fn fifo(path: &Path) {
    nix::unistd::mkfifo(path, Mode::S_IRWXU).unwrap();
}

/// What is wrong with a bundle, as `twinring lab verify` says it.
fn told(directory: &Path) -> String {
    match verify(directory) {
        Ok(found) => {
            assert!(!found.holds(), "{found}");
            found.problems.join("\n")
        }
        Err(error) => error.to_string(),
    }
}

/// `lab verify` waited for a writer of a FIFO, and read /dev/zero until the memory was full.
fn files_of_a_bundle_that_are_no_files_are_refused_at_once() {
    for name in FILES {
        for kind in ["a FIFO", "a device"] {
            let bundle = copy();
            let path = bundle.path().join(name);
            fs::remove_file(&path).unwrap();
            match kind {
                "a FIFO" => fifo(&path),
                _ => symlink("/dev/zero", &path).unwrap(),
            }
            let said = told(bundle.path());
            assert!(said.contains(name) && said.contains(&format!("is {kind}")), "{name}: {said}");
            assert!(diff(bundle.path(), bundle.path(), &[], false).is_err());
        }
    }
}

fn files_of_a_bundle_are_read_up_to_a_bound() {
    for (name, bytes) in FILES.map(|name| (name, 1_u64 << 40)) {
        let bundle = copy();
        let file = fs::OpenOptions::new().append(true).open(bundle.path().join(name)).unwrap();
        // A hole: it takes no space.
        file.set_len(bytes).unwrap();
        let said = told(bundle.path());
        assert!(said.contains(name) && said.contains("most"), "{name}: {said}");
    }
}

/// `lab report` waited for a reader of a FIFO, and wrote through a link.
fn reports_are_written_beside_what_lies_in_their_way() {
    let bundle = copy();
    let elsewhere = bundle.path().join("elsewhere");
    fs::write(&elsewhere, "kept").unwrap();
    fifo(&bundle.path().join("report.md.draft"));
    symlink(&elsewhere, bundle.path().join("bundle.json.draft")).unwrap();
    rerender(bundle.path()).unwrap();
    assert!(verify(bundle.path()).unwrap().holds());
    assert_eq!(fs::read_to_string(elsewhere).unwrap(), "kept");
}

/// One figure was printed with tens of kilobytes.
fn of_a_failure_a_few_lines_are_printed() {
    let bundle = copy();
    let path = bundle.path().join("bundle.json");
    let text = fs::read_to_string(&path).unwrap();
    for (from, to) in [
        ("\"load_mode\": \"", format!("\"load_mode\": \"{}", "x".repeat(100_000))),
        ("\"kind\": \"", format!("\"kind\": \"{}", "x".repeat(100_000))),
        ("\"schema\": \"", format!("\"schema\": \"{}", "\\u001b[2J".repeat(10_000))),
    ] {
        assert!(text.contains(from), "{from}");
        fs::write(&path, text.replacen(from, &to, 1)).unwrap();
        let said = told(bundle.path());
        assert!(said.len() < 4000 && said.contains("more characters"), "{} bytes", said.len());
        assert!(!said.contains('\u{1b}'), "{said}");
    }
}

fn what_is_not_a_bundle_is_refused() {
    let out = tempfile::tempdir().unwrap();
    // The directory is named as it was given.
    let absent = out.path().join("absent");
    for (place, why) in [(out.path(), "has no bundle.json"), (&*absent, "no such directory")] {
        for error in [verify(place).unwrap_err(), add_to(place).unwrap_err()] {
            let LabError::NotABundle { path, .. } = &error else { panic!("{error}") };
            assert!(*path == place && error.to_string().contains(why), "{error}");
        }
    }
    fs::write(out.path().join("bundle.json"), "{\"schema\":\"other/1\"}").unwrap();
    let error = verify(out.path()).unwrap_err();
    assert!(error.to_string().contains("other/1"), "{error}");
}

fn an_experiment_is_a_file_of_bounded_size() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("experiment.toml");
    fifo(&path);
    for (path, expected) in [
        (path.to_str().unwrap(), "is a FIFO"),
        ("/dev/zero", "is a device"),
        (directory.path().to_str().unwrap(), "is a directory"),
    ] {
        let error = Experiment::find(path).unwrap_err();
        assert!(matches!(error, LabError::Read { .. }), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
    let large = directory.path().join("large.toml");
    fs::File::create(&large).unwrap().set_len(1 << 40).unwrap();
    let error = Experiment::find(large.to_str().unwrap()).unwrap_err();
    assert!(error.to_string().contains("larger than 1048576 bytes"), "{error}");
}
