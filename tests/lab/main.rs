//! `twinring lab`, `compare` and `advise`, from the command line to the bundle and the page.

mod commands;
mod peers;
mod protocols;
mod runs;
mod slurm;
mod support;
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
