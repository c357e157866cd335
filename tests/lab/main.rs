//! `twinring lab`, `compare` and `advise`, from the command line to the bundle and the page.

#[path = "../support/mod.rs"]
mod support;

mod commands;
mod measured;
mod peers;
mod protocols;
mod runs;
mod slurm;
mod tcp;

fn main() -> std::process::ExitCode {
    testing::run(&[
        commands::TESTS,
        peers::TESTS,
        protocols::TESTS,
        runs::TESTS,
        slurm::LONG_TESTS,
        tcp::TESTS,
    ])
}
