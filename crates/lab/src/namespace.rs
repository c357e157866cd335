//! A thread that has entered a network namespace of its own, and runs jobs there.

use std::cell::RefCell;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use nix::sched::{CloneFlags, unshare};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// Where a job is run: in the calling thread, or in a namespace.
pub(crate) enum Place {
    /// The network namespace the lab was started in.
    Here,
    /// An own one.
    Namespace(Namespace),
}

/// A network namespace. It exists as long as this value or any process started in it.
pub(crate) struct Namespace {
    jobs: Sender<Job>,
}

type Job = Box<dyn FnOnce() + Send>;

impl Place {
    /// Runs `job` there and returns what it returns. Processes started by the job live in the
    /// namespace, and as the thread lives as long as the place, so do processes that die with the
    /// thread that started them.
    pub(crate) fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let Place::Namespace(namespace) = self else { return job() };
        let (done, result) = channel();
        let job = move || {
            // The caller waits below, so the receiver is there.
            let _ = done.send(job());
        };
        namespace.jobs.send(Box::new(job)).expect("the namespace's thread lives as long as this");
        result.recv().expect("a job of the lab does not panic")
    }
}

impl Namespace {
    pub(crate) fn new() -> Result<Namespace, String> {
        let (jobs, inbox) = channel::<Job>();
        let (ready, entered) = channel();
        thread::spawn(move || {
            let outcome = enter();
            let in_namespace = outcome.is_ok();
            let _ = ready.send(outcome);
            if in_namespace {
                for job in inbox {
                    job();
                }
            }
        });
        entered.recv().map_err(|_| "the namespace's thread ended".to_owned())??;
        Ok(Namespace { jobs })
    }
}

thread_local! {
    static SYSFS: RefCell<Option<OwnedFd>> = const { RefCell::new(None) };
}

/// Leaves the network namespace of the process, for the calling thread only (unshare(2)).
fn enter() -> Result<(), String> {
    let step = |what: &'static str| move |errno: nix::Error| format!("{what}: {errno}");
    unshare(CloneFlags::CLONE_NEWNET).map_err(step("unshare(CLONE_NEWNET)"))?;
    let sysfs = sysfs().map_err(|errno| format!("mounting sysfs: {errno}"))?;
    SYSFS.set(Some(sysfs));
    Ok(())
}

/// The sysfs of the calling thread's network namespace, which is the one it was mounted from. It is mounted
/// nowhere: so it is in nobody's way, and works in a chroot as well, where `/` is no mount point.
fn sysfs() -> rustix::io::Result<OwnedFd> {
    let context = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(context.as_fd())?;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}

/// Where `/sys` of the calling thread's network namespace is.
pub(crate) fn sys() -> String {
    SYSFS.with_borrow(|sysfs| match sysfs {
        Some(sysfs) => format!("/proc/self/fd/{}", sysfs.as_raw_fd()),
        None => "/sys".to_owned(),
    })
}

pub(super) fn handle() -> Result<OwnedFd, String> {
    let path = "/proc/thread-self/ns/net";
    File::open(path).map(OwnedFd::from).map_err(|error| format!("{path}: {error}"))
}
