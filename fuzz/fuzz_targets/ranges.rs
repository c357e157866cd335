//! `Range`: a selected range exists, never exceeds the file, and is the same when written and parsed
//! again. The first eight bytes of the input are the length of the file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use twinring_services::http::conditional::{Selection, select};

fuzz_target!(|bytes: &[u8]| {
    let Some((length, field)) = bytes.split_first_chunk() else { return };
    let length = u64::from_be_bytes(*length);
    let selection = select(field, length);
    let Selection::Part(part) = &selection else { return };
    assert!(part.start < part.end && part.end <= length);
    let spec = format!("BYTES= ,\t{}-{} ,", part.start, part.end - 1);
    assert_eq!(select(spec.as_bytes(), length), selection);
});
