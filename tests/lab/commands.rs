//! The commands as people and workflows call them: `quick`, `compare`, `lab diff`, `lab verify`.

use crate::measured::{bundle_in, twinring};
use crate::support::*;

pub(crate) const TESTS: &[Test] = tests![
    wrong_words_are_bad_arguments_before_anything_runs,
    quick_measures_both_engines_and_its_bundle_holds_until_it_is_edited,
    diffs_have_options_and_exit_codes,
    the_example_workflow_runs
];

fn wrong_words_are_bad_arguments_before_anything_runs() {
    for (arguments, expected) in [
        (&["lab", "run", "no-such-experiment"][..], "no-such-experiment"),
        (&["lab", "run", "quick", "--net", "carrier-pigeon"], "carrier-pigeon"),
        (&["lab", "run", "quick", "--subject", "nameless"], "nameless"),
        (&["lab", "run", "quick", "--protocol", "sctp"], "sctp"),
        (&["lab", "run", "udp-streams", "--set", "connections=10"], "connections"),
        (&["lab", "run", "scaling", "--net", "napi"], "several workers on napi"),
        (&["advise", "echo", "-c", "0"], "connections"),
        (&["advise", "gopher"], "gopher"),
        (&["advise", "echo", "--rate", "12KB"], "12KB"),
        (&["compare", "echo", "nobody", "epoll"], "nobody"),
        (&["compare", "echo", "mine=./a"], "{addr}"),
        // The message was about an option that nobody had given.
        (&["compare", "echo", "nginx"], "not all of them speak tcp"),
        (&["lab", "run", "--add", "b", "--server-cpu", "0"], "cannot be used with"),
        (&["compare", "--load", "120%"], "25%"),
        (&["compare", "--fail-if", "speed > 3%"], "server_cpu_ns"),
        // That it cannot be judged was said after a minute.
        (&["compare", "--fail-if", "server_user > 3%"], "one of both_cpus_ns"),
    ] {
        let (code, said) = twinring(arguments);
        assert_eq!(code, Some(2), "{arguments:?}: {said}");
        assert!(said.contains(expected), "{arguments:?}: {said}");
    }
    assert!(twinring(&["lab", "show", "quick"]).1.contains("[[subjects]]"));
    let (_, listed) = twinring(&["lab", "list"]);
    for name in ["quick", "grid", "udp-streams", "http", "published-nginx"] {
        assert!(listed.contains(name), "{name}");
    }
}

/// With the machine's prices and both engines, over all protocols.
fn quick_measures_both_engines_and_its_bundle_holds_until_it_is_edited() {
    testing::needs_cpus(2);
    testing::needs_io_uring();
    let out = tempfile::tempdir().unwrap();
    let quick = "lab run quick --busy --pairs 1 --spares 0 --window 0.3 --warmup 0.1 --out";
    let into = out.path().to_str().unwrap();
    let (_, table) = twinring(&quick.split(' ').chain([into]).collect::<Vec<_>>());
    for words in ["TCP 128 B x 100", "TCP 16 KB x 100", "UDP 172 B x 1000", "HTTP 1 KB x 100"] {
        assert!(table.contains(words), "{words}: {table}");
    }
    assert!(table.contains("io_uring") && table.contains("epoll"), "{table}");
    // One pair never gives a verdict; on a busy machine not even the pair may count.
    assert!(!table.contains("less CPU"), "{table}");
    let bundle = bundle_in(out.path());
    for file in ["bundle.json", "runs.jsonl", "report.md", "report.html"] {
        assert!(bundle.join(file).exists(), "{file} is missing: {table}");
    }
    let path = bundle.join("runs.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let edited = text.replacen("\"answered\":", "\"answered\":1", 1);
    assert_ne!(text, edited);
    fs::write(&path, edited).unwrap();
    let (code, said) = twinring(&["lab", "verify", bundle.to_str().unwrap()]);
    assert_eq!(code, Some(1), "{said}");
}

fn diffs_have_options_and_exit_codes() {
    let stored = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/lab/tests/data/bundle");
    let copy = tempfile::tempdir().unwrap();
    for name in ["bundle.json", "runs.jsonl"] {
        fs::copy(stored.join(name), copy.path().join(name)).unwrap();
    }
    let bundle = copy.path().to_str().unwrap();
    assert_eq!(twinring(&["lab", "report", bundle]).0, Some(0));
    for (options, code, words) in [
        (&[][..], 0, ""),
        (&["--json"], 0, "twinring.lab.diff/2"),
        // Two runs of each are too few to judge.
        (&["--markdown", "--fail-if", "server_cpu > 3%"], 1, "cannot be judged"),
        (&["--fail-if", "server_cpu > x%"], 2, "expected FIGURE"),
        (&["--fail-if", "speed > 3%"], 2, "is not a figure"),
        (&["--json", "--markdown"], 2, "cannot be used with"),
    ] {
        let (found, said) = twinring(&[&["lab", "diff", bundle, bundle], options].concat());
        assert_eq!(found, Some(code), "{options:?}: {said}");
        assert!(said.contains(words), "{options:?}: {said}");
    }
}

/// The workflow's own commands, with shorter runs.
fn the_example_workflow_runs() {
    let workflow = include_str!("../../docs/examples/compare.yml");
    let line =
        workflow.lines().map(str::trim).find(|line| line.contains("bin/new compare")).unwrap();
    let place = tempfile::tempdir().unwrap();
    fs::create_dir(place.path().join("bin")).unwrap();
    for build in ["bin/old", "bin/new"] {
        std::os::unix::fs::symlink(TWINRING, place.path().join(build)).unwrap();
    }
    let command = line
        .trim_start_matches("run: ")
        .replace("sudo ", "")
        .replace("--pairs 12", "--pairs 1 --net lo --load max")
        .replace("\"$GITHUB_STEP_SUMMARY\"", "summary.md");
    let output =
        Command::new("sh").args(["-c", &command]).current_dir(place.path()).output().unwrap();
    // One pair cannot be judged.
    assert_eq!(output.status.code(), Some(1), "{command}: {output:?}");
    let summary = fs::read_to_string(place.path().join("summary.md")).unwrap();
    assert!(summary.contains("cannot be judged") && summary.contains("new's CPU"), "{summary}");
}
