//! Libraries as they come from their registry, on both engines.

#[path = "../../../crates/compat/tests/compat/support.rs"]
#[allow(dead_code, unused_imports, reason = "shared with the tests of the adapters")]
#[macro_use]
mod support;

mod examples;

fn main() -> std::process::ExitCode {
    testing::run(&[examples::TESTS])
}
