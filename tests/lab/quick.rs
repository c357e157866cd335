//! The main job from one end to the other: our own server, load generator and lab together.

use crate::support::{bundle_in, lab};
use std::path::{Path, PathBuf};
use std::process::Output;
use testing::{Test, tests};

pub(crate) const TESTS: &[Test] = tests![
    quick_measures_both_engines_and_its_bundle_holds_until_it_is_edited,
    no_prices_are_needed,
    wrong_words_are_bad_arguments
];

/// Runs `quick` with few and short pairs into `out`.
fn quick(out: &Path, options: &[&str]) -> (Output, PathBuf) {
    let short =
        ["run", "quick", "--pairs", "1", "--spares", "0", "--window", "0.3", "--warmup", "0.1"];
    let output = lab(&[&short, options, &["--out", out.to_str().unwrap()]].concat());
    let bundle = bundle_in(out);
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(table.contains("io_uring") && table.contains("epoll"), "{output:?}");
    // One pair never gives a verdict; on a busy machine not even the pair may count.
    assert!(!table.contains("less CPU"), "{table}");
    for file in ["bundle.json", "runs.jsonl", "report.md", "report.html"] {
        assert!(bundle.join(file).exists(), "{file} is missing: {output:?}");
    }
    let verified = lab(&["verify", bundle.to_str().unwrap()]);
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stdout));
    (output, bundle)
}

/// With the machine's prices and both engines, over all protocols.
fn quick_measures_both_engines_and_its_bundle_holds_until_it_is_edited() {
    testing::needs_cpus(2);
    testing::needs_io_uring();
    let out = tempfile::tempdir().unwrap();
    let (output, bundle) = quick(out.path(), &[]);
    let table = String::from_utf8_lossy(&output.stdout);
    for work in ["TCP 128 B x 100", "TCP 16 KB x 100", "UDP 172 B x 1000", "HTTP 1 KB x 100"] {
        assert!(table.contains(work), "{work}: {output:?}");
    }
    assert!(table.lines().count() <= 30, "{table}");

    let path = bundle.join("runs.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    let edited = text.replacen("\"answered\":", "\"answered\":1", 1);
    assert_ne!(text, edited);
    std::fs::write(&path, edited).unwrap();
    let verified = lab(&["verify", bundle.to_str().unwrap()]);
    assert_eq!(verified.status.code(), Some(1), "{}", String::from_utf8_lossy(&verified.stdout));
}

fn no_prices_are_needed() {
    testing::needs_io_uring();
    let out = tempfile::tempdir().unwrap();
    let (output, bundle) =
        quick(out.path(), &["--protocol", "tcp", "--set", "bytes=128", "--no-prices"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("TCP 128 B x 100"), "{output:?}");
    let stored = std::fs::read_to_string(bundle.join("bundle.json")).unwrap();
    assert!(stored.contains("they were not to be measured"), "{stored}");
}

fn wrong_words_are_bad_arguments() {
    for arguments in [
        &["run", "no-such-experiment"][..],
        &["run", "quick", "--net", "carrier-pigeon"],
        &["run", "quick", "--subject", "nameless"],
        &["run", "quick", "--protocol", "sctp"],
        &["run", "udp-streams", "--set", "connections=10"],
    ] {
        let output = lab(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        assert!(!output.stderr.is_empty());
    }
    let shown = lab(&["show", "quick"]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("[[subjects]]"));
    let listed = lab(&["list"]);
    for name in ["quick", "grid", "udp-streams", "http", "published-nginx"] {
        assert!(String::from_utf8_lossy(&listed.stdout).contains(name), "{name}");
    }
}
