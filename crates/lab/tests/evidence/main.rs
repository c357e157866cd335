//! What is concluded from records of runs, and how it is told. No process is started here but editors of bundles,
//! and in `experiments` servers and load generators with known faults.

#[path = "../common/mod.rs"]
mod common;

mod checks;
mod compressed;
mod decisions;
mod experiments;
mod foreign_files;
mod pages;
mod tampering;

fn main() -> std::process::ExitCode {
    testing::run(&[
        checks::TESTS,
        compressed::TESTS,
        decisions::TESTS,
        experiments::accounting::TESTS,
        experiments::bundles::TESTS,
        experiments::faults::TESTS,
        experiments::http_faults::TESTS,
        experiments::interrupted::TESTS,
        experiments::networks::TESTS,
        experiments::peers::TESTS,
        experiments::udp_faults::TESTS,
        foreign_files::TESTS,
        pages::TESTS,
        tampering::TESTS,
    ])
}
