//! What the kernel tells beside a datagram, and socket addresses: none makes it panic or read
//! beyond the end, and what is read is read again from what the kernel would write for it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use twinring::fuzzing::check_ancillary;

fuzz_target!(|bytes: &[u8]| check_ancillary(bytes));
