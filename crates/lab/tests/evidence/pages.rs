//! What the pages say, and that they fit.

use std::path::Path;

use serde_json::json;
use testing::{Test, tests};
use twinring_lab::result::{Bundle, NotRun, State};
use twinring_lab::{first_page, full, markdown, recomputed, rerender};

use crate::records::{bundle, experiment, pairs};
use crate::tampering::copy;

pub(crate) const TESTS: &[Test] = tests![
    the_first_page_of_every_committed_bundle_fits,
    the_page_says_who_needs_less_and_how_sure_that_is,
    both_bottlenecks_are_named,
    what_a_bundle_says_is_text_in_every_rendering
];

/// The most lines and columns of the first page.
const LINES: usize = 30;
const COLUMNS: usize = 80;

fn assert_fits(bundle: &Bundle) -> String {
    let page = first_page(bundle, "b");
    let lines: Vec<&str> = page.lines().collect();
    assert!(lines.len() <= LINES, "{} lines:\n{page}", lines.len());
    for line in &lines {
        assert!(line.chars().count() <= COLUMNS, "{line}\n{page}");
    }
    let last = lines.iter().rposition(|line| line.starts_with("ANSWER")).expect(&page);
    assert!(
        lines[last + 1..].iter().all(|line| line.starts_with("       ")),
        "the answer is last:\n{page}"
    );
    page
}

/// Two engines and many subjects, one cell and dozens, all protocols and networks, sessions and void cells.
fn the_first_page_of_every_committed_bundle_fits() {
    let measurements = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/measurements");
    let bundles = std::fs::read_dir(measurements).unwrap().map(|entry| entry.unwrap().path());
    let mut count = 0;
    for directory in bundles.filter(|path| path.is_dir()) {
        assert!(twinring_lab::verify(&directory).unwrap().holds(), "{directory:?}");
        let found = recomputed(&directory).unwrap();
        let page = assert_fits(&found);
        let all = full(&found, "b");
        assert!(all.ends_with(&page), "{directory:?}");
        let wide = all.lines().find(|line| line.chars().count() > COLUMNS);
        assert_eq!(wide, None, "{directory:?}");
        count += 1;
    }
    assert!(count > 0);
}

fn the_page_says_who_needs_less_and_how_sure_that_is() {
    let page = assert_fits(&bundle(experiment(), pairs(8, 1.25)));
    for part in [
        "-20%",
        "io_uring",
        "ANSWER At full load: io_uring, 20 % less CPU",
        "one session",
        "inverse",
    ] {
        assert!(page.contains(part), "`{part}`:\n{page}");
    }
    let page = assert_fits(&bundle(experiment(), pairs(5, 1.25)));
    assert!(page.contains("too few pairs to decide"), "{page}");
    // A machine that takes CPU away leaves few pairs; there was nothing to see.
    let mut disturbed = pairs(9, 1.25);
    for record in &mut disturbed[4..] {
        record["cpu"]["server_cpu"]["steal_coarse_s"] = json!(0.5);
    }
    let page = assert_fits(&bundle(experiment(), disturbed));
    assert!(page.contains("-20%") && page.contains("noisy: change over"), "{page}");
    let page = assert_fits(&bundle(experiment(), pairs(9, 1.0)));
    // A change of -0 % stood there.
    assert!(page.contains("no difference found") && !page.contains("-0%"), "{page}");
    // A closed loop in which nothing could be measured was told as one at part load.
    let mut failed = pairs(6, 1.0);
    failed.iter_mut().for_each(|record| record["loads"] = json!([]));
    let page = assert_fits(&bundle(experiment(), failed));
    assert!(page.contains("ANSWER At full load: too few pairs"), "{page}");
}

/// Beside a baseline whose CPU was 97 % busy stood `neither CPU`, which was said of the other subject.
fn both_bottlenecks_are_named() {
    let mut records = pairs(6, 1.0);
    let said = |records: &[serde_json::Value]| {
        let told = full(&bundle(experiment(), records.to_vec()), "b");
        told.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let alike = said(&records);
    assert!(alike.contains("neither CPU") && !alike.contains("(epoll)"), "{alike}");
    for record in records.iter_mut().filter(|record| record["subject"] == "epoll") {
        record["cpu"]["server_cpu"]["busy_s"] = json!(1.94);
    }
    let apart = said(&records);
    assert!(apart.contains("server CPU (epoll), neither CPU (io_uring)"), "{apart}");
}

/// A run that was interrupted, on a machine with hostile names.
fn what_a_bundle_says_is_text_in_every_rendering() {
    let directory = copy();
    let path = directory.path().join("bundle.json");
    let mut stored: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    stored["state"] = json!({"is": "interrupted", "signal": 2});
    stored["experiment"]["about"] =
        json!("io_uring & epoll: <b>small</b> messages, a|b`c\u{1b}[2J");
    stored["machine"]["cpu_model"] = json!("<script>alert('cpu')</script>");
    stored["command"] = json!(["twinring", "</pre><script>alert('words')</script>"]);
    stored["network_fallback"] = json!("no <script>namespaces</script> here: EPERM");
    stored["not_run"] = json!([{"subject": "nginx", "why": "<img src=x onerror=alert(2)>"}]);
    std::fs::write(&path, stored.to_string()).unwrap();
    let found = rerender(directory.path()).unwrap();
    assert!(assert_fits(&found).contains("interrupted by signal 2"));
    // It cleared the terminal.
    assert!(!full(&found, "b").contains('\u{1b}'));
    assert!(first_page(&found, "my bundles/b").contains("--full 'my bundles/b'"));
    let markdown = markdown(&found);
    let outside: String = markdown.split("```").step_by(2).collect();
    assert!(!outside.contains("<script>") && outside.contains("a\\|b"), "{outside}");
    let html = std::fs::read_to_string(directory.path().join("report.html")).unwrap();
    assert!(!html.contains("<b>small") && html.contains("&lt;b&gt;small"), "{html}");
    for part in ["<svg", "prefers-color-scheme", "<details>"] {
        assert!(html.contains(part), "{part}");
    }
    for part in ["<script", "<img", "http://", "https://"] {
        assert!(!html.contains(part), "{part}");
    }
    // The chart comes first.
    assert!(html.find("<svg") < html.find("<pre>") && html.find("<pre>") < html.find("<details>"));
    // One that runs still has nothing to say.
    let begun = Bundle {
        state: State::Running,
        summary: None,
        not_run: vec![NotRun { subject: "a".to_owned(), why: "b".to_owned() }],
        ..found
    };
    assert!(assert_fits(&begun).contains("Nothing was measured yet"));
}
