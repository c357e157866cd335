//! UDP from one end to the other: our own reflector, simulator and lab together.

use crate::support::Measured;
use serde_json::Value;

/// With a short pair of every subject.
fn measured(arguments: &[&str]) -> Measured {
    Measured::take(arguments, "0.6")
}

/// What the lab relies on, in the words of the load generator.
fn assert_sound(run: &Value) {
    let load = &run["load"];
    assert_eq!(load["schema"], "twinring.load.udp/1", "{run}");
    let packets = |name: &str| load["packets"][name].as_u64().unwrap();
    assert_eq!(packets("due"), packets("sent") + packets("unsent") + packets("refused"));
    assert_eq!(packets("sent"), packets("received") + packets("lost"));
    assert!(packets("received") > 0, "{run}");
    assert_eq!(run["failures"], serde_json::json!([]), "{run}");
    // Calls were timed if they were to be.
    assert!(load["calls"].as_array().is_none_or(|calls| !calls.is_empty()), "{run}");
}

#[test]
fn streams_run_both_sides_on_the_subjects_engine() {
    let Measured { said, runs, .. } = &measured(&["udp-streams", "--streams", "50,100"]);
    assert!(said.contains("50 streams x 50/s x 172 B"), "{said}");
    assert!(said.contains("100 streams x 50/s x 172 B"), "{said}");
    assert!(!said.contains("bad result") && !said.contains("unaccounted"), "{said}");
    assert!(runs.len() >= 4, "{said}");
    for run in runs {
        assert_sound(run);
        assert_eq!(run["ready"]["engine"], run["subject"], "{run}");
        assert_eq!(run["load"]["engine"], run["subject"], "{run}");
    }
}

#[test]
fn one_socket_is_measured_with_pending_receives_and_published_figures_beside() {
    let subjects = twinring_lab::Experiment::find("udp-single").unwrap().subjects.len();
    let Measured { said, runs, bundle, .. } = &measured(&["udp-single", "--pps", "2000"]);
    assert!(runs.len() >= subjects, "{said}");
    let report = std::fs::read_to_string(bundle.join("report.md")).unwrap();
    for published in ["AsyncUdpTests", "110.0 %", "81.7 %", "113.4 %", "110.6 %", "72.0 %"] {
        assert!(report.contains(published), "{published}: {report}");
    }
    runs.iter().for_each(assert_sound);
    for pending in [200, 1000, 2000, 4000] {
        let is_it = |run: &&Value| run["load"]["settings"]["pending"] == pending;
        let run = runs.iter().find(is_it).unwrap_or_else(|| panic!("no {pending}: {said}"));
        assert!(run["load"]["calls"].is_array(), "{run}");
    }
}

#[test]
fn bulk_is_measured_with_and_without_segmentation_offload() {
    let Measured { said, runs, .. } = &measured(&["udp-bulk", "--pps", "5000", "--sizes", "1200"]);
    assert!(said.contains("1 stream x 5000/s x 1200 B"), "{said}");
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
    let Measured { said, runs, .. } = &measured(&arguments);
    let run = runs.iter().find(|run| run["subject"] == "foreign").expect("it ran");
    assert_sound(run);
    assert!(run["ready"].is_null() && said.contains("foreign"), "{said}");
}
