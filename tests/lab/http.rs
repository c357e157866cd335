//! HTTP from one end to the other: our own server of files, load generator and lab together.

use crate::support::Measured;
use serde_json::Value;
use testing::{Test, tests};

pub(crate) const TESTS: &[Test] =
    tests![both_engines_serve_files, a_connection_per_request_many_files_and_tls_are_measured];

/// With a short pair of every subject.
fn measured(arguments: &[&str]) -> Measured {
    let both = ["--subject", "epoll", "--subject", "io_uring"];
    Measured::take(&[&["http", "--set", "load_percent=0"], arguments, &both].concat(), "0.6")
}

/// What the lab relies on, in the words of the load generator: everything is accounted for and as
/// long as the file. Others on the machine may slow a run down, but spoil no answer.
fn assert_sound(run: &Value, file_bytes: u64) {
    let load = &run["loads"][0];
    assert_eq!(load["schema"], "twinring.load.http/1", "{run}");
    if load["requests"]["sent"] == 0 {
        testing::needs("a quiet machine", "the load generator had no CPU to send a request");
    }
    let whole = |name: &str| load["whole_run"][name].as_u64().unwrap();
    assert_eq!(whole("sent"), whole("answered") + whole("failed") + whole("abandoned"));
    assert_eq!(whole("failed"), 0, "{run}");
    let answered = load["requests"]["answered"].as_u64().unwrap();
    assert_eq!(load["bytes"]["bodies"].as_u64(), Some(answered * file_bytes), "{run}");
    assert!(load["settings"]["verify_body"].is_string(), "{run}");
    for (kind, count) in load["errors"].as_object().unwrap() {
        assert_eq!(count, 0, "{kind}: {run}");
    }
    assert!(answered > 0, "{run}");
    assert_eq!(run["failures"], serde_json::json!([]), "{run}");
}

fn both_engines_serve_files() {
    testing::needs_io_uring();
    let Measured { said, runs, .. } =
        &measured(&["--set", "connections=10", "--set", "bytes=512,102400", "--set", "tls=false"]);
    assert!(said.contains("HTTP 512 B x 10") && said.contains("HTTP 100 KB x 10"), "{said}");
    assert!(runs.len() >= 4, "{said}");
    for run in runs {
        assert_sound(run, run["cell"]["file_bytes"].as_u64().unwrap());
        assert_eq!(run["ready"]["engine"], run["subject"], "{run}");
        let requests = run["server_final"]["service_counters"]["requests"].as_u64().unwrap();
        // Answers that did not come within a second are not waited for.
        let whole = |name: &str| run["loads"][0]["whole_run"][name].as_u64().unwrap();
        let answered = whole("answered");
        assert!((answered..=answered + whole("abandoned")).contains(&requests), "{run}");
    }
}

fn a_connection_per_request_many_files_and_tls_are_measured() {
    testing::needs_io_uring();
    for axes in [
        &["tls=false", "keepalive=false"][..],
        &["tls=false", "files=10000"],
        &["tls=true"],
        &["tls=true", "http2=true", "depth=8"],
    ] {
        let common = ["connections=10", "file_bytes=512", "rate_per_s=500"];
        let axes: Vec<&str> = axes.iter().chain(&common).flat_map(|it| ["--set", it]).collect();
        let Measured { said, runs, .. } = &measured(&axes);
        assert!(runs.len() >= 2, "{said}");
        for run in runs {
            assert_sound(run, 512);
            let (settings, cell) = (&run["loads"][0]["settings"], &run["cell"]);
            let is = |key: &str, or: bool| cell.get(key).and_then(Value::as_bool).unwrap_or(or);
            assert_eq!(settings["keepalive"], is("keepalive", true), "{run}");
            assert_eq!(settings["tls"].is_object(), is("tls", false), "{run}");
            assert_eq!(settings["http"] == "2", is("http2", false), "{run}");
            assert_eq!(settings["urls"], cell.get("files").cloned().unwrap_or(1.into()), "{run}");
        }
    }
}
