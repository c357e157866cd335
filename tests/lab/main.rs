//! `twinring lab`, from the command line to the bundle.

mod compare;
mod http;
mod measurements;
mod pages;
mod peers;
mod quick;
mod runs;
mod slurm;
mod support;
mod tcp;
mod udp;

fn main() -> std::process::ExitCode {
    testing::run(&[
        compare::TESTS,
        http::TESTS,
        measurements::TESTS,
        pages::TESTS,
        peers::TESTS,
        quick::TESTS,
        runs::TESTS,
        slurm::LONG_TESTS,
        tcp::TESTS,
        udp::TESTS,
    ])
}
