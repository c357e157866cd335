//! What tests do where something is missing that they need. A suite that cannot run a configuration
//! fails, so that nobody takes for tested what was not.

use std::fmt::Display;

/// Names what the environment may lack, separated by commas: `root`, `io_uring`, `nginx`,
/// `chromium`, `sshd`, `iproute2`, `perf`.
const MAY_SKIP: &str = "TWINRING_TEST_MAY_SKIP";

/// Fails the test, unless the environment says that it may be skipped for want of this.
#[track_caller]
pub(crate) fn missing(what: &str, why: impl Display) {
    let allowed = std::env::var(MAY_SKIP).unwrap_or_default();
    if !allowed.split(',').any(|it| it.trim() == what) {
        panic!("{what} is missing: {why}. To skip tests that need it: {MAY_SKIP}={what}");
    }
    println!("skipped for want of {what}: {why}");
}

/// Whether this is root; without, the test is to be skipped, if it may be.
#[track_caller]
pub(crate) fn is_root() -> bool {
    let is_root = nix::unistd::geteuid().is_root();
    if !is_root {
        missing("root", "this test changes users, mounts or networks");
    }
    is_root
}
