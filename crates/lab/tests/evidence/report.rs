//! Reports of bundles made by hand: what they say, word for word, and what they are made of.
//!
//! `UPDATE_SNAPSHOTS=1 cargo test -p twinring-lab --test evidence report::` writes the expected files again.

use std::path::Path;

use crate::common::stories::{STORIES, write};
use twinring_lab::{Style, markdown, rerender, table};

/// Lines of a text that are compared; what follows is made of the same parts.
const COMPARED_LINES: usize = 90;

/// Compares the beginning of a text with the file of that name.
fn assert_snapshot(name: &str, text: &str) {
    let text: String = text.lines().take(COMPARED_LINES).flat_map(|line| [line, "\n"]).collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/report").join(name);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    let differ = expected.lines().zip(text.lines()).find(|(expected, is)| expected != is);
    assert!(
        expected == text,
        "{name} is not as expected; the first line that differs: {differ:#?}"
    );
}

/// What a page is made of: its headings, captions, regions and links, in their order.
fn structure(page: &str) -> String {
    let tags =
        ["h1", "h2", "h3", "figcaption", "section", "figure", "table", "svg", "details", "nav"];
    let mut outline = String::new();
    for piece in page.split('<').skip(1) {
        let (tag, text) = piece.split_once('>').unwrap_or((piece, ""));
        let name = tag.split(' ').next().unwrap_or_default();
        if !tags.contains(&name) {
            continue;
        }
        let label = tag.split_once("aria-label=\"").and_then(|(_, rest)| rest.split('"').next());
        let id = tag.split_once("id=\"").and_then(|(_, rest)| rest.split('"').next());
        let words = [id.map(|id| format!("#{id}")), label.map(str::to_owned)];
        let words: Vec<String> = words.into_iter().flatten().collect();
        outline.push_str(&format!("{name} {} {}", words.join(" "), text.trim()).replace("  ", " "));
        outline.truncate(outline.trim_end().len());
        outline.push('\n');
    }
    outline
}

#[test]
fn every_shape_says_what_it_did() {
    for story in STORIES {
        let directory = tempfile::tempdir().unwrap();
        let bundle = write(story, directory.path());
        let plain = table(&bundle, Style { colour: false });
        assert_snapshot(&format!("{story}.txt"), &plain);
        assert_snapshot(&format!("{story}.md"), &markdown(&bundle));
        let page = std::fs::read_to_string(directory.path().join("report.html")).unwrap();
        assert_snapshot(&format!("{story}.outline"), &structure(&page));
        let long = plain.lines().find(|line| line.chars().count() > 100);
        assert!(long.is_none(), "{story}: {long:?}");
        let coloured = table(&bundle, Style { colour: true });
        let stripped = coloured.replace("\x1b[0m", "");
        let stripped = ["1", "1;32", "33", "1;31"]
            .iter()
            .fold(stripped, |text, code| text.replace(&format!("\x1b[{code}m"), ""));
        assert_eq!(stripped, plain, "{story}: colours change nothing else");
    }
}

#[test]
fn a_report_is_the_same_when_it_is_rendered_again() {
    let directory = tempfile::tempdir().unwrap();
    write("partial", directory.path());
    let page = directory.path().join("report.html");
    let before = std::fs::read_to_string(&page).unwrap();
    rerender(directory.path()).unwrap();
    assert_eq!(std::fs::read_to_string(&page).unwrap(), before);
}

#[test]
fn hostile_words_stay_words() {
    let directory = tempfile::tempdir().unwrap();
    let bundle = write("partial", directory.path());
    let page = std::fs::read_to_string(directory.path().join("report.html")).unwrap();
    for word in ["stderr", "command", "cpu", "words"] {
        assert!(page.contains(&format!("&lt;script&gt;alert('{word}')")), "{word} is not told");
    }
    assert_eq!(page.matches("<script").count(), 1, "the only script is the page's own");
    assert_eq!(page.matches("<img").count() + page.matches("<b>small").count(), 0);
    // Within quoted attributes too.
    assert!(!page.contains("\"><img") && page.contains("&quot;&gt;&lt;img"), "an attribute ends");
    let text = markdown(&bundle);
    let outside_code = text.split("```").step_by(2).collect::<String>().replace("\\<", "");
    assert!(!outside_code.contains("<script") && !outside_code.contains("<b>"), "{outside_code}");
    assert!(text.contains("\\<script\\>alert('stderr')") && text.contains("\\*\\*now"), "{text}");
}

#[test]
fn nothing_in_a_page_comes_from_elsewhere() {
    let directory = tempfile::tempdir().unwrap();
    write("http", directory.path());
    let page = std::fs::read_to_string(directory.path().join("report.html")).unwrap();
    assert!(page.contains("default-src 'none'") && page.contains("style-src 'sha256-"));
    for elsewhere in
        ["http://", "https://", "//cdn", "@import", "url(", "src=", " style=", " onclick"]
    {
        assert!(!page.contains(elsewhere), "{elsewhere}");
    }
    let links: Vec<&str> = page
        .split("href=\"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .filter(|link| !link.starts_with('#') && !link.starts_with("data:"))
        .collect();
    assert_eq!(links, ["runs.jsonl", "bundle.json", "manifest.sha256"]);
}

#[test]
fn many_cells_are_a_map_on_the_terminal() {
    let directory = tempfile::tempdir().unwrap();
    let bundle = write("many", directory.path());
    let text = table(&bundle, Style { colour: false });
    let lines = text.lines().count();
    assert!(lines < 40, "{lines} lines for 48 cells:\n{text}");
    assert!(text.contains("size by connections") && text.contains("report.html"), "{text}");
    assert!(!text.contains("ns/request"), "figures of single cells:\n{text}");
}
