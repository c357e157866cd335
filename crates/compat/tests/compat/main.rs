//! The adapters and the examples, on both engines. Libraries run as they come from their registry.

mod adapters;
mod hyper;
mod support;

fn main() -> std::process::ExitCode {
    testing::run(&[adapters::TESTS, hyper::TESTS])
}
