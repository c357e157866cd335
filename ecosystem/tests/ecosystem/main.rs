//! Libraries as they come from their registry, on both engines.

mod examples;
#[path = "../../../crates/compat/tests/compat/support.rs"]
#[allow(dead_code, unused_imports, reason = "shared with the tests of the adapters")]
mod support;

fn main() -> std::process::ExitCode {
    testing::run(&[examples::TESTS])
}
