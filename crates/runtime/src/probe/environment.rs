//! The environment of this process as far as io_uring is concerned: kernel settings, restrictions
//! of the process, its container and limits, read from files and system calls.

use rustix::process::{Resource, getrlimit};
use serde::Serialize;
use std::fs;
use std::path::Path;

/// The container of this process, by its traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Container {
    /// Docker.
    Docker,
    /// Podman or another user of libpod.
    Podman,
    /// A pod of Kubernetes.
    Kubernetes,
    /// systemd-nspawn.
    Nspawn,
    /// LXC or an unknown one.
    Other,
}

/// A resource limit; `None` is unlimited.
#[cfg_attr(test, derive(Default))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Limit {
    /// In force.
    pub soft: Option<u64>,
    /// How far a process without privileges may raise it.
    pub hard: Option<u64>,
}

impl Limit {
    fn of(resource: Resource) -> Limit {
        let limit = getrlimit(resource);
        Limit { soft: limit.current, hard: limit.maximum }
    }
}

/// The restrictions between this process and io_uring. `None`: not known.
#[cfg_attr(test, derive(Default))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Environment {
    /// Release of the running kernel, as `uname -r`.
    pub kernel: String,
    /// Its version, as `uname -v`; Debian names its stable release there.
    pub kernel_version: String,
    /// /proc/version_signature, where Ubuntu names its stable release.
    pub kernel_signature: Option<String>,
    /// kernel.io_uring_disabled (Linux 6.6): 0 allows all processes, 1 only privileged ones and a group, 2
    /// none.
    pub io_uring_disabled: Option<u8>,
    /// kernel.io_uring_group: the group that 1 allows; -1 is none.
    pub io_uring_group: Option<i64>,
    /// This process is in that group.
    pub in_io_uring_group: bool,
    /// CAP_SYS_ADMIN in the first user namespace: may at 1.
    pub cap_sys_admin: bool,
    /// CAP_IPC_LOCK in the first user namespace: memlock is not charged.
    pub cap_ipc_lock: bool,
    /// A seccomp filter decides on each system call of this thread.
    pub seccomp_filter: Option<bool>,
    /// Container, by its traces.
    pub container: Option<Container>,
    /// Active security modules; empty if none or not known.
    pub security_modules: Vec<String>,
    /// RLIMIT_MEMLOCK.
    pub memlock_bytes: Limit,
    /// RLIMIT_NOFILE.
    pub nofile: Limit,
}

const CAP_IPC_LOCK: u32 = 14;
const CAP_SYS_ADMIN: u32 = 21;

impl Environment {
    /// Reads the running system.
    pub fn read() -> Environment {
        Environment::read_below(Path::new("/"))
    }

    /// The same with the files below `root`.
    pub(super) fn read_below(root: &Path) -> Environment {
        let text = |path: &str| fs::read_to_string(root.join(path)).ok();
        let number = |path: &str| text(path)?.trim().parse::<i64>().ok();
        let status = text("proc/thread-self/status").unwrap_or_default();
        let field = |name: &str| {
            status
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
                .map(str::trim)
        };
        let first_namespace = text("proc/self/uid_map")
            .is_none_or(|map| map.split_ascii_whitespace().eq(["0", "0", "4294967295"]));
        let capabilities = field("CapEff")
            .and_then(|hex| u64::from_str_radix(hex, 16).ok())
            .filter(|_| first_namespace)
            .unwrap_or(0);
        let group = number("proc/sys/kernel/io_uring_group");
        let mut groups = ["Groups", "Gid"].into_iter().filter_map(field).flat_map(|line| {
            line.split_ascii_whitespace().filter_map(|group| group.parse::<i64>().ok())
        });
        let system = rustix::system::uname();
        Environment {
            kernel: system.release().to_string_lossy().into_owned(),
            kernel_version: system.version().to_string_lossy().into_owned(),
            kernel_signature: text("proc/version_signature").map(|text| text.trim().to_owned()),
            io_uring_disabled: number("proc/sys/kernel/io_uring_disabled").map(|n| n as u8),
            io_uring_group: group,
            in_io_uring_group: group.is_some_and(|group| groups.any(|other| other == group)),
            cap_sys_admin: capabilities >> CAP_SYS_ADMIN & 1 == 1,
            cap_ipc_lock: capabilities >> CAP_IPC_LOCK & 1 == 1,
            seccomp_filter: field("Seccomp").map(|mode| mode != "0"),
            container: container(root, &text("proc/self/cgroup").unwrap_or_default()),
            security_modules: text("sys/kernel/security/lsm")
                .map(|list| list.trim().split(',').map(str::to_owned).collect())
                .unwrap_or_default(),
            memlock_bytes: Limit::of(Resource::Memlock),
            nofile: Limit::of(Resource::Nofile),
        }
    }

    /// True if only the capabilities of this process allow it to create rings:
    /// kernel.io_uring_disabled is 1, and it is not in the allowed group.
    pub fn rings_need_capabilities(&self) -> bool {
        self.io_uring_disabled == Some(1) && !self.in_io_uring_group
    }

    /// kernel.io_uring_disabled forbids io_uring to this process.
    pub(super) fn sysctl_refuses(&self) -> bool {
        match self.io_uring_disabled {
            Some(1) => self.rings_need_capabilities() && !self.cap_sys_admin,
            Some(disabled) => disabled >= 2,
            None => false,
        }
    }
}

fn container(root: &Path, cgroup: &str) -> Option<Container> {
    let exists = |path: &str| root.join(path).exists();
    let manager = fs::read_to_string(root.join("run/host/container-manager"));
    let kinds = [
        // Its pods run on one of the other container engines.
        (
            Container::Kubernetes,
            exists("var/run/secrets/kubernetes.io") || cgroup.contains("kubepods"),
        ),
        (Container::Podman, exists("run/.containerenv") || cgroup.contains("libpod")),
        (Container::Docker, exists(".dockerenv") || cgroup.contains("docker")),
        (Container::Nspawn, manager.is_ok_and(|name| name.trim() == "systemd-nspawn")),
        (Container::Other, exists("run/systemd/container") || cgroup.contains("lxc")),
    ];
    kinds.into_iter().find_map(|(kind, found)| found.then_some(kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory in place of `/`.
    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn the_layers_are_read_from_their_files() {
        let status = "Gid:\t100\t100\t100\t100\nGroups:\t7 990 \nCapEff:\t0000000000204000\n\
                      Seccomp:\t2\n";
        let root = tree(&[
            ("proc/thread-self/status", status),
            ("proc/self/uid_map", "         0          0 4294967295\n"),
            ("proc/self/cgroup", "0::/kubepods/besteffort/pod1\n"),
            ("proc/sys/kernel/io_uring_disabled", "1\n"),
            ("proc/sys/kernel/io_uring_group", "990\n"),
            ("sys/kernel/security/lsm", "capability,selinux\n"),
            (".dockerenv", ""),
        ]);
        let env = Environment::read_below(root.path());
        assert_eq!((env.io_uring_disabled, env.io_uring_group), (Some(1), Some(990)));
        assert!(env.in_io_uring_group && env.cap_sys_admin && env.cap_ipc_lock);
        let (cap_sys_admin, cap_ipc_lock) = (false, false);
        let dropped = Environment { cap_sys_admin, cap_ipc_lock, ..env.clone() };
        assert!(!dropped.sysctl_refuses() && !dropped.rings_need_capabilities());
        let other_group = Environment { in_io_uring_group: false, ..dropped };
        assert!(other_group.sysctl_refuses() && other_group.rings_need_capabilities());
        assert_eq!(env.seccomp_filter, Some(true));
        assert_eq!(env.container, Some(Container::Kubernetes));
        assert_eq!(env.security_modules, ["capability", "selinux"]);
        let other = tree(&[("run/host/container-manager", "systemd-nspawn")]);
        let env = Environment::read_below(other.path());
        assert_eq!(env.container, Some(Container::Nspawn));
        // In its own user namespace a process has capabilities without effect here.
        fs::write(root.path().join("proc/self/uid_map"), "0 1000 1\n").unwrap();
        let env = Environment::read_below(root.path());
        assert!(!env.cap_sys_admin && !env.cap_ipc_lock);
        let env = Environment::read_below(&root.path().join("nowhere"));
        assert_eq!((env.io_uring_disabled, env.seccomp_filter), (None, None));
    }
}
