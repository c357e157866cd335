//! The expressions of `--fail-if`: an accepted one is written and parsed back equal,
//! and an error says what was expected.
#![no_main]

use libfuzzer_sys::fuzz_target;
use twinring_lab::Gate;

fuzz_target!(|text: &str| {
    match text.parse::<Gate>() {
        Ok(gate) => {
            let shown = gate.to_string();
            assert_eq!(shown.parse().as_ref(), Ok(&gate), "{shown}");
        }
        Err(error) => assert!(error.to_string().contains("expected ")),
    }
});
