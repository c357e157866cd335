//! The adapters and the examples, on both engines. Libraries run as they come from their registry.

#[macro_use]
mod support;

mod adapters;
mod hyper;

fn main() -> std::process::ExitCode {
    testing::run(&[adapters::TESTS, hyper::TESTS])
}
