//! The command line of `twinring serve`, one argument per line: it is accepted, or an error is
//! reported.
//! about it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use twinring_cli::fuzzing::arguments;

fuzz_target!(|text: &str| {
    if let Some(said) = arguments(text.lines().take(16)) {
        assert!(!said.trim().is_empty());
    }
});
