//! Seeds that once found something, and the promise that a seed is worth keeping.
#![cfg(feature = "sim")]

use twinring::sim::Faults;
use twinring_soak::{Kind, run, run_with};

#[test]
fn a_seed_says_everything() {
    for kind in [Kind::Echo, Kind::Udp] {
        for seed in [11, 12] {
            assert_eq!(run(seed, Some(kind)), run(seed, Some(kind)), "{kind} {seed}");
        }
    }
}

/// Files are those of the real filesystem, and the order of a hash table may differ; what is served
/// does not.
#[test]
fn files_are_served_the_same_way_each_time() {
    let answered = || run_with(13, Some(Kind::Http), Faults::none()).answered;
    let first = answered();
    assert!(first > 0);
    assert_eq!(first, answered());
}

#[test]
fn every_kind_runs_without_faults() {
    for kind in [Kind::Echo, Kind::Udp, Kind::Http] {
        let outcome = run_with(14, Some(kind), Faults::none());
        assert!(outcome.answered > 0 && outcome.summary.injected.is_empty(), "{outcome:?}");
    }
}
