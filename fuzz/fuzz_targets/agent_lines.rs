//! The protocol between lab and agent over ssh: no line causes a panic, parsed lines are written
//! back equal, and clocks and samples never overflow.
#![no_main]

use libfuzzer_sys::fuzz_target;
use twinring_lab::fuzzing::check_lines;

fuzz_target!(|bytes: &[u8]| check_lines(bytes));
