//! Networks of a test's own.

use nix::sched::{CloneFlags, unshare};
use nix::unistd::gettid;
use std::process::Command;
use std::sync::mpsc::{Sender, channel};
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

type Job = Box<dyn FnOnce() + Send>;

/// Another machine: a network namespace, with a thread in it, at the other end of a cable.
pub(crate) struct Machine(Sender<Job>);

impl Machine {
    /// Connected to the network namespace of this thread, which has to be one of a test's own:
    /// here as 10.8.8.1, there as 10.8.8.2.
    pub(crate) fn connected() -> Machine {
        let (jobs, inbox) = channel::<Job>();
        let (entered, thread_id) = channel();
        thread::spawn(move || {
            let outcome = unshare(CloneFlags::CLONE_NEWNET).map(|()| gettid());
            entered.send(outcome).expect("the test waits");
            inbox.into_iter().for_each(|job| job());
        });
        let there = thread_id.recv().expect("the thread").expect("a network namespace");
        assert!(ip(&format!("link add here type veth peer name there netns {there}")));
        let machine = Machine(jobs);
        assert!(machine.run(|| ip("address add 10.8.8.2/24 dev there") && ip("link set there up")));
        assert!(ip("address add 10.8.8.1/24 dev here") && ip("link set here up"));
        machine
    }

    /// Runs a function there. Sockets that it creates stay in that machine, for any user.
    pub(crate) fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = channel();
        let job = move || drop(done.send(job()));
        self.0.send(Box::new(job)).expect("the thread runs");
        result.recv().expect("a job without panic")
    }

    /// Cuts or restores the link. Peers behind a cut link vanish without FIN or reset.
    pub(crate) fn set_connected(&self, connected: bool) {
        let state = if connected { "up" } else { "down" };
        assert!(self.run(move || ip(&format!("link set there {state}"))));
    }
}
