//! Hyper on simulated machines: server, client and engines with the faults of twenty seeds.

#[path = "../examples/simulated.rs"]
mod simulated;

#[test]
fn hyper_answers_on_every_seed() {
    let engines: Vec<_> = (1..=20).map(|seed| simulated::run(seed).expect("answers")).collect();
    for engine in ["epoll", "io_uring"] {
        assert!(engines.iter().any(|chosen| chosen == engine), "{engines:?}");
    }
}
