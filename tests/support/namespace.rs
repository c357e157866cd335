//! Networks of a test's own.

use nix::sched::{CloneFlags, unshare};
use std::process::Command;
use std::thread;

/// Runs a command of iproute2 in the network namespace of this thread.
fn ip(arguments: &str) -> bool {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    output.is_ok_and(|output| output.status.success())
}

/// Runs a test in a separate network namespace, whose loopback interface also has 10.9.9.1 to
/// 10.9.9.3: addresses that are not loopback, and reach no other machine. An ordinary user is root of a user
/// namespace there, where the kernel allows that.
pub(crate) fn in_a_namespace(test: impl FnOnce() + Send) {
    testing::needs_program("ip");
    testing::as_root_of_a_namespace(|| {
        // The namespace is that of the thread, and of the threads and processes that it starts.
        let in_it = || {
            unshare(CloneFlags::CLONE_NEWNET).expect("root may do that");
            assert!(ip("link set lo up"));
            assert!((1..=3).all(|last| ip(&format!("address add 10.9.9.{last}/32 dev lo"))));
            test();
        };
        thread::scope(|scope| scope.spawn(in_it).join())
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}
