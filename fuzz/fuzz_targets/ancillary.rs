//! Ancillary data of a datagram, and socket addresses: none causes a panic or a read beyond the
//! end, and parsed data is parsed again from the kernel's encoding of it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use twinring::fuzzing::check_ancillary;

fuzz_target!(|bytes: &[u8]| check_ancillary(bytes));
