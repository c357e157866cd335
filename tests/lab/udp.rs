//! UDP from one end to the other: our own reflector, simulator and lab together.

use crate::support::Measured;
use serde_json::Value;
use testing::{Test, tests};

pub(crate) const TESTS: &[Test] = tests![
    streams_run_both_sides_on_the_subjects_engine,
    one_socket_is_measured_with_pending_receives_and_segmentation_offload,
    a_foreign_reflector_goes_through_the_same_door
];

/// With a short pair of every subject.
fn measured(arguments: &[&str]) -> Measured {
    Measured::take(arguments, "0.6")
}

/// What the lab relies on, in the words of the load generator.
fn assert_sound(run: &Value) {
    let load = &run["loads"][0];
    assert_eq!(load["schema"], "twinring.load.udp/1", "{run}");
    let packets = |name: &str| load["packets"][name].as_u64().unwrap();
    assert_eq!(packets("due"), packets("sent") + packets("unsent") + packets("refused"));
    assert_eq!(packets("sent"), packets("received") + packets("lost"));
    assert!(packets("received") > 0, "{run}");
    assert_eq!(run["failures"], serde_json::json!([]), "{run}");
    // Calls were timed if they were to be.
    assert!(load["calls"].as_array().is_none_or(|calls| !calls.is_empty()), "{run}");
}

fn streams_run_both_sides_on_the_subjects_engine() {
    testing::needs_io_uring();
    let Measured { said, runs, .. } = &measured(&["udp-streams", "--set", "streams=50,100"]);
    assert!(said.contains("UDP 172 B x 50") && said.contains("UDP 172 B x 100"), "{said}");
    assert!(runs.len() >= 4, "{said}");
    for run in runs {
        assert_sound(run);
        assert_eq!(run["ready"]["engine"], run["subject"], "{run}");
        assert_eq!(run["loads"][0]["engine"], run["subject"], "{run}");
    }
}

fn one_socket_is_measured_with_pending_receives_and_segmentation_offload() {
    testing::needs_io_uring();
    let experiment = "published-asyncudp";
    let subjects = twinring_lab::Experiment::find(experiment).unwrap().subjects.len();
    let Measured { said, runs, bundle, .. } =
        &measured(&[experiment, "--set", "packets_per_s=2000"]);
    assert!(runs.len() >= subjects, "{said}");
    let report = std::fs::read_to_string(bundle.join("report.md")).unwrap();
    assert!(report.contains("AsyncUdpTests"), "{report}");
    runs.iter().for_each(assert_sound);
    let settings = |run: &Value| run["loads"][0]["settings"].clone();
    for pending in [200, 1000, 2000, 4000] {
        assert!(runs.iter().any(|run| settings(run)["pending"] == pending), "no {pending}: {said}");
    }
    for gso in [true, false] {
        assert!(runs.iter().any(|run| settings(run)["gso"] == gso), "{said}");
    }
}

fn a_foreign_reflector_goes_through_the_same_door() {
    let twinring = env!("CARGO_BIN_EXE_twinring");
    // Without --json it says nothing that the lab reads: its port is all that can be seen.
    let foreign =
        format!("foreign='{twinring}' serve udp --listen {{addr}} --allow any --engine epoll");
    let arguments =
        ["udp-streams", "--set", "streams=20", "--subject", "ours=epoll", "--subject", &foreign];
    let Measured { said, runs, .. } = &measured(&arguments);
    let run = runs.iter().find(|run| run["subject"] == "foreign").expect("it ran");
    assert_sound(run);
    assert!(run["ready"].is_null() && said.contains("foreign"), "{said}");
}
