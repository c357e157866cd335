//! HTTP and UDP from one end to the other: our own servers, load generators and lab together.

use crate::measured::Measured;
use crate::support::*;

pub(crate) const TESTS: &[Test] = tests![
    http_in_all_its_ways_is_measured_on_both_engines,
    streams_run_both_sides_on_the_subjects_engine,
    one_socket_is_measured_with_pending_receives_and_segmentation_offload,
    a_foreign_reflector_goes_through_the_same_door
];

/// What the lab relies on, in the words of the load generator: everything is accounted for and as
/// long as the file. Others on the machine may slow a run down, but spoil no answer.
fn assert_http_is_sound(run: &Value) {
    let load = &run["loads"][0];
    assert_eq!(load["schema"], "twinring.load.http/1", "{run}");
    let whole = |name: &str| load["whole_run"][name].as_u64().unwrap();
    assert_eq!(whole("failed"), 0, "{run}");
    let answered = load["requests"]["answered"].as_u64().unwrap();
    let file_bytes = run["cell"]["file_bytes"].as_u64().unwrap();
    assert_eq!(load["bytes"]["bodies"].as_u64(), Some(answered * file_bytes), "{run}");
    assert!(answered > 0 && load["settings"]["verify_body"].is_string(), "{run}");
    assert_eq!(run["failures"], serde_json::json!([]), "{run}");
    let requests = run["server_final"]["service_counters"]["requests"].as_u64().unwrap();
    // Answers that did not come within a second are not waited for.
    let most = whole("answered") + whole("abandoned");
    assert!((whole("answered")..=most).contains(&requests), "{run}");
}

fn http_in_all_its_ways_is_measured_on_both_engines() {
    testing::needs_io_uring();
    for axes in [
        &["tls=false", "bytes=512,102400"][..],
        &["tls=false", "keepalive=false", "bytes=512", "rate_per_s=500"],
        &["tls=false", "files=10000", "bytes=512", "rate_per_s=500"],
        &["tls=true", "bytes=512", "rate_per_s=500"],
        &["tls=true", "http2=true", "depth=8", "bytes=512", "rate_per_s=500"],
    ] {
        let axes = ["load_percent=0", "connections=10"].iter().chain(axes);
        let axes: Vec<&str> = axes.flat_map(|it| ["--set", it]).collect();
        let subjects = ["http", "--subject", "epoll", "--subject", "io_uring"];
        let Measured { said, runs, .. } = Measured::take(&[&subjects[..], &axes].concat(), "0.6");
        assert!(said.contains(" 512 B x 10"), "{said}");
        for run in &runs {
            assert_http_is_sound(run);
            assert_eq!(run["ready"]["engine"], run["subject"], "{run}");
            let (settings, cell) = (&run["loads"][0]["settings"], &run["cell"]);
            let is = |key: &str, or: bool| cell.get(key).and_then(Value::as_bool).unwrap_or(or);
            assert_eq!(settings["keepalive"], is("keepalive", true), "{run}");
            assert_eq!(settings["tls"].is_object(), is("tls", false), "{run}");
            assert_eq!(settings["http"] == "2", is("http2", false), "{run}");
            assert_eq!(settings["urls"], cell.get("files").cloned().unwrap_or(1.into()), "{run}");
        }
    }
}

fn assert_udp_is_sound(run: &Value) {
    let load = &run["loads"][0];
    assert_eq!(load["schema"], "twinring.load.udp/1", "{run}");
    assert!(load["packets"]["received"].as_u64() > Some(0), "{run}");
    assert_eq!(run["failures"], serde_json::json!([]), "{run}");
}

fn streams_run_both_sides_on_the_subjects_engine() {
    testing::needs_io_uring();
    let Measured { said, runs, .. } =
        Measured::take(&["udp-streams", "--set", "streams=50,100"], "0.6");
    assert!(said.contains("UDP 172 B x 50") && said.contains("UDP 172 B x 100"), "{said}");
    for run in runs {
        assert_udp_is_sound(&run);
        assert_eq!(run["ready"]["engine"], run["subject"], "{run}");
        assert_eq!(run["loads"][0]["engine"], run["subject"], "{run}");
    }
}

fn one_socket_is_measured_with_pending_receives_and_segmentation_offload() {
    testing::needs_io_uring();
    let experiment = "published-asyncudp";
    let subjects = twinring_lab::Experiment::find(experiment).unwrap().subjects.len();
    let Measured { said, runs, .. } =
        Measured::take(&[experiment, "--set", "packets_per_s=2000"], "0.6");
    assert!(runs.len() >= subjects, "{said}");
    runs.iter().for_each(assert_udp_is_sound);
    let has = |name: &str, value: Value| {
        let is_it = |run: &Value| run["loads"][0]["settings"][name] == value;
        assert!(runs.iter().any(is_it), "no {name} {value}: {said}");
    };
    [200, 1000, 2000, 4000].into_iter().for_each(|pending| has("pending", pending.into()));
    [true, false].into_iter().for_each(|gso| has("gso", gso.into()));
}

fn a_foreign_reflector_goes_through_the_same_door() {
    // Without --json it says nothing that the lab reads: its port is all that can be seen.
    let foreign =
        format!("foreign='{TWINRING}' serve udp --listen {{addr}} --allow any --engine epoll");
    let subjects = ["--subject", "ours=epoll", "--subject", &foreign];
    let Measured { said, runs, .. } =
        Measured::take(&[&["udp-streams", "--set", "streams=20"], &subjects[..]].concat(), "0.6");
    let run = runs.iter().find(|run| run["subject"] == "foreign").expect("it ran");
    assert_udp_is_sound(run);
    assert!(run["ready"].is_null() && said.contains("foreign"), "{said}");
}
