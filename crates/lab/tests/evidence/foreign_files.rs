//! Bundles and experiments from elsewhere, whose files are not what they pass for: nobody waits for a
//! FIFO, reads a device to its end or prints what is in them at length. And bundles that `zstd` compressed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use nix::sys::stat::Mode;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use twinring_lab::{Experiment, diff, recomputed, rerender, verify};

use crate::tampering::copy;
use testing::{Test, tests};

pub(crate) const TESTS: &[Test] = tests![
    files_of_a_bundle_that_are_no_files_are_refused_at_once,
    files_of_a_bundle_are_read_up_to_a_bound,
    reports_are_written_beside_what_lies_in_their_way,
    of_a_failure_a_few_lines_are_printed,
    what_is_not_a_bundle_is_refused,
    an_experiment_is_a_file_of_bounded_size,
    a_compressed_bundle_is_verified_compared_and_rendered_again,
    damaged_compressed_files_are_refused
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
    // A few kilobytes can decompress to more than there is memory.
    for (name, bytes) in
        [("runs.jsonl", 5 << 20), ("bundle.json", 33 << 20), ("report.html", 33 << 20)]
    {
        let bundle = copy();
        compress(bundle.path(), name, |_| " ".repeat(bytes));
        let size = fs::metadata(bundle.path().join(format!("{name}.zst"))).unwrap().len();
        let said = told(bundle.path());
        assert!(size < 100_000 && said.contains(name) && said.contains("most"), "{name}: {said}");
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
        for error in [verify(place).unwrap_err(), recomputed(place).unwrap_err()] {
            let said = error.to_string();
            assert!(said.starts_with(&format!("{} is not", place.display())), "{said}");
            assert!(said.contains(why), "{said}");
        }
    }
    fs::write(out.path().join("bundle.json"), "{\"schema\":\"other/1\"}").unwrap();
    let error = verify(out.path()).unwrap_err();
    assert!(error.to_string().contains("other/1"), "{error}");
}

fn an_experiment_is_a_file_of_bounded_size() {
    let directory = tempfile::tempdir().unwrap();
    let large = directory.path().join("large.toml");
    fs::File::create(&large).unwrap().set_len(1 << 40).unwrap();
    let large = (large.to_str().unwrap(), "larger than 1048576 bytes");
    for (path, expected) in [large, ("/dev/zero", "is a device")] {
        let error = Experiment::find(path).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}

/// Does what `zstd --rm` does.
fn compress(directory: &Path, name: &str, edit: impl FnOnce(String) -> String) {
    let path = directory.join(name);
    let text = edit(fs::read_to_string(&path).unwrap());
    let packed = compress_to_vec(text.as_bytes(), CompressionLevel::Fastest);
    fs::write(directory.join(format!("{name}.zst")), packed).unwrap();
    fs::remove_file(path).unwrap();
}

const LARGE: [&str; 3] = ["runs.jsonl", "bundle.json", "report.html"];

fn a_compressed_bundle_is_verified_compared_and_rendered_again() {
    let (plain, bundle) = (copy(), copy());
    let bundle = bundle.path();
    let manifest = fs::read(bundle.join("manifest.sha256")).unwrap();
    LARGE.iter().for_each(|name| compress(bundle, name, |text| text));
    let found = verify(bundle).unwrap();
    assert!(found.holds() && found.figures > 10, "{found}");
    diff(plain.path(), bundle, &[], false).unwrap();

    rerender(bundle).unwrap();
    assert_eq!(fs::read(bundle.join("manifest.sha256")).unwrap(), manifest);
    let there = |name: &str| bundle.join(name).exists();
    assert!(there("runs.jsonl.zst") && !there("runs.jsonl"), "raw data stay as they are");
    assert!(there("report.html") && !there("report.html.zst"), "what is new takes the old's place");
    assert!(verify(bundle).unwrap().holds());
}

type Damage = fn(&mut Vec<u8>);

fn damaged_compressed_files_are_refused() {
    let damage: [(&str, Damage); 5] = [
        ("compressed: ", Vec::clear),
        ("compressed: ", |bytes| bytes[0] ^= 1),
        ("something follows", |bytes| bytes.extend_from_within(..)),
        ("checksum", |bytes| *bytes.last_mut().unwrap() ^= 1),
        ("", |bytes| bytes.truncate(bytes.len() / 2)),
    ];
    let bundle = copy();
    compress(bundle.path(), "runs.jsonl", |text| text);
    let path = bundle.path().join("runs.jsonl.zst");
    let whole = fs::read(&path).unwrap();
    for (expected, damage) in damage {
        let mut bytes = whole.clone();
        damage(&mut bytes);
        fs::write(&path, bytes).unwrap();
        let said = told(bundle.path());
        assert!(said.contains("runs.jsonl") && said.contains(expected), "{expected}: {said}");
    }
    fs::write(bundle.path().join("runs.jsonl"), "").unwrap();
    let said = told(bundle.path());
    assert!(said.contains("is there twice, also as runs.jsonl.zst"), "{said}");
}
