//! Two bundles against each other: what is found, what cannot be compared, and gates.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::records;
use serde_json::{Value, json};
use twinring_lab::LabError;
use twinring_lab::compare::{
    BundleComparison, FigureChange, Finding, Gate, GateOutcome, Options, SubjectChange, bundles,
};
use twinring_lab::summary::Metric;

/// A path in the crate.
fn own(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// A bundle of these runs in a new directory; `change` may change the rest of it.
fn bundle(runs: &[Value], change: impl FnOnce(&mut Value)) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(own("tests/data/bundle/bundle.json")).unwrap();
    let mut bundle: Value = serde_json::from_str(&text).unwrap();
    bundle["experiment"] = serde_json::to_value(records::experiment()).unwrap();
    bundle["summary"] = Value::Null;
    let blocks =
        runs.iter().filter_map(|run| run["block"].as_u64()).max().map_or(1, |last| last + 1);
    bundle["experiment"]["pairs"] = json!(blocks);
    change(&mut bundle);
    fs::write(directory.path().join("bundle.json"), bundle.to_string()).unwrap();
    let on_its_cpu = |run: &Value| {
        let mut run = run.clone();
        run["cpu"]["server_cpu"]["cpu"] = bundle["cpus"]["server"].clone();
        format!("{run}\n")
    };
    let lines: String = runs.iter().map(on_its_cpu).collect();
    fs::write(directory.path().join("runs.jsonl"), lines).unwrap();
    twinring_lab::rerender(directory.path()).unwrap();
    directory
}

/// Pairs in which epoll needs 1.6 s times `epoll` of CPU and io_uring 1.6 s times `io_uring`.
fn pairs(count: usize, epoll: f64, io_uring: f64) -> Vec<Value> {
    let mut runs = records::pairs(count, 1.0);
    for run in &mut runs {
        let factor = if run["subject"] == "epoll" { epoll } else { io_uring };
        let busy_s = run["cpu"]["server_cpu"]["busy_s"].as_f64().unwrap();
        run["cpu"]["server_cpu"]["busy_s"] = json!(busy_s * factor);
    }
    runs
}

/// A condition by name, and how a bundle gets another one.
type Changed = (&'static str, fn(&mut Value));

fn compare(a: &Path, b: &Path, gates: &[&str]) -> BundleComparison {
    try_compare(a, b, gates).unwrap_or_else(|error| panic!("{error}"))
}

fn try_compare(a: &Path, b: &Path, gates: &[&str]) -> Result<BundleComparison, LabError> {
    let gates = gates.iter().map(|text| text.parse::<Gate>().unwrap()).collect();
    bundles(a, b, &Options { gates, unverified: false })
}

fn figure(changes: &[SubjectChange], subject: &str, figure: Metric) -> FigureChange {
    let change = changes.iter().find(|it| it.subject == subject).unwrap();
    change.figures.iter().find(|it| it.figure == figure).unwrap().clone()
}

fn outcomes(comparison: &BundleComparison) -> Vec<GateOutcome> {
    comparison.gates.iter().map(|gate| gate.outcome).collect()
}

#[test]
fn a_subject_that_needs_more_is_found_and_the_others_are_not() {
    let a = bundle(&pairs(10, 1.0, 0.8), |_| ());
    let b = bundle(&pairs(10, 1.0, 0.84), |_| ());
    let found = compare(a.path(), b.path(), &[]);
    let worse = figure(&found.absolute, "io_uring", Metric::ServerCpuNs).change.unwrap();
    assert_eq!((worse.finding, worse.runs), (Finding::Worse, [10, 10]));
    assert!((worse.percent - 5.0).abs() < 0.01, "{worse:?}");
    assert!(worse.low_percent > 3.0 && worse.high_percent < 7.0, "{worse:?}");
    assert!(worse.p_adjusted >= worse.p_value, "{worse:?}");
    let same = figure(&found.absolute, "epoll", Metric::ServerCpuNs).change.unwrap();
    assert_eq!(same.finding, Finding::NoDifference);
    // The same in the ratio to epoll, which each bundle measured in pairs.
    let ratio = figure(&found.relative, "io_uring", Metric::ServerCpuNs);
    assert!((ratio.a.unwrap() - 0.8).abs() < 0.01 && (ratio.b.unwrap() - 0.84).abs() < 0.01);
    assert_eq!(ratio.change.unwrap().finding, Finding::Worse);
    // Twice better is better, and more throughput is too.
    let found = compare(b.path(), a.path(), &[]);
    let better = figure(&found.absolute, "io_uring", Metric::ServerCpuNs).change.unwrap();
    assert_eq!(better.finding, Finding::Better);
    assert_eq!(found.verdicts[0].changed, Some(false));
    assert_eq!(found.exit_code(), 0);
}

#[test]
fn gates_are_breached_by_proof_or_by_what_cannot_be_excluded() {
    let a = bundle(&pairs(10, 1.0, 0.8), |_| ());
    let b = bundle(&pairs(10, 1.0, 0.84), |_| ());
    for (gate, outcome) in [
        ("server_cpu > 3%", GateOutcome::Breached),
        // Any field of the figures, by its name in the bundle.
        ("server_cpu_ns > 3%", GateOutcome::Breached),
        ("server.busy_ns > 3%", GateOutcome::Breached),
        ("server_switches > 3%", GateOutcome::Held),
        ("server_cpu > 3% of io_uring", GateOutcome::Breached),
        ("server_cpu > 3% of epoll", GateOutcome::Held),
        ("server_cpu > 5%", GateOutcome::Held),
        ("possibly server_cpu > 5%", GateOutcome::Breached),
        ("possibly server_cpu > 20%", GateOutcome::Held),
        ("relative server_cpu > 3%", GateOutcome::Breached),
        ("relative server_cpu > 3% of io_uring in \"100 x 128 B\"", GateOutcome::Breached),
        ("server_cpu > 3% in \"100 x 128 B on rps\"", GateOutcome::Breached),
        ("throughput < -5%", GateOutcome::Held),
        ("verdict changed", GateOutcome::Held),
    ] {
        let found = compare(a.path(), b.path(), &[gate]);
        assert_eq!(outcomes(&found), [outcome], "{gate}: {:?}", found.gates);
        let code = if outcome == GateOutcome::Breached { 3 } else { 0 };
        assert_eq!(found.exit_code(), code, "{gate}");
        // What was judged is said with its figures.
        for it in &found.gates[0].judged {
            assert!(it.why.contains('%') || it.why.contains("ahead"), "{gate}: {}", it.why);
        }
    }
    // The other way round it needs less.
    let found = compare(b.path(), a.path(), &["server_cpu < -3% of io_uring"]);
    assert_eq!(outcomes(&found), [GateOutcome::Breached]);
}

#[test]
fn a_verdict_that_changed_is_a_breach() {
    let a = bundle(&pairs(10, 1.0, 0.8), |_| ());
    let b = bundle(&pairs(10, 1.0, 1.2), |_| ());
    let found = compare(a.path(), b.path(), &["verdict changed", "verdict changed of io_uring"]);
    assert_eq!(outcomes(&found), [GateOutcome::Breached; 2]);
    let why = &found.gates[0].judged[0].why;
    assert_eq!(why, "`io_uring ahead` in A, `epoll ahead` in B");
    assert!(found.table(plain()).contains("gate BREACHED: verdict changed"));
}

fn plain() -> twinring_lab::Style {
    twinring_lab::Style { colour: false }
}

#[test]
fn a_gate_about_nothing_is_an_error_and_says_what_there_is() {
    let a = bundle(&pairs(8, 1.0, 0.8), |_| ());
    for gate in [
        "server_cpu > 3% of nginx",
        "server_cpu > 3% in \"10 x 128 B\"",
        "server_cpu > 3% in \"100 x 128 B on lo\"",
        "relative server_cpu > 3% of epoll",
        "verdict changed of epoll",
    ] {
        let error = try_compare(a.path(), a.path(), &[gate]).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{gate}");
        let said = error.to_string();
        assert!(said.contains("\"io_uring\"") && said.contains("\"100 x 128 B on rps\""), "{said}");
    }
    // Its throughput is given by the schedule.
    let udp = crate::tampering::copy();
    let udp = udp.path();
    let gate = "throughput < -5% in \"10 streams x 50/s x 128 B\"";
    assert_eq!(try_compare(udp, udp, &[gate]).unwrap_err().exit_code(), 2);
}

#[test]
fn a_gate_that_cannot_be_judged_fails_and_says_why() {
    let a = bundle(&pairs(10, 1.0, 0.8), |_| ());
    let judge = |b: &Path, gate: &str| {
        let found = compare(a.path(), b, &[gate]);
        assert_eq!(outcomes(&found), [GateOutcome::Unjudged], "{gate}: {:?}", found.gates);
        assert_eq!(found.exit_code(), 1);
        let unjudged = found.gates[0].judged.iter();
        let unjudged = unjudged.filter(|it| it.outcome == GateOutcome::Unjudged);
        unjudged.map(|it| it.why.clone()).collect::<Vec<_>>().join("\n")
    };
    let few = bundle(&pairs(7, 1.0, 0.8), |_| ());
    let why = judge(few.path(), "server_cpu > 3%");
    assert!(why.contains("B has 7"), "{why}");
    let why = judge(few.path(), "verdict changed");
    assert!(why.contains("B came to no verdict: no verdict: 7 pairs, and 8 are needed"), "{why}");

    let interrupted = bundle(&[], |bundle| {
        bundle["state"] = json!({"is": "interrupted", "signal": 2});
    });
    let why = judge(interrupted.path(), "server_cpu > 3%");
    assert!(why.contains("not measured in B"), "{why}");

    let mut runs = pairs(10, 1.0, 0.8);
    runs[1]["load"]["errors"]["mismatch"] = json!(1);
    let void = bundle(&runs, |_| ());
    let why = judge(void.path(), "server_cpu > 3%");
    assert!(why.contains("io_uring is void (payload mismatch) in B"), "{why}");

    let mut runs = pairs(10, 1.0, 0.8);
    for run in runs.iter_mut().filter(|run| run["subject"] == "io_uring") {
        run["subject"] = json!("new");
    }
    let renamed = bundle(&runs, |bundle| {
        bundle["experiment"]["subjects"][1]["name"] = json!("new");
    });
    let why = judge(renamed.path(), "server_cpu > 3% of io_uring");
    assert!(why.contains("A has it and B has not"), "{why}");
    // One breach is worse than what cannot be judged.
    let both =
        compare(a.path(), void.path(), &["server_cpu > 3%", "possibly server_cpu > 0% of epoll"]);
    assert_eq!((both.exit_code(), both.gates.len()), (3, 2));
}

#[test]
fn another_machine_leaves_only_the_ratios() {
    let a = bundle(&pairs(10, 1.0, 0.8), |_| ());
    let changes: [Changed; 8] = [
        ("processor", |it| it["machine"]["cpu_model"] = json!("another")),
        ("kernel", |it| it["machine"]["kernel"] = json!("another")),
        ("kernel command line", |it| {
            it["machine"]["kernel_command_line"] = json!("mitigations=off")
        }),
        ("virtual machine", |it| it["machine"]["virtualisation"] = Value::Null),
        ("vm.swappiness", |it| it["machine"]["sysctls"]["vm.swappiness"] = json!("1")),
        ("spectre_v2", |it| it["machine"]["mitigations"]["spectre_v2"] = json!("Vulnerable")),
        ("CPU of the server", |it| it["cpus"]["server"] = json!(7)),
        ("receive steering of the server", |it| it["networks"][0]["server_rps"] = json!("0")),
    ];
    for (what, change) in changes {
        let b = bundle(&pairs(10, 1.0, 0.84), change);
        let found = compare(a.path(), b.path(), &["server_cpu > 3%", "relative server_cpu > 3%"]);
        assert_eq!(outcomes(&found), [GateOutcome::Unjudged, GateOutcome::Breached], "{what}");
        let why = figure(&found.absolute, "io_uring", Metric::ServerCpuNs).why_not.unwrap();
        assert!(
            why.contains("not measured under the same conditions") && why.contains(what),
            "{why}"
        );
        assert!(found.table(plain()).contains(what), "{what}");
    }
}

#[test]
fn other_work_leaves_nothing_and_other_cells_only_the_common_ones() {
    let a = bundle(&pairs(10, 1.0, 0.8), |_| ());
    let changes: [Changed; 3] = [
        ("accounting", |it| it["experiment"]["accounting"] = json!("idle_clock_only")),
        ("load generator's command", |it| {
            it["experiment"]["tcp"]["load"].as_array_mut().unwrap().push(json!("--threads=2"));
        }),
        ("CPUs", |it| it["cpus"]["siblings"] = json!(true)),
    ];
    for (what, change) in changes {
        let b = bundle(&pairs(10, 1.0, 0.84), change);
        let gates = ["server_cpu > 3%", "relative server_cpu > 3%", "verdict changed"];
        let found = compare(a.path(), b.path(), &gates);
        assert_eq!(outcomes(&found), [GateOutcome::Unjudged; 3], "{what}");
        assert!(found.gates[1].judged[0].why.contains(what), "{:?}", found.gates[1]);
    }
    let wider = bundle(&pairs(10, 1.0, 0.8), |bundle| {
        bundle["experiment"]["tcp"]["connections"] = json!([100, 500]);
        bundle["state"] = json!({"is": "interrupted", "signal": 2});
        bundle["experiment"]["window_s"] = json!(9.0);
    });
    let found = compare(a.path(), wider.path(), &["server_cpu > 3%"]);
    assert_eq!(found.only_in_b, ["500 x 128 B on rps"]);
    assert_eq!((found.absolute.len(), outcomes(&found)), (2, vec![GateOutcome::Held]));
    assert!(found.notes.iter().any(|note| note.contains("window of tcp")), "{:?}", found.notes);
    let loopback = bundle(&[], |bundle| {
        bundle["networks"][0]["kind"] = json!("lo");
        bundle["state"] = json!({"is": "interrupted", "signal": 2});
    });
    let found = compare(a.path(), loopback.path(), &["server_cpu > 3%"]);
    assert_eq!(outcomes(&found), [GateOutcome::Unjudged]);
    let note = "another network is not comparable";
    assert!(found.notes.iter().any(|it| it.contains(note)), "{:?}", found.notes);
}

/// A subject that crashes everywhere may be taken out of an experiment.
#[test]
fn what_only_the_first_bundle_has_cannot_be_judged() {
    let a = bundle(&pairs(10, 1.0, 0.8), |_| ());
    let mut runs = pairs(10, 1.0, 0.8);
    runs.retain(|run| run["subject"] == "epoll");
    runs.iter_mut().enumerate().for_each(|(index, run)| run["index"] = json!(index));
    let fewer = bundle(&runs, |bundle| {
        bundle["experiment"]["subjects"].as_array_mut().unwrap().truncate(1);
    });
    let wider = bundle(&pairs(10, 1.0, 0.8), |bundle| {
        bundle["experiment"]["tcp"]["connections"] = json!([100, 500]);
        bundle["state"] = json!({"is": "interrupted", "signal": 2});
    });
    let gates = ["server_cpu > 3%", "relative server_cpu > 3%", "verdict changed"];
    for (more, less, subjects) in [
        (&a, &fewer, ["io_uring", "io_uring / epoll", "io_uring / epoll"]),
        (&wider, &a, ["epoll", "io_uring / epoll", "io_uring / epoll"]),
    ] {
        let found = compare(more.path(), less.path(), &gates);
        assert_eq!(outcomes(&found), [GateOutcome::Unjudged; 3], "{:?}", found.gates);
        for (gate, subject) in found.gates.iter().zip(subjects) {
            let gone = gate.judged.iter().find(|it| it.why.contains("A has it and B has not"));
            assert_eq!(gone.map(|it| &*it.subject), Some(subject), "{gate:?}");
        }
        // What only the second has is new.
        let found = compare(less.path(), more.path(), &gates[..1]);
        assert_eq!(outcomes(&found), [GateOutcome::Held], "{:?}", found.gates);
    }
    // That a subject has nobody to be compared with is not about it.
    let found = compare(a.path(), fewer.path(), &["server_cpu > 3% of epoll"]);
    assert_eq!(outcomes(&found), [GateOutcome::Held], "{:?}", found.gates);
}

#[test]
fn runs_are_compared_with_runs_of_the_same_placement() {
    let placed = |mut runs: Vec<Value>, close: usize| {
        for run in &mut runs {
            let is_close = run["block"].as_u64().unwrap() < close as u64;
            let ns = if is_close { 80.0 } else { 300.0 };
            run["distance"] = json!({"before_ns": ns, "after_ns": ns});
            if !is_close {
                let busy_s = run["cpu"]["server_cpu"]["busy_s"].as_f64().unwrap();
                run["cpu"]["server_cpu"]["busy_s"] = json!(busy_s * 1.2);
            }
        }
        bundle(&runs, |_| ())
    };
    // A was close most of the time and B apart: all that makes B dearer.
    let (a, b) = (placed(pairs(12, 1.0, 0.8), 9), placed(pairs(12, 1.0, 0.8), 3));
    let found = compare(a.path(), b.path(), &["server_cpu > 3%"]);
    let same = figure(&found.absolute, "io_uring", Metric::ServerCpuNs);
    assert!(same.b.unwrap() / same.a.unwrap() > 1.05, "{same:?}");
    let change = same.change.unwrap();
    assert!(change.percent.abs() < 0.5 && change.finding == Finding::NoDifference, "{change:?}");
    assert_eq!(outcomes(&found), [GateOutcome::Held]);
    // Never alike: nothing can be said.
    let apart = placed(pairs(12, 1.0, 0.8), 0);
    let close = placed(pairs(12, 1.0, 0.8), 12);
    let found = compare(close.path(), apart.path(), &["server_cpu > 3%"]);
    assert_eq!(outcomes(&found), [GateOutcome::Unjudged]);
    let why = &found.gates[0].judged[0].why;
    assert!(why.contains("A has 12 close, B has 12 apart"), "{why}");
}

#[test]
fn what_the_load_generator_limits_is_not_compared() {
    let a = bundle(&pairs(10, 1.0, 0.8), |_| ());
    let mut runs = pairs(10, 1.0, 0.8);
    for run in &mut runs {
        if run["subject"] == "io_uring" {
            run["cpu"]["client_cpu"]["busy_s"] = json!(1.99);
        }
    }
    let b = bundle(&runs, |_| ());
    let found = compare(a.path(), b.path(), &["throughput < -5%", "server_cpu > 3%"]);
    assert_eq!(outcomes(&found), [GateOutcome::Unjudged, GateOutcome::Held]);
    let why = figure(&found.absolute, "io_uring", Metric::LatencyUsP99).why_not.unwrap();
    assert!(why.contains("client-bound"), "{why}");
    assert!(figure(&found.absolute, "epoll", Metric::LatencyUsP99).change.is_some());
}

#[test]
fn latency_is_not_compared_where_packets_were_lost() {
    let a = bundle(&pairs(10, 1.0, 0.8), |_| ());
    let mut runs = pairs(10, 1.0, 0.8);
    runs[1]["cpu"]["server_cpu"]["counts"] = json!({"tcp_retransmits": 500});
    runs[1]["cpu"]["client_cpu"]["counts"] = json!({"tcp_retransmits": 0});
    let b = bundle(&runs, |_| ());
    let found = compare(a.path(), b.path(), &["p99 > 5%", "server_cpu > 3%"]);
    assert_eq!(outcomes(&found), [GateOutcome::Unjudged, GateOutcome::Held]);
    let why = figure(&found.absolute, "io_uring", Metric::LatencyUsP99).why_not.unwrap();
    assert!(why.contains("packets were lost"), "{why}");
    assert!(figure(&found.absolute, "epoll", Metric::LatencyUsP99).change.is_some());
}

/// Gates of before there was a third network name cells as they were called then.
#[test]
fn gates_know_networks_by_their_old_names() {
    let a = bundle(&pairs(8, 1.0, 0.8), |_| ());
    let found = compare(a.path(), a.path(), &["server_cpu > 3% in \"100 x 128 B on veth\""]);
    assert_eq!(outcomes(&found), [GateOutcome::Held]);
}

#[test]
fn a_bundle_that_does_not_hold_is_refused_unless_it_is_wanted() {
    let a = bundle(&pairs(8, 1.0, 0.8), |_| ());
    let b = bundle(&pairs(8, 1.0, 0.8), |_| ());
    let path = b.path().join("report.md");
    fs::write(&path, "all is well").unwrap();
    let error = try_compare(a.path(), b.path(), &[]).unwrap_err();
    assert!(matches!(&error, LabError::DoesNotHold { .. }), "{error}");
    assert!(error.to_string().contains("report.md was changed") && error.exit_code() == 1);
    let options = Options { gates: Vec::new(), unverified: true };
    assert_eq!(bundles(a.path(), b.path(), &options).unwrap().absolute.len(), 2);
}

#[test]
fn bundles_of_every_version_can_be_compared() {
    let (old, new) = (own("../../docs/measurements/quick"), crate::tampering::copy());
    for (a, b) in [(&*old, &*old), (&*old, new.path()), (new.path(), new.path())] {
        let found = compare(a, b, &[]);
        assert_eq!(found.exit_code(), 0);
        let text = found.table(plain());
        let first = if a == b { "each subject against itself" } else { "nothing is in both" };
        assert!(text.starts_with(first), "{text}");
        let one = found.notes.iter().any(|note| note.contains("they are one experiment"));
        assert_eq!(one, a == b, "{:?}", found.notes);
        // What is not comparable says so, all the rest has figures.
        for it in found.absolute.iter().chain(&found.relative).flat_map(|it| &it.figures) {
            assert!(it.change.is_some() != it.why_not.is_some(), "{it:?}");
        }
    }
}

#[test]
fn the_outcome_comes_first_in_every_form() {
    let a = bundle(&pairs(10, 1.0, 0.8), |_| ());
    let b = bundle(&pairs(10, 1.0, 0.84), |_| ());
    let found = compare(a.path(), b.path(), &["server_cpu > 3% of io_uring"]);
    let table = found.table(plain());
    let first = table.lines().next().unwrap();
    assert_eq!(first, "gate BREACHED: server_cpu > 3% of io_uring");
    assert!(table.contains("2 figures worse") && table.contains("[+4.3, +5.7]"), "{table}");
    let markdown = found.markdown();
    assert!(
        markdown.contains("- **gate BREACHED: server\\_cpu \\> 3% of io\\_uring**"),
        "{markdown}"
    );
    assert!(markdown.contains("| io\\_uring server\\_cpu ns/request |"), "{markdown}");
    let line: Value = serde_json::from_str(&found.json_line().unwrap()).unwrap();
    assert_eq!(
        (&line["event"], &line["schema"]),
        (&json!("result"), &json!("twinring.lab.compare/1"))
    );
    assert_eq!(line["gates"][0]["outcome"], "breached");
    assert_eq!(line["absolute"][0]["figures"][0]["figure"], "server_cpu");
}
