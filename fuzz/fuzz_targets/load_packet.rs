//! The replies that `load udp` receives: none causes a panic, and a recognised one equals its
//! packet, byte for byte.
#![no_main]

use libfuzzer_sys::fuzz_target;
use twinring_load::udp::fuzzing::check_reply;

fuzz_target!(|bytes: &[u8]| check_reply(bytes));
