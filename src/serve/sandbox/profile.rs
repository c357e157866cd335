//! Filters of system calls for the layers around a server: containers and service managers. Those
//! filters are there before the server starts, so they also have to allow what the C library does at
//! its start and what the server does before it is ready. From then on, its own filter is narrower.

use super::filter::{Needs, number_of};
use clap::ValueEnum;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The program and its C library, until `main`. (aarch64 has no access, arch_prctl and readlink; it
/// uses faccessat and readlinkat.)
const PROGRAM: &str = "\
    access arch_prctl execve faccessat getcwd readlink readlinkat set_tid_address uname";

/// A server until it is ready: it tries the features of the kernel, binds its addresses, creates its
/// rings, opens its log, and gives up its rights. (musl makes its other threads change the user, too,
/// by tkill.)
const SERVER: &str = "\
    bind capget capset connect fchown geteuid getgroups getresgid getresuid io_uring_setup \
    landlock_add_rule landlock_create_ruleset landlock_restrict_self listen sched_setaffinity \
    seccomp setgroups setresgid setresuid setuid socket socketpair tkill";

/// runc and crun, between their filter and the execution of the program. (A container without
/// no_new_privs is filtered before the change of user and capabilities.) Found by leaving out one
/// call after the other, with runc 1.1 and crun 1.8.
const CONTAINER_RUNTIME: &str = "chdir getppid pselect6 setgid";

/// The families of a server's sockets.
const FAMILIES: [libc::c_int; 3] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6];

/// Who applies the filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Docker, containerd, podman, CRI-O and Kubernetes: a complete profile, as JSON.
    Oci,
    /// A unit of systemd: a drop-in with a complete list.
    Systemd,
    /// systemd-nspawn: what a container may do in addition to nspawn's own list.
    Nspawn,
}

/// The filter that all servers of `twinring serve` need on this architecture, and no more.
pub(crate) fn profile(format: Format) -> Result<String, String> {
    match format {
        Format::Oci => oci().map(|profile| format!("{profile:#}\n")),
        // The empty list makes it replace that of the unit; others would add up.
        Format::Systemd => Ok(format!(
            "[Service]\nSystemCallArchitectures=native\nSystemCallFilter=\n{}\
             SystemCallErrorNumber=EPERM\n",
            lines(&server())
        )),
        Format::Nspawn => Ok(format!("[Exec]\n{}", lines(&server()))),
    }
}

/// The calls of a server from its first to its last.
fn server() -> BTreeSet<&'static str> {
    let start = [PROGRAM, SERVER].into_iter().flat_map(str::split_whitespace);
    Needs::ALL.names().into_iter().chain(start).filter(|name| number_of(name).is_some()).collect()
}

/// A profile as in the OCI runtime specification, `linux.seccomp`. All container engines read it; some
/// do not know extensions of others, such as `archMap`.
fn oci() -> Result<Value, String> {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "SCMP_ARCH_X86_64",
        "aarch64" => "SCMP_ARCH_AARCH64",
        "riscv64" => "SCMP_ARCH_RISCV64",
        other => return Err(format!("no profile is known for the architecture {other}")),
    };
    let mut names = server();
    names.extend(CONTAINER_RUNTIME.split_whitespace().filter(|name| number_of(name).is_some()));
    // These have conditions below.
    names.retain(|name| !["clone", "clone3", "socket"].contains(name));
    let thread = libc::CLONE_THREAD;
    let mut calls = vec![
        json!({"names": names, "action": "SCMP_ACT_ALLOW"}),
        // Threads, not processes. A filter cannot see the flags of clone3; without it the C library
        // uses clone.
        json!({"names": ["clone"], "action": "SCMP_ACT_ALLOW", "args": [
            {"index": 0, "value": thread, "valueTwo": thread, "op": "SCMP_CMP_MASKED_EQ"},
        ]}),
        json!({"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": libc::ENOSYS}),
    ];
    calls.extend(FAMILIES.map(|family| {
        json!({"names": ["socket"], "action": "SCMP_ACT_ALLOW", "args": [
            {"index": 0, "value": family, "op": "SCMP_CMP_EQ"},
        ]})
    }));
    Ok(json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": libc::EPERM,
        "architectures": [architecture],
        "syscalls": calls,
    }))
}

/// Lines of `SystemCallFilter=`; several add up.
fn lines(names: &BTreeSet<&str>) -> String {
    let words = names.iter().copied().collect::<Vec<_>>().join(" ");
    twinring_lab::wrapped(&words, "SystemCallFilter=", "SystemCallFilter=").join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_system_call() {
        let more = [PROGRAM, SERVER, CONTAINER_RUNTIME].into_iter().flat_map(str::split_whitespace);
        for name in Needs::ALL.names().into_iter().chain(more) {
            assert!(number_of(name).is_some() || cfg!(not(target_arch = "x86_64")), "{name}");
        }
    }
}
