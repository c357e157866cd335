//! Handles missing requirements of tests. A suite that cannot run a configuration fails, so that
//! nothing untested counts as tested.

use std::fmt::Display;

/// Names what the environment may lack, separated by commas: `root`, `io_uring`, `nginx`,
/// `chromium`, `sshd`, `iproute2`, `perf`, `slurm`, `podman`, `systemd-nspawn`, `h2spec`.
const MAY_SKIP: &str = "TWINRING_TEST_MAY_SKIP";

/// Fails the test, unless the environment allows it to be skipped for lack of this.
#[track_caller]
pub(crate) fn missing(what: &str, why: impl Display) {
    let allowed = std::env::var(MAY_SKIP).unwrap_or_default();
    if !allowed.split(',').any(|it| it.trim() == what) {
        panic!("{what} is missing: {why}. To skip tests that need it: {MAY_SKIP}={what}");
    }
    println!("skipped for want of {what}: {why}");
}

/// Whether this is root; otherwise the test is skipped, if allowed.
#[track_caller]
pub(crate) fn is_root() -> bool {
    let is_root = nix::unistd::geteuid().is_root();
    if !is_root {
        missing("root", "this test changes users, mounts or networks");
    }
    is_root
}
