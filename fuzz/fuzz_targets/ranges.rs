//! `Range`: selected ranges exist, never exceed the file, and are the same when written and parsed
//! again. The first eight bytes of the input are the length of the file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use twinring_services::http::conditional::{RANGES_MAX, Selection, select};

fuzz_target!(|bytes: &[u8]| {
    let Some((length, field)) = bytes.split_first_chunk() else { return };
    let length = u64::from_be_bytes(*length);
    let selection = select(field, length);
    let parts = match &selection {
        Selection::One(part) => vec![part.clone()],
        Selection::Many(parts) => parts.clone(),
        Selection::Whole | Selection::Unsatisfiable => return,
    };
    assert!(!parts.is_empty() && parts.len() <= RANGES_MAX);
    assert_eq!(matches!(selection, Selection::Many(_)), parts.len() > 1);
    assert!(parts.iter().all(|part| part.start < part.end && part.end <= length));
    let total: u128 = parts.iter().map(|part| u128::from(part.end - part.start)).sum();
    assert!(total <= u128::from(length));

    let specs: Vec<String> =
        parts.iter().map(|part| format!("{}-{}", part.start, part.end - 1)).collect();
    assert_eq!(select(format!("bytes={}", specs.join(", ")).as_bytes(), length), selection);
    let swapped: String =
        String::from_utf8_lossy(field).replacen("bytes", "BYTES", 1).replace(',', " ,\t");
    if field.is_ascii() {
        assert_eq!(select(swapped.as_bytes(), length), selection);
    }
});
