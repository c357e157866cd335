//! What lab and agent say to each other over ssh: no line makes either end panic, what is read is
//! written as the same, and clocks and samples can be counted with, whatever they say.
#![no_main]

use libfuzzer_sys::fuzz_target;
use twinring_lab::fuzzing::check_lines;

fuzz_target!(|bytes: &[u8]| check_lines(bytes));
