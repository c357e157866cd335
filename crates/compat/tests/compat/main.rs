//! The adapters and the examples, on both engines. Libraries run as they come from their registry.

#[macro_use]
mod support;

mod adapters;
mod examples;
mod hyper;

/// Hyper on simulated machines; run by `.ci/run`, as the feature is for tests only.
#[cfg(feature = "sim")]
#[path = "../../examples/simulated.rs"]
mod simulated;

#[cfg(feature = "sim")]
#[test]
fn hyper_works_on_simulated_machines() {
    let engines: Vec<_> = (1..=20).map(|seed| simulated::run(seed).expect("answers")).collect();
    for engine in ["epoll", "io_uring"] {
        assert!(engines.iter().any(|chosen| chosen == engine), "{engines:?}");
    }
}
