//! The replies that `load udp` takes: none makes it panic, and one that is taken for a packet is
//! that packet, byte for byte.
#![no_main]

use libfuzzer_sys::fuzz_target;
use twinring_load::udp::fuzzing::check_reply;

fuzz_target!(|bytes: &[u8]| check_reply(bytes));
