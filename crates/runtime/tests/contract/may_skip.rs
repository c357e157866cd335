//! Tests that something is missing for.

/// Names, separated by commas, of what tests may do without.
const MAY_SKIP: &str = "TWINRING_TEST_MAY_SKIP";

/// Skips a test, which passes only if the environment allows it: otherwise a suite that skips its
/// main subject would be green.
///
/// # Panics
/// Unless `name` is in `TWINRING_TEST_MAY_SKIP`.
pub(crate) fn skip(name: &str, why: impl std::fmt::Display) {
    let allowed = std::env::var(MAY_SKIP).unwrap_or_default();
    assert!(
        allowed.split(',').any(|allowed| allowed.trim() == name),
        "{why}; to skip what needs it, set {MAY_SKIP}={name} (further names after commas)"
    );
    println!("SKIPPED ({name}): {why}");
}
