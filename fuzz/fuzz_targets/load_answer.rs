//! The answers that `load http` parses: the same result in any chunks.
#![no_main]

use libfuzzer_sys::fuzz_target;
use twinring_load::http::fuzzing::answers;

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    let (to_head, ends) = (kind & 1 == 1, kind & 2 == 2);
    let whole = answers([bytes], to_head, ends);
    for step in [1, 2, 5, 64] {
        let chunks = answers(bytes.chunks(step), to_head, ends);
        assert_eq!(chunks.failed, whole.failed, "in chunks of {step}");
        // The answers before a malformed one are the same, too.
        assert_eq!(chunks.answers, whole.answers, "in chunks of {step}");
        if !whole.failed {
            assert_eq!(chunks, whole, "in chunks of {step}");
        }
    }
    let taken: u64 = whole.answers.iter().map(|answer| answer.bytes).sum();
    let content: u64 = whole.answers.iter().map(|answer| answer.content_bytes).sum();
    assert!(content <= taken && taken <= bytes.len() as u64);
    assert!(whole.content.len() as u64 >= content);
    assert!(whole.answers.iter().all(|answer| (200..1000).contains(&answer.status)));
    if to_head {
        assert_eq!(content, 0);
    }
});
