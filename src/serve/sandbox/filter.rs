//! The system calls that a service may make once it is ready: seccomp(2).
//!
//! A call that is not on the list fails with EPERM. The process is not killed: an attacker gains nothing from a
//! refused call, and an unforeseen call, for example of another version of the C library, should not cost the
//! service. For the same reason threads are created by clone(2), whose flags a filter can see: clone3(2) fails
//! with ENOSYS, and the C library then uses clone(2).
//!
//! Calls without a condition run no filter: when a filter is installed, the kernel determines which
//! calls it allows with any arguments, and keeps them in a bitmap (since Linux 5.11, kernel/seccomp.c,
//! `seccomp_cache_prepare`). The calls of the hot paths are among them; their remaining cost is the
//! slow entry path that checks the bitmap. Conditions would not make them safer: they act on
//! descriptors that the process has, and no filter sees the addresses that their arguments point at.

use seccompiler::SeccompCmpOp::{self, Eq, MaskedEq};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};
use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use syscalls::Sysno;

/// Calls of every service: memory, threads, clocks, signals, output, exit. [`programs`] has rules for
/// clone3, clone and openat. std::process::exit calls pause while another thread does it.
const ALWAYS: &str = "\
    brk clock_gettime clock_nanosleep clone clone3 close exit exit_group futex getpid \
    getrandom getrusage gettid madvise mremap munmap nanosleep openat pause poll ppoll read \
    restart_syscall rseq rt_sigaction rt_sigprocmask rt_sigreturn sched_getaffinity sched_yield \
    set_robust_list sigaltstack write writev";

/// The io_uring engine; its file descriptor already exists.
const URING: &str = "io_uring_enter";

/// The epoll engine, which the admin service always uses.
const EPOLL: &str = "epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd2";

/// Connections that exist or are accepted, and datagrams. New sockets cannot be opened: that needs socket(2) and
/// connect(2), or a socket that is not connected, see [`Needs::conditional`].
const SOCKETS: &str = "\
    accept4 getpeername getsockname getsockopt recvfrom recvmmsg recvmsg sendmmsg sendmsg sendto \
    setsockopt";

/// Files beneath directories that are open. (openat2 takes any path; Landlock limits it.)
const FILES: &str = "\
    cachestat fstat fstatfs getdents64 lseek newfstatat openat2 pread64 preadv2 sendfile statx";

/// Files by their names: configuration, certificates, the access log, /proc/self. Landlock limits
/// which. A reload checks roots. (musl uses the older calls.)
const PATHS: &str = "\
    faccessat faccessat2 fstat getdents64 lseek lstat newfstatat open stat statx";

/// The allowed commands of fcntl(2). Not F_SETOWN and F_SETSIG, which make the kernel send any signal
/// to any process of this user when a packet arrives.
const DESCRIPTOR_COMMANDS: [libc::c_int; 5] =
    [libc::F_DUPFD_CLOEXEC, libc::F_GETFD, libc::F_SETFD, libc::F_GETFL, libc::F_SETFL];

/// A number of `enum io_uring_register_op`: unregistering the ring at the end.
const UNREGISTER_RING_FDS: u64 = 21;

const PROT_EXEC: u64 = libc::PROT_EXEC as u64;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Needs {
    pub(super) uring: bool,
    /// Beneath open directories.
    pub(super) files: bool,
    /// Files are opened by their names.
    pub(super) paths: bool,
}

/// A call, and what one of its arguments must be.
type Conditional = (&'static str, u8, SeccompCmpOp, u64);

impl Needs {
    /// Those of all services on both engines together.
    pub(super) const ALL: Needs = Needs { uring: true, files: true, paths: true };

    fn calls(self) -> Vec<&'static str> {
        let groups = [
            (true, ALWAYS),
            (true, EPOLL),
            (true, SOCKETS),
            (self.uring, URING),
            (self.files, FILES),
            (self.paths, PATHS),
        ];
        let needed = groups.into_iter().filter(|(needed, _)| *needed);
        needed.flat_map(|(_, calls)| calls.split_whitespace()).collect()
    }

    fn conditional(self) -> Vec<Conditional> {
        let mut calls = vec![
            // No memory may become executable.
            ("mmap", 2, MaskedEq(PROT_EXEC), 0),
            ("mprotect", 2, MaskedEq(PROT_EXEC), 0),
            // A panic ends the process by a signal to its own thread.
            ("tgkill", 0, Eq, u64::from(std::process::id())),
            ("prctl", 0, Eq, libc::PR_SET_NAME as u64),
            // Limits may be read, not set.
            ("prlimit64", 2, Eq, 0),
            // The sending half only. A listener whose receiving half is shut down becomes an unconnected socket, and
            // a send with MSG_FASTOPEN connects that to any address, unseen by Landlock
            // (https://github.com/landlock-lsm/linux/issues/41) and, from a ring, by this filter.
            ("shutdown", 1, Eq, libc::SHUT_WR as u64),
        ];
        calls.extend(DESCRIPTOR_COMMANDS.map(|command| ("fcntl", 1, Eq, command as u64)));
        calls.extend(self.uring.then_some(("io_uring_register", 1, Eq, UNREGISTER_RING_FDS)));
        calls
    }

    /// The system calls that are allowed, with any or with certain arguments.
    pub(super) fn names(self) -> BTreeSet<&'static str> {
        let conditional = self.conditional().into_iter().map(|(name, ..)| name);
        self.calls().into_iter().chain(conditional).collect()
    }
}

/// Filters all threads of this process, including later ones. `attempts` if forbidden calls will be tried.
pub(super) fn install(needs: Needs, attempts: bool) -> Result<(), String> {
    // In debug builds an unforeseen call ends the process, so that tests notice what the list lacks.
    let unforeseen = match cfg!(debug_assertions) && !attempts {
        true => SeccompAction::Trap,
        false => SeccompAction::Errno(libc::EPERM as u32),
    };
    for program in programs(needs, unforeseen).map_err(|error| error.to_string())? {
        seccompiler::apply_filter_all_threads(&program).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// The most severe result of all filters counts. The list comes last: it forbids further filters.
fn programs(needs: Needs, unforeseen: SeccompAction) -> Result<Vec<BpfProgram>, BackendError> {
    let no_clone3 = one_call("clone3", Vec::new(), libc::ENOSYS)?;
    let process = rule(0, MaskedEq(libc::CLONE_THREAD as u64), 0)?;
    let no_process = one_call("clone", vec![process], libc::EPERM)?;
    let mut programs = vec![no_clone3, no_process];
    if !needs.paths {
        // The C library tries to read /proc/sys/vm/overcommit_memory before it returns memory (glibc,
        // malloc/arena.c, `check_may_shrink_heap`), and works without it.
        programs.push(one_call("openat", Vec::new(), libc::EPERM)?);
    }
    programs.push(list(needs, unforeseen)?);
    Ok(programs)
}

/// Answers one call with an errno and leaves all others to other filters.
fn one_call(
    name: &str,
    rules: Vec<SeccompRule>,
    errno: libc::c_int,
) -> Result<BpfProgram, BackendError> {
    let rules = BTreeMap::from_iter(number_of(name).map(|number| (number, rules)));
    compile(rules, SeccompAction::Allow, SeccompAction::Errno(errno as u32))
}

/// Allows the needed calls and refuses all others.
fn list(needs: Needs, unforeseen: SeccompAction) -> Result<BpfProgram, BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for (name, argument, test, value) in needs.conditional() {
        if let Some(number) = number_of(name) {
            rules.entry(number).or_default().push(rule(argument, test, value)?);
        }
    }
    let unconditional = needs.calls();
    rules.extend(unconditional.into_iter().filter_map(number_of).map(|call| (call, Vec::new())));
    compile(rules, unforeseen, SeccompAction::Allow)
}

fn compile(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    otherwise: SeccompAction,
    on_match: SeccompAction,
) -> Result<BpfProgram, BackendError> {
    let architecture = TargetArch::try_from(std::env::consts::ARCH)?;
    SeccompFilter::new(rules, otherwise, on_match, architecture)?.try_into()
}

fn rule(argument: u8, test: SeccompCmpOp, value: u64) -> Result<SeccompRule, BackendError> {
    // The new limits of prlimit64(2) are a pointer.
    let width = match (argument, &test) {
        (2, Eq) => SeccompCmpArgLen::Qword,
        _ => SeccompCmpArgLen::Dword,
    };
    SeccompRule::new(vec![SeccompCondition::new(argument, width, test, value)?])
}

/// `None` for a call that this architecture does not have, such as epoll_wait on AArch64.
pub(super) fn number_of(name: &str) -> Option<i64> {
    Sysno::from_str(name).ok().map(|call| i64::from(call.id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel keeps calls without conditions in a bitmap. A condition on one of these would run every filter
    /// for every request: SIOCOUTQ had one, and was called before each send of several datagrams.
    #[test]
    fn calls_of_the_hot_paths_have_no_conditions() {
        let hot = "epoll_pwait epoll_pwait2 epoll_ctl io_uring_enter read ppoll futex recvfrom sendto sendmsg accept4 close \
                   getpeername setsockopt openat2 statx pread64 preadv2 sendfile recvmmsg sendmmsg recvmsg getsockopt";
        let free = Needs::ALL.calls();
        let conditional = Needs::ALL.conditional();
        for call in hot.split_whitespace() {
            assert!(free.contains(&call), "{call}");
            assert!(conditional.iter().all(|(name, ..)| *name != call), "{call}");
        }
    }

    #[test]
    fn no_list_has_what_would_be_a_way_out() {
        let never = "socket connect bind listen execve io_uring_setup io_uring_register kill ptrace shutdown fcntl \
                     ioctl prctl mmap mprotect";
        let all = Needs::ALL.calls();
        assert!(never.split_whitespace().all(|call| !all.contains(&call)), "{all:?}");
        assert!(!DESCRIPTOR_COMMANDS.contains(&libc::F_SETOWN));
        let least = Needs::default().calls();
        let not_needed = ["open", "openat2", "statx", "sendfile", "io_uring_enter"];
        assert!(not_needed.iter().all(|call| !least.contains(call)), "{least:?}");
    }
}
