//! The answers that `load http` takes apart: the same in any pieces.
#![no_main]

use libfuzzer_sys::fuzz_target;
use twinring_load::http::fuzzing::answers;

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    let (to_head, ends) = (kind & 1 == 1, kind & 2 == 2);
    let whole = answers(bytes, bytes.len().max(1), to_head, ends);
    for step in [1, 2, 5, 64] {
        let pieces = answers(bytes, step, to_head, ends);
        assert_eq!(pieces.failed, whole.failed, "in pieces of {step}");
        // What was taken before something malformed came is the same, too.
        assert_eq!(pieces.answers, whole.answers, "in pieces of {step}");
        if !whole.failed {
            assert_eq!(pieces, whole, "in pieces of {step}");
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
