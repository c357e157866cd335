//! Range requests: RFC 9110 section 14.

use std::ops::Range;

/// Ranges in one request; with more, the whole file is sent.
pub const RANGES_MAX: usize = 16;

/// The ranges that a `Range` field requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// The whole file: the field is malformed, of another unit, or requests more than exists.
    Whole,
    /// One part.
    One(Range<u64>),
    /// Several, in the requested order. Together they are no longer than the file, so a small
    /// request cannot cause a larger answer than a plain one.
    Many(Vec<Range<u64>>),
    /// No requested range exists: 416.
    Unsatisfiable,
}

/// The part of `length` bytes that `field` selects.
pub fn select(field: &[u8], length: u64) -> Selection {
    let Some(specs) = behind_unit(field) else { return Selection::Whole };
    let mut selected = Vec::new();
    let mut count = 0;
    let mut total = 0u128;
    for spec in specs.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
        if spec.is_empty() {
            continue;
        }
        count += 1;
        let Some(range) = resolve(spec, length) else { return Selection::Whole };
        if !range.is_empty() {
            total += u128::from(range.end - range.start);
            selected.push(range);
        }
        if count > RANGES_MAX {
            return Selection::Whole;
        }
    }
    match selected.as_slice() {
        _ if count == 0 || total > length.into() => Selection::Whole,
        [] => Selection::Unsatisfiable,
        [one] => Selection::One(one.clone()),
        _ => Selection::Many(selected),
    }
}

fn behind_unit(field: &[u8]) -> Option<&[u8]> {
    let (unit, specs) = field.split_at_checked(6)?;
    unit.eq_ignore_ascii_case(b"bytes=").then_some(specs)
}

/// One `first-last`, `first-` or `-length`, limited to the file, which may leave it empty; `None`
/// if malformed.
fn resolve(spec: &[u8], length: u64) -> Option<Range<u64>> {
    let dash = spec.iter().position(|byte| *byte == b'-')?;
    let (first, last) = (&spec[..dash], &spec[dash + 1..]);
    if first.is_empty() {
        return Some(length.saturating_sub(number(last)?)..length);
    }
    let first = number(first)?;
    let end = match last {
        [] => length,
        last => {
            let last = number(last)?;
            if last < first {
                return None;
            }
            last.saturating_add(1).min(length)
        }
    };
    Some(first.min(end)..end)
}

/// 1*DIGIT; a number that does not fit counts as the largest one.
fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let append =
        |number: u64, digit: &u8| number.saturating_mul(10).saturating_add(u64::from(digit - b'0'));
    Some(text.iter().fold(0, append))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_ranges_are_limited_to_the_file() {
        for (field, expected) in [
            ("bytes=0-0", Selection::One(0..1)),
            ("bytes=0-", Selection::One(0..100)),
            ("bytes=10-19", Selection::One(10..20)),
            ("Bytes=10-1000", Selection::One(10..100)),
            ("bytes=99-99999999999999999999999", Selection::One(99..100)),
            ("bytes=-5", Selection::One(95..100)),
            ("bytes=-500", Selection::One(0..100)),
            ("bytes= 1-2 ,", Selection::One(1..3)),
            ("bytes=100-", Selection::Unsatisfiable),
            ("bytes=99999999999999999999999-", Selection::Unsatisfiable),
            ("bytes=-0", Selection::Unsatisfiable),
            ("bytes=5-4", Selection::Whole),
            ("bytes=", Selection::Whole),
            ("bytes=,", Selection::Whole),
            ("bytes=-", Selection::Whole),
            ("bytes=a-b", Selection::Whole),
            ("bytes=1", Selection::Whole),
            ("bytes=--1", Selection::Whole),
            ("bytes=1-2-3", Selection::Whole),
            ("bytes=+1-2", Selection::Whole),
            ("items=0-1", Selection::Whole),
            ("", Selection::Whole),
        ] {
            assert_eq!(select(field.as_bytes(), 100), expected, "{field}");
        }
        assert_eq!(select(b"bytes=0-", 0), Selection::Unsatisfiable);
        assert_eq!(select(b"bytes=-1", 0), Selection::Unsatisfiable);
    }

    #[test]
    fn several_ranges_never_exceed_the_file() {
        assert_eq!(select(b"bytes=0-9,-10", 100), Selection::Many(vec![0..10, 90..100]));
        assert_eq!(select(b"bytes=50-59,0-9", 100), Selection::Many(vec![50..60, 0..10]));
        assert_eq!(select(b"bytes=0-9,200-", 100), Selection::One(0..10));
        assert_eq!(select(b"bytes=200-,300-", 100), Selection::Unsatisfiable);
        assert_eq!(select(b"bytes=0-,0-", 100), Selection::Whole);
        assert_eq!(select(b"bytes=0-9,5-4", 100), Selection::Whole);
        // Found by fuzzing: the sum of these does not fit into 64 bits.
        assert_eq!(select(b"bytes=18446744073709551614-,0-", u64::MAX), Selection::Whole);
        let many = |count| format!("bytes={}", vec!["0-0"; count].join(","));
        assert!(matches!(select(many(16).as_bytes(), 100), Selection::Many(_)));
        assert_eq!(select(many(17).as_bytes(), 100), Selection::Whole);
    }
}
