//! Pages for people who decide: the advice, and the gallery of bundles.

use crate::support::lab;
use std::fs;
use std::path::Path;
use std::process::Command;
use twinring_lab::advise::{self, Choice, Local, Workload};
use twinring_lab::{Advice, NetChoice, Protocol, Style};

fn measured(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/measurements").join(name)
}

#[test]
fn advice_follows_from_the_figures_of_a_bundle() {
    let bundle = twinring_lab::recomputed(&measured("schedule-3")).unwrap();
    let workload = Workload {
        protocol: Protocol::Tcp,
        connections: 100,
        bytes: 128,
        rate_per_s: 0,
        tls: false,
        net: NetChoice::All,
    };
    let local = Local { features: Some("multishot".to_owned()), ..Local::default() };
    let advice = Advice::of(&workload, &bundle, "bundles/it", local);
    assert_eq!(advice.choice, Choice::IoUring);
    assert_eq!((advice.asked.len(), advice.neighbours.len()), (3, 9));
    let text = advise::text(&advice, Style { colour: false });
    assert!(text.starts_with("Use io_uring: it saves server CPU, 19 % on"), "{text}");
    for expected in [
        "TCP echo, 100 connections, messages of 128 bytes",
        "1000 x 1 KB, rps",
        "they send each answer at once",
        "nothing known of this kernel",
        "twinring serve echo --listen ADDRESS --engine io_uring",
        "io_uring takes: multishot",
        "Raw data and report: bundles/it",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
    let html = advise::html(&advice);
    assert!(html.contains("<h1>Use io_uring") && !html.contains("http://"), "{html}");
    let json: serde_json::Value = serde_json::from_str(&advice.json_line()).unwrap();
    assert_eq!(
        (&json["choice"], &json["asked"][0]["effect"]),
        (&"io_uring".into(), &"io_uring".into())
    );
    // On a machine that refuses io_uring there is nothing to measure.
    let refused = Local { refused: Some("seccomp".to_owned()), ..Local::default() };
    let text = advise::text(&Advice::unmeasured(&workload, refused), Style { colour: false });
    assert!(text.starts_with("Use epoll: io_uring cannot run here."), "{text}");
    assert!(text.contains("seccomp") && text.contains("--engine epoll"), "{text}");
}

#[test]
fn numbers_that_make_no_sense_are_refused_before_anything_runs() {
    for (arguments, expected) in [
        (&["echo", "-c", "0", "--no-questions"][..], "connections"),
        (&["echo", "--minutes", "0"], "between 0.1 and 240"),
        (&["gopher"], "gopher"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_twinring"));
        let output = command.arg("advise").args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn a_gallery_shows_what_was_verified_and_nothing_else() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("site");
    let good = measured("published-joakimthun");
    let gallery = |bundles: &[&Path]| {
        let bundles = bundles.iter().map(|it| it.to_str().unwrap());
        lab(&["gallery", out.to_str().unwrap()].into_iter().chain(bundles).collect::<Vec<_>>())
    };
    let bad = place.path().join("copy");
    fs::create_dir(&bad).unwrap();
    for file in fs::read_dir(&good).unwrap().map(|file| file.unwrap().path()) {
        fs::copy(&file, bad.join(file.file_name().unwrap())).unwrap();
    }
    fs::write(bad.join("report.md"), "all is well").unwrap();
    assert_eq!(gallery(&[&good, &bad]).status.code(), Some(1));
    assert!(!out.exists(), "it was written before everything was verified");
    let output = gallery(&[&good]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let index = fs::read_to_string(out.join("index.html")).unwrap();
    assert!(index.contains("href=\"published-joakimthun.html\""), "{index}");
    let report = fs::read_to_string(out.join("published-joakimthun.html")).unwrap();
    assert!(report.contains("<section id=\"verdict\""), "no report");
}
