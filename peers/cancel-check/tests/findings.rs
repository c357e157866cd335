//! docs/cancellation.md says what is found.

use std::process::Command;

const RUNTIMES: [&str; 5] = ["tokio", "monoio", "compio", "twinring-epoll", "twinring-uring"];

/// The findings as a table of Markdown.
fn table() -> String {
    let mut columns = Vec::new();
    for runtime in RUNTIMES {
        // A process each: descriptors and freed buffers are those of the process.
        let output = Command::new(env!("CARGO_BIN_EXE_cancel-check")).arg(runtime).output();
        let output = output.expect("the program runs");
        let complained = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{runtime}: {complained}");
        let found = String::from_utf8(output.stdout).expect("text");
        println!("{runtime}\n{found}");
        columns.push(found.lines().map(str::to_owned).collect::<Vec<_>>());
    }
    let mut table = format!("| rule | {} |\n|---|{}", RUNTIMES.join(" | "), "---|".repeat(5));
    for row in 0..columns[0].len() {
        // The name of the rule has 20 columns, and the verdict follows.
        let verdict = |column: &Vec<String>| {
            let verdict = column[row][20..].split_whitespace().next();
            verdict.expect("a verdict").to_owned()
        };
        let verdicts: Vec<String> = columns.iter().map(verdict).collect();
        table += &format!("\n| {} | {} |", columns[0][row][..20].trim_end(), verdicts.join(" | "));
    }
    table
}

#[test]
fn the_document_says_what_is_found() {
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cancellation.md");
    let document = std::fs::read_to_string(document).expect("the document");
    let found = table();
    assert!(
        document.contains(&found),
        "docs/cancellation.md has another table than this:\n{found}"
    );
}
