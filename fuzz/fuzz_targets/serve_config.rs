//! The configuration file of `serve http`: accepted, or refused with errors and their lines. Empty
//! lines and comments change only the numbers of the lines.
#![no_main]

use libfuzzer_sys::fuzz_target;
use twinring_cli::configuration;

/// A problem with its line, if it has one.
fn placed(problem: &str) -> (Option<u64>, &str) {
    let place = problem.strip_prefix("x.toml:").and_then(|rest| rest.split_once(": "));
    match place.and_then(|(line, what)| Some((line.parse().ok()?, what))) {
        Some((line, what)) => (Some(line), what),
        None => (None, problem),
    }
}

fuzz_target!(|text: &str| {
    let read = configuration("x.toml", text);
    assert!(read.as_ref().err().is_none_or(|problem| !placed(problem).1.trim().is_empty()));
    // A byte order mark may stand at the beginning only.
    if !text.starts_with('\u{feff}') {
        let below = configuration("x.toml", &format!("\n{text}"));
        assert_eq!(below.is_ok(), read.is_ok());
        if let (Err(below), Err(here)) = (&below, &read) {
            let (line, what) = placed(here);
            assert_eq!(placed(below), (line.map(|line| line + 1), what));
        }
    }
    if read.is_ok() {
        assert_eq!(configuration("x.toml", &format!("{text}\n# the end\n")), read);
    }
});
