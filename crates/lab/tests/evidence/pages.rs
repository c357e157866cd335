//! What the pages say, and that they fit.

use twinring_lab::result::Bundle;
use twinring_lab::{Style, first_page, full, markdown};

use crate::common::records::{bundle, experiment, pairs};
use crate::common::stories;
use testing::{Test, tests};

pub(crate) const TESTS: &[Test] = tests![
    the_first_page_of_every_story_fits,
    the_page_says_who_needs_less_and_how_sure_that_is,
    what_a_bundle_says_is_text_in_every_rendering
];

/// The most lines and columns of the first page.
const LINES: usize = 30;
const COLUMNS: usize = 80;

fn assert_fits(bundle: &Bundle) -> String {
    let page = first_page(bundle, "b", Style::Plain);
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

fn the_first_page_of_every_story_fits() {
    for name in stories::STORIES {
        let directory = tempfile::tempdir().unwrap();
        let found = stories::write(name, directory.path());
        let page = assert_fits(&found);
        let all = full(&found, "b", Style::Plain);
        assert!(all.ends_with(&page), "{name}");
        let wide = all.lines().find(|line| line.chars().count() > 200);
        assert_eq!(wide, None, "{name}");
    }
}

fn the_page_says_who_needs_less_and_how_sure_that_is() {
    let page = assert_fits(&bundle(experiment(), pairs(8, 1.25)));
    for part in
        ["-20%", "io_uring", "ANSWER Saturated: io_uring, 20 % less CPU", "one session", "inverse"]
    {
        assert!(page.contains(part), "`{part}`:\n{page}");
    }
    let page = assert_fits(&bundle(experiment(), pairs(5, 1.25)));
    assert!(page.contains("5 pairs, 6 needed"), "{page}");
    let page = assert_fits(&bundle(experiment(), pairs(9, 1.0)));
    assert!(page.contains("no difference found"), "{page}");
    // A closed loop in which nothing could be measured was told as one at part load.
    let mut failed = pairs(6, 1.0);
    failed.iter_mut().for_each(|record| record["loads"] = serde_json::json!([]));
    let page = assert_fits(&bundle(experiment(), failed));
    assert!(page.contains("ANSWER Saturated: 0 pairs"), "{page}");
}

fn what_a_bundle_says_is_text_in_every_rendering() {
    let mut found = bundle(experiment(), pairs(8, 1.25));
    found.experiment.about = "<script>a|b`c</script>".to_owned();
    found.command = vec!["<img src=x>".to_owned()];
    let markdown = markdown(&found);
    assert!(!markdown.contains("<script>") && markdown.contains("a\\|b"), "{markdown}");
    let directory = tempfile::tempdir().unwrap();
    let mut story = stories::write("quick", directory.path());
    story.experiment.about.clear();
    let html = std::fs::read_to_string(directory.path().join("report.html")).unwrap();
    // The story's own text has both.
    assert!(!html.contains("<b>small") && html.contains("&lt;b&gt;small"), "{html}");
    for part in ["<svg", "prefers-color-scheme", "<details>"] {
        assert!(html.contains(part), "{part}");
    }
    assert!(!html.contains("<script") && !html.contains("http://") && !html.contains("https://"));
    // The chart comes first.
    assert!(html.find("<svg") < html.find("<pre>") && html.find("<pre>") < html.find("<details>"));
}
