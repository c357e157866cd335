//! Published comparisons beside ours, on records made by hand: what the report says of them.

use std::path::Path;

use crate::common::records::{read, record_of};
use serde_json::{Value, json};
use twinring_lab::record::RunRecord;
use twinring_lab::result::Bundle;
use twinring_lab::summary::summarise;
use twinring_lab::{Experiment, markdown};

/// Two subjects, and a document for each of these published ratios of the first cell.
fn experiment(ratios: &[(&str, f64)]) -> Experiment {
    let published = |(source, ratio): &(&str, f64)| {
        let entry = |program: &str, requests_per_s: f64, against: &str| {
            format!(
                "[[published]]\nsource = \"{source}\"\nprogram = \"{program}\"\n\
                 subject = \"{program}\"\nconditions = \"a laptop\"\n{against}measured = [\n\
                 {{ connections = 100, message_bytes = 128, requests_per_s = {requests_per_s:?} }},\n\
                 {{ connections = 7, message_bytes = 128, note = \":(\" }},\n]\n"
            )
        };
        let against = "against = { program = \"epoll\", here = [[\"io_uring\", \"epoll\"]] }\n";
        entry("io_uring", 50_000.0 * ratio, against) + &entry("epoll", 50_000.0, "")
    };
    let text = format!(
        "schema = \"twinring.lab.experiment/3\"\nname = \"published\"\npairs = 8\nwarmup_s = 0.1\n\
         window_s = 2.0\nnot_reproduced = [\"The laptop is gone.\"]\n\
         [tcp]\nconnections = [100]\nmessage_bytes = [128]\nload = [\"load\", \"{{addr}}\"]\n\
         [[subjects]]\nname = \"epoll\"\nengine = \"epoll\"\n\
         [[subjects]]\nname = \"io_uring\"\nengine = \"io_uring\"\n{}",
        ratios.iter().map(published).collect::<String>()
    );
    Experiment::from_toml(&text, "published.toml").unwrap()
}

/// Eight pairs in which io_uring answers a quarter more, with a scatter of a percent.
fn pairs(change: impl Fn(&mut Value)) -> Vec<RunRecord> {
    let pair = |block: usize| {
        let answered = 200_000 + 500 * (block as u64 % 3);
        let other = 250_000 - 400 * (block as u64 % 4);
        [
            record_of(2 * block, block, "epoll", 1.99, answered),
            record_of(2 * block + 1, block, "io_uring", 1.99, other),
        ]
    };
    let changed = |mut record: Value| {
        change(&mut record);
        read(record)
    };
    (0..8).flat_map(pair).map(changed).collect()
}

/// The report in Markdown of these runs.
fn report(experiment: &Experiment, runs: &[RunRecord]) -> String {
    let old = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/bundle/bundle.json");
    let mut bundle: Value = serde_json::from_str(&std::fs::read_to_string(old).unwrap()).unwrap();
    bundle["experiment"] = serde_json::to_value(experiment).unwrap();
    bundle["summary"] = serde_json::to_value(summarise(experiment, 1, runs)).unwrap();
    let bundle: Bundle = serde_json::from_value(bundle).unwrap();
    markdown(&bundle)
}

/// The row of a document's ratio in the first cell.
fn row<'a>(report: &'a str, source: &str) -> &'a str {
    let head = format!("| {source}, io\\_uring : epoll | 100 x 128 B |");
    let row = report.lines().find(|line| line.starts_with(&head));
    row.unwrap_or_else(|| panic!("no row of {source}: {report}"))
}

#[test]
fn a_published_ratio_is_told_reproduced_smaller_larger_or_not() {
    let cases = [
        ("same", 1.25, "reproduced"),
        ("near", 1.29, "reproduced"),
        ("more", 1.6, "same direction, smaller here"),
        ("less", 1.1, "same direction, larger here"),
        ("tie", 1.0, "not reproduced: a difference here only"),
        ("other", 0.8, "not reproduced: opposite"),
    ];
    let ratios: Vec<_> = cases.iter().map(|(source, ratio, _)| (*source, *ratio)).collect();
    let report = report(&experiment(&ratios), &pairs(|_| ()));
    for (source, ratio, expected) in cases {
        let row = row(&report, source);
        assert!(row.contains(&format!("| {ratio:.3} |")), "{row}");
        assert!(row.contains(&format!("| {expected} |")), "{source}: {row}");
        // Ours with its interval, and our verdict, which is about CPU.
        assert!(row.contains("| 1.24") && row.contains("io\\_uring ahead"), "{row}");
    }
    assert!(report.contains("same, io\\_uring : epoll, beside io\\_uring : epoll here: 1 reproduced; 1 no number was published."));
    // Rates stand beside each other with their ratio, and what was not measured is said.
    assert!(report.contains("| same, epoll | 100 x 128 B | 50,000 | – | epoll | 100,"), "{report}");
    assert!(report.contains("| same, epoll | 7 x 128 B | :( |"), "{report}");
    assert!(report.contains("same, epoll, 7 x 128 B: :(."), "{report}");
    let missing = report.split_once("### What could not be reproduced").unwrap().1;
    assert!(missing.contains("- The laptop is gone."), "{missing}");
}

#[test]
fn where_the_load_generator_was_the_bottleneck_nothing_is_judged() {
    let runs = pairs(|record| {
        record["cpu"]["server_cpu"]["busy_s"] = json!(1.0);
        record["cpu"]["client_cpu"]["busy_s"] = json!(1.99);
    });
    let report = report(&experiment(&[("same", 1.25)]), &runs);
    let row = row(&report, "same");
    assert!(row.contains("| client-bound |"), "{row}");
    assert!(row.contains("not judged: the load generator was the bottleneck"), "{row}");
}

#[test]
fn without_verdict_there_is_no_outcome() {
    let mut runs = pairs(|_| ());
    runs.truncate(14);
    let few = report(&experiment(&[("same", 1.25)]), &runs);
    assert!(row(&few, "same").contains("not judged: too few pairs"), "{few}");
    let voided = pairs(|record| record["load"]["errors"]["mismatch"] = json!(1));
    let voided = report(&experiment(&[("same", 1.25)]), &voided);
    assert!(row(&voided, "same").contains("not judged: too few pairs or a failed audit"));
    let nothing = report(&experiment(&[("same", 1.25)]), &[]);
    assert!(row(&nothing, "same").contains("not measured here"), "{nothing}");
}

/// Its mean at 500 connections is eleven times what its own rate allows.
#[test]
fn the_impossible_latencies_of_the_nginx_write_up_are_pointed_out() {
    let report = report(&Experiment::find("published-nginx").unwrap(), &[]);
    let found = "nginx io\\_uring write-up, nginx on epoll: 4 of 8 mean latencies contradict";
    let sentence = report.lines().find(|line| line.starts_with(found)).unwrap();
    let first =
        "500 x 512 B file: 42.4 ms printed, 500 / 132,630 = 3.77 ms at most, 11.2 times less";
    assert!(sentence.contains(first), "{sentence}");
    assert!(!sentence.contains("100 x "), "{sentence}");
}
