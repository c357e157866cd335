//! `Accept-Encoding`: the chosen coding exists and is accepted, independent of the order of the
//! list.
#![no_main]

use libfuzzer_sys::fuzz_target;
use twinring_services::http::encoding::{Coding, choose};

const ALL: [Coding; 4] = [Coding::Brotli, Coding::Zstd, Coding::Gzip, Coding::Identity];

fuzz_target!(|bytes: &[u8]| {
    let Some((mask, field)) = bytes.split_first() else { return };
    let is_there = |(index, coding): (usize, Coding)| {
        (mask >> index & 1 == 1 || coding == Coding::Identity).then_some(coding)
    };
    let available: Vec<Coding> = ALL.into_iter().enumerate().filter_map(is_there).collect();
    let chosen_by = |lines: &[&[u8]]| {
        let index = choose(lines.iter().copied(), available.iter().copied());
        available[index]
    };
    let chosen = chosen_by(&[field]);
    // Several lines are one list.
    let lines: Vec<&[u8]> = field.split(|byte| *byte == b',').collect();
    assert_eq!(chosen_by(&lines), chosen);
    if chosen != Coding::Identity {
        let name = chosen.name().as_bytes();
        let lower = field.to_ascii_lowercase();
        assert!(lower.windows(name.len()).any(|part| part == name) || field.contains(&b'*'));
    }
    // A client that accepts only the identity gets it.
    assert_eq!(chosen_by(&[field, b"br;q=0, gzip;q=0, zstd;q=0"]), Coding::Identity);
});
