//! The expressions of `lab compare --fail-if`: what is read is written so that it is read as the
//! same, and what is not has an error that says what was expected.
#![no_main]

use libfuzzer_sys::fuzz_target;
use twinring_lab::compare::Gate;

fuzz_target!(|text: &str| {
    match text.parse::<Gate>() {
        Ok(gate) => {
            let shown = gate.to_string();
            assert_eq!(shown.parse().as_ref(), Ok(&gate), "{shown}");
        }
        Err(error) => assert!(error.to_string().contains("; expected ")),
    }
});
