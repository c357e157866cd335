//! The expressions of `lab compare --fail-if`: an accepted one is written and parsed back equal,
//! and an error marks its place.
#![no_main]

use libfuzzer_sys::fuzz_target;
use twinring_lab::compare::Gate;

fuzz_target!(|text: &str| {
    match text.parse::<Gate>() {
        Ok(gate) => {
            let shown = gate.to_string();
            assert_eq!(shown.parse().as_ref(), Ok(&gate), "{shown}");
        }
        Err(error) => {
            let shown = error.to_string();
            let (_, marked) = shown.rsplit_once('\n').expect("three lines");
            let before = marked.strip_suffix('^').expect("a mark").strip_prefix("  ");
            let before = before.expect("in step with the text");
            assert!(before.chars().all(|blank| blank == ' '));
            assert!(before.len() <= text.chars().count());
        }
    }
});
