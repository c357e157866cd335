//! HTTP from one end to the other: our own server of files, load generator and lab together.

use crate::support::Measured;
use serde_json::Value;

/// With a short pair of every subject.
fn measured(arguments: &[&str]) -> Measured {
    Measured::take(arguments, "0.6")
}

/// What the lab relies on, in the words of the load generator: everything is accounted for and as
/// long as the file. Others on the machine may slow a run down, but spoil no answer.
fn assert_sound(run: &Value, file_bytes: u64) {
    let load = &run["load"];
    assert_eq!(load["schema"], "twinring.load.http/1", "{run}");
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

fn engines() -> [&'static str; 4] {
    ["--subject", "epoll=epoll", "--subject", "io_uring=io_uring"]
}

#[test]
fn both_engines_serve_files_and_the_published_figures_stand_beside() {
    let grid = ["http-files", "--connections", "10", "--sizes", "512,102400"];
    let Measured { said, runs, bundle, .. } = &measured(&[&grid[..], &engines()].concat());
    assert!(said.contains("10 connections x 512 B over HTTP"), "{said}");
    assert!(said.contains("10 connections x 100 KB over HTTP"), "{said}");
    assert!(!said.contains("bad result") && !said.contains("unaccounted"), "{said}");
    assert!(runs.len() >= 4, "{said}");
    for run in runs {
        assert_sound(run, run["cell"]["file_bytes"].as_u64().unwrap());
        assert_eq!(run["ready"]["engine"], run["subject"], "{run}");
        let requests = run["server_final"]["service_counters"]["requests"].as_u64().unwrap();
        // Answers that did not come within a second are not waited for.
        let whole = |name: &str| run["load"]["whole_run"][name].as_u64().unwrap();
        let answered = whole("answered");
        assert!((answered..=answered + whole("abandoned")).contains(&requests), "{run}");
    }
    let report = std::fs::read_to_string(bundle.join("report.md")).unwrap();
    for published in ["212,477", "101,716", "nginx io\\_uring write-up"] {
        assert!(report.contains(published), "{published}: {report}");
    }
}

#[test]
fn a_connection_per_request_many_files_and_tls_are_measured() {
    for (experiment, cell) in [
        ("http-churn", "10 connections x 512 B at 500/s over HTTP, a connection per request"),
        ("http-many", "10 connections x 512 B of 10000 files at 500/s over HTTP"),
        ("http-tls", "10 connections x 512 B at 500/s over HTTPS"),
        ("http2", "10 connections x 512 B x depth 8 at 500/s over HTTP/2 with TLS"),
    ] {
        let grid = [experiment, "--connections", "10", "--sizes", "512", "--rates", "500"];
        let Measured { said, runs, .. } = &measured(&[&grid[..], &engines()].concat());
        assert!(said.contains(cell), "{said}");
        assert!(runs.len() >= 2, "{said}");
        for run in runs {
            assert_sound(run, 512);
            let (settings, cell) = (&run["load"]["settings"], &run["cell"]);
            assert_eq!(settings["keepalive"], cell["keepalive"], "{run}");
            assert_eq!(settings["tls"].is_object(), cell["tls"] == true, "{run}");
            assert_eq!(settings["http"] == "2", cell["http2"] == true, "{run}");
            assert_eq!(settings["urls"], cell["files"], "{run}");
        }
    }
}

#[test]
fn every_way_of_sending_is_accepted_by_the_server() {
    let grid = ["http-sizes", "--connections", "4", "--sizes", "65536", "--rates", "200"];
    let subjects = twinring_lab::Experiment::find("http-sizes").unwrap().subjects.len();
    let Measured { said, runs, .. } = &measured(&grid);
    assert!(runs.len() >= subjects, "{said}");
    for subject in ["sendfile", "memory", "splice", "zerocopy", "read", "epoll-sendfile"] {
        let run = runs.iter().find(|run| run["subject"] == subject);
        assert_sound(run.unwrap_or_else(|| panic!("no {subject}: {said}")), 65_536);
    }
}
