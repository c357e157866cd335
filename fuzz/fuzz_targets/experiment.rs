//! Experiment files of the lab: an accepted file has cells and subjects within bounds, and does not
//! change without options.
#![no_main]

use libfuzzer_sys::fuzz_target;
use twinring_lab::{Experiment, NetKind};

fuzz_target!(|text: &str| {
    let experiment = match Experiment::from_toml(text, "x.toml") {
        Ok(experiment) => experiment,
        Err(error) => {
            assert!(error.to_string().contains("x.toml"), "{error}");
            return;
        }
    };
    assert!(experiment.pairs > 0 && !experiment.subjects.is_empty());
    let cells = experiment.cells(&[NetKind::Lo]);
    assert!(!cells.is_empty());
    for protocol in experiment.protocols() {
        let (warmup_s, window_s) = experiment.pace_s(protocol);
        assert!(warmup_s >= 0.0 && window_s > 0.0 && window_s.is_finite());
        assert!(!experiment.subjects_of(protocol).is_empty());
    }
    let same = experiment.clone().checked().expect("it was taken before");
    assert_eq!(same, experiment);
});
