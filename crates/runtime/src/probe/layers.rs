//! Finds the layer that refuses: kernel, sysctl, seccomp, limits. The errno does not distinguish
//! them, so each layer is checked separately, and the result names the one to change and how.

use super::environment::{Container, Environment};
use serde::Serialize;
use std::fmt;
use std::io;

/// The refusing layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// The options name what another layer refuses, or CPUs that cannot be used.
    Options,
    /// The kernel is too old or was built without it.
    Kernel,
    /// kernel.io_uring_disabled.
    Sysctl,
    /// A seccomp filter, usually of the container runtime.
    Seccomp,
    /// SELinux or another security module.
    SecurityModule,
    /// A filter on the operations of a ring (Linux 7.0).
    OperationFilter,
    /// RLIMIT_MEMLOCK.
    Memlock,
    /// Memory or descriptors have run out.
    Resources,
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Layer::Options => "the options",
            Layer::Kernel => "the kernel",
            Layer::Sysctl => "sysctl",
            Layer::Seccomp => "seccomp",
            Layer::SecurityModule => "a security module",
            Layer::OperationFilter => "a filter on ring operations",
            Layer::Memlock => "RLIMIT_MEMLOCK",
            Layer::Resources => "exhausted resources",
        })
    }
}

/// Why io_uring, or one of its features, cannot be used. Displays as one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// The layer that refuses.
    pub layer: Layer,
    /// The refused feature, with the evidence.
    pub what: String,
    /// The fix.
    pub fix: String,
}

impl Refusal {
    pub(super) fn new(layer: Layer, what: impl Into<String>, fix: impl Into<String>) -> Refusal {
        Refusal { layer, what: what.into(), fix: fix.into() }
    }

    /// True if `auto` may use epoll instead. Not if the options name an unsupported feature, nor if
    /// memory or descriptors have run out: epoll would fail next, or hide it.
    pub fn allows_fallback(&self) -> bool {
        !matches!(self.layer, Layer::Options | Layer::Resources)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; fix: {}", self.what, self.fix)
    }
}

impl std::error::Error for Refusal {}

/// Explains why io_uring_setup failed; `blocked` are other calls of io_uring that fail.
pub(super) fn setup_refused(error: &io::Error, env: &Environment, blocked: &[&str]) -> Refusal {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    let denied = matches!(errno, libc::EPERM | libc::EACCES);
    let filtered = env.seccomp_filter == Some(true);
    match errno {
        libc::EPERM if env.sysctl_refuses() => {
            let mut refusal = sysctl(env);
            if filtered && !blocked.is_empty() {
                refusal.what.push_str(", and seccomp refuses it too");
                refusal.fix = format!("{}; then {}", refusal.fix, seccomp_fix(env));
            }
            refusal
        }
        libc::EPERM | libc::EACCES | libc::ENOSYS if filtered => {
            // Unless the kernel shows that it has io_uring, only the filter is certain.
            let sure = denied || env.io_uring_disabled.is_some() || blocked.len() < 2;
            let doubt = if sure { "" } else { ", or the kernel was built without io_uring" };
            let what = format!(
                "seccomp refuses io_uring: io_uring_setup: {error}, and a filter is on this \
                 process{doubt}"
            );
            Refusal::new(Layer::Seccomp, what, seccomp_fix(env))
        }
        libc::ENOSYS => Refusal::new(
            Layer::Kernel,
            format!("the kernel ({}) has no io_uring: io_uring_setup: {error}", env.kernel),
            "run a kernel with CONFIG_IO_URING, Linux 6.1 or newer",
        ),
        libc::EPERM | libc::EACCES => {
            let modules = match env.security_modules.as_slice() {
                [] => "not listed here".to_owned(),
                modules => modules.join(", "),
            };
            let what = format!(
                "a security module refuses io_uring: io_uring_setup: {error}, but neither sysctl nor \
                 seccomp forbids it (active modules: {modules})"
            );
            let fix = "find the denial in the audit log (SELinux: `ausearch -m avc -c twinring`) \
                       and allow the io_uring permissions it names";
            Refusal::new(Layer::SecurityModule, what, fix)
        }
        _ if is_exhaustion(error) => exhausted(error, env),
        _ => Refusal::new(
            Layer::Kernel,
            format!("the kernel ({}) refuses io_uring: io_uring_setup: {error}", env.kernel),
            "run Linux 6.1 or newer",
        ),
    }
}

/// Setup works, but other calls of io_uring are blocked.
pub(super) fn calls_blocked(blocked: &[&str], env: &Environment) -> Refusal {
    let what = format!("seccomp refuses {} (io_uring_setup is allowed)", blocked.join(" and "));
    Refusal::new(Layer::Seccomp, what, seccomp_fix(env))
}

/// Explains why a feature was refused although rings work. `feature` is its name in the kernel.
pub(super) fn feature_refused(
    feature: &str,
    since: &str,
    error: &io::Error,
    env: &Environment,
) -> Refusal {
    match error.raw_os_error().unwrap_or(libc::EIO) {
        libc::EPERM | libc::EACCES => Refusal::new(
            Layer::OperationFilter,
            format!("{feature} is filtered ({error})"),
            "allow it in the restrictions that this process inherited, or in the policy of the \
             security module",
        ),
        _ if is_exhaustion(error) => exhausted(error, env),
        libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP => Refusal::new(
            Layer::Kernel,
            format!("the kernel ({}) lacks {feature} ({error})", env.kernel),
            format!("run Linux {since} or newer"),
        ),
        _ => Refusal::new(
            Layer::Kernel,
            format!("{feature} could not be tried ({error})"),
            "remove the cause of the error",
        ),
    }
}

/// Enough for the probe and one ring of 256 and 1,024 entries.
const SMALL_RING_BYTES: u64 = 128 * 1024;

/// RLIMIT_MEMLOCK is below the needs of the rings. `gives_up` means that this process has
/// CAP_IPC_LOCK now, and will have dropped it when it creates its rings.
pub(super) fn memlock_too_low(needed_bytes: u64, limit_bytes: u64, gives_up: bool) -> Refusal {
    let kib = needed_bytes.div_ceil(1024);
    let what = format!(
        "RLIMIT_MEMLOCK refuses io_uring: this kernel charges rings to it, {kib} KiB are needed \
         and {} KiB are allowed",
        limit_bytes / 1024
    );
    let capability = match gives_up {
        true => "keep CAP_IPC_LOCK (root, and a --sandbox without capabilities)",
        false => "CAP_IPC_LOCK",
    };
    let mut fix = format!(
        "`ulimit -l {kib}` or more (systemd: LimitMEMLOCK={kib}K, docker: --ulimit \
         memlock={needed_bytes}), or {capability}"
    );
    if limit_bytes >= SMALL_RING_BYTES {
        fix.push_str(", or a smaller ring (--uring sq_entries=256,cq_entries=1024)");
    }
    Refusal::new(Layer::Memlock, what, fix)
}

/// Explains why a ring could not be created although the probe allows it; `None` if no resource ran
/// out.
pub(crate) fn ring_refused(error: &io::Error) -> Option<Refusal> {
    is_exhaustion(error).then(|| exhausted(error, &Environment::read()))
}

fn is_exhaustion(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::EMFILE | libc::ENFILE | libc::EAGAIN))
}

/// The resource that ran out when a ring was created.
fn exhausted(error: &io::Error, env: &Environment) -> Refusal {
    if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) {
        let limit = env.nofile.soft.map_or("unlimited".to_owned(), |limit| limit.to_string());
        let what = format!("no descriptor is free for a ring ({error}, `ulimit -n` is {limit})");
        return Refusal::new(Layer::Resources, what, "raise `ulimit -n` (systemd: LimitNOFILE=)");
    }
    let what = match env.memlock_bytes.soft.filter(|_| !env.cap_ipc_lock) {
        Some(limit) => format!(
            "no memory for a ring ({error}): rings of all processes of this user may be charged \
             to RLIMIT_MEMLOCK, which is {} KiB",
            limit / 1024
        ),
        None => format!("no memory for a ring ({error})"),
    };
    let fix = "free memory, or raise `ulimit -l` (systemd: LimitMEMLOCK=) or the memory limit of \
               the cgroup";
    Refusal::new(Layer::Resources, what, fix)
}

pub(super) fn sysctl(env: &Environment) -> Refusal {
    let value = env.io_uring_disabled.unwrap_or(2);
    let vendor = if env.kernel.contains(".el") { ", the default of Red Hat kernels" } else { "" };
    let what = format!("sysctl refuses io_uring: kernel.io_uring_disabled is {value}{vendor}");
    let mut fix = String::from("`sysctl -w kernel.io_uring_disabled=0`");
    if value == 1 {
        fix.push_str(match env.io_uring_group {
            Some(group) if group >= 0 => ", or join the group that kernel.io_uring_group names",
            _ => ", or `sysctl -w kernel.io_uring_group=GID` with a group of this user",
        });
    }
    if env.container.is_some() {
        fix.push_str(", on the host");
    }
    Refusal::new(Layer::Sysctl, what, fix)
}

/// How the calls are allowed there, for the servers of the command and for other programs.
fn seccomp_fix(env: &Environment) -> String {
    const CALLS: &str = "io_uring_setup, io_uring_enter and io_uring_register";
    const PROFILE: &str = "`twinring seccomp oci > FILE`";
    let place = match env.container {
        Some(Container::Docker) => ", and docker run --security-opt seccomp=FILE",
        Some(Container::Podman) => ", and podman run --security-opt seccomp=FILE",
        Some(Container::Kubernetes) => {
            " below /var/lib/kubelet/seccomp on the node, and securityContext.seccompProfile \
             {type: Localhost, localhostProfile: FILE}"
        }
        Some(Container::Nspawn) => {
            return format!(
                "append `twinring seccomp nspawn` to /etc/systemd/nspawn/NAME.nspawn on the host, \
                 which allows {CALLS}"
            );
        }
        Some(Container::Other) | None => {
            return format!(
                "allow {CALLS} in the filter (systemd: SystemCallFilter=@aio, or the drop-in of \
                 `twinring seccomp systemd`; containers: {PROFILE} and --security-opt seccomp=FILE)"
            );
        }
    };
    format!("{PROFILE}{place} (for other programs, the default profile with {CALLS} allowed)")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::environment::Limit;

    fn open_machine() -> Environment {
        Environment {
            io_uring_disabled: Some(0),
            security_modules: vec!["capability".into(), "selinux".into()],
            memlock_bytes: Limit { soft: Some(8 << 20), hard: None },
            nofile: Limit { soft: Some(1024), hard: None },
            ..Environment::default()
        }
    }

    const OPEN: &[&str] = &[];
    const BLOCKED: &[&str] = &["io_uring_enter", "io_uring_register"];

    #[test]
    fn the_layer_is_found_and_named_with_its_fix() {
        use Layer::{Kernel, Resources, Seccomp, SecurityModule, Sysctl};
        use libc::{EACCES, EINVAL, EMFILE, ENFILE, ENOMEM, ENOSYS, EPERM};
        let filter = Some(true);
        // errno, the other calls that fail, kernel.io_uring_disabled, a filter; the layer, and what is said.
        for (errno, blocked, disabled, filter, layer, words) in [
            (EPERM, OPEN, Some(2), None, Sysctl, "sysctl -w kernel.io_uring_disabled=0"),
            (EPERM, OPEN, Some(1), None, Sysctl, "io_uring_group"),
            // One fix alone would not help.
            (EPERM, BLOCKED, Some(2), filter, Sysctl, "seccomp refuses it too"),
            (EPERM, BLOCKED, Some(2), filter, Sysctl, "io_uring_enter"),
            (EPERM, OPEN, Some(0), filter, Seccomp, "SystemCallFilter=@aio"),
            (EACCES, OPEN, Some(0), filter, Seccomp, "io_uring_setup, io_uring_enter"),
            (ENOSYS, BLOCKED, Some(0), filter, Seccomp, "seccomp"),
            // The sysctl exists only if io_uring does.
            (ENOSYS, BLOCKED, None, filter, Seccomp, "or the kernel was built without"),
            (ENOSYS, BLOCKED, Some(0), None, Kernel, "CONFIG_IO_URING"),
            (EACCES, OPEN, Some(0), None, SecurityModule, "capability, selinux"),
            (ENOMEM, OPEN, Some(0), None, Resources, "8192 KiB"),
            (EMFILE, OPEN, Some(0), None, Resources, "is 1024"),
            (ENFILE, OPEN, Some(0), None, Resources, "in system"),
            (EINVAL, OPEN, Some(0), None, Kernel, "Linux 6.1"),
        ] {
            let (io_uring_disabled, seccomp_filter) = (disabled, filter);
            let env = Environment { io_uring_disabled, seccomp_filter, ..open_machine() };
            let refusal = setup_refused(&io::Error::from_raw_os_error(errno), &env, blocked);
            let line = refusal.to_string();
            assert_eq!(refusal.layer, layer, "{line}");
            assert!(line.contains(words), "{words}: {line}");
            assert_eq!(line.lines().count(), 1);
            assert_eq!(refusal.allows_fallback(), layer != Resources);
            let in_doubt = line.contains("or the kernel was built without");
            assert_eq!(in_doubt, env.io_uring_disabled.is_none(), "{line}");
        }
        let denied =
            |env: Environment| setup_refused(&io::Error::from_raw_os_error(EPERM), &env, OPEN);
        let red_hat = denied(Environment {
            kernel: "5.14.0-427.el9.x86_64".into(),
            io_uring_disabled: Some(2),
            container: Some(Container::Docker),
            ..open_machine()
        });
        assert!(red_hat.what.contains("Red Hat") && red_hat.fix.contains("on the host"));
        let (io_uring_disabled, in_io_uring_group) = (Some(1), true);
        let member = Environment { io_uring_disabled, in_io_uring_group, ..open_machine() };
        assert_eq!(denied(Environment { seccomp_filter: filter, ..member }).layer, Seccomp);
    }

    #[test]
    fn the_fix_of_seccomp_speaks_the_language_of_the_container() {
        let mut env = open_machine();
        for (container, words) in [
            (Container::Docker, "oci > FILE`, and docker run --security-opt seccomp=FILE"),
            (Container::Nspawn, "twinring seccomp nspawn"),
            (Container::Podman, "podman run --security-opt seccomp=FILE"),
            (Container::Kubernetes, "seccompProfile {type: Localhost"),
            (Container::Other, "SystemCallFilter=@aio"),
        ] {
            env.container = Some(container);
            assert!(seccomp_fix(&env).contains(words), "{}", seccomp_fix(&env));
        }
    }

    #[test]
    fn features_are_refused_by_kernel_or_filter() {
        let refused = |errno| {
            let error = io::Error::from_raw_os_error(errno);
            feature_refused("IORING_RECV_MULTISHOT", "6.0", &error, &open_machine())
        };
        assert_eq!(refused(libc::EINVAL).layer, Layer::Kernel);
        assert_eq!(refused(libc::EINVAL).fix, "run Linux 6.0 or newer");
        assert_eq!(refused(libc::EACCES).layer, Layer::OperationFilter);
        assert_eq!(refused(libc::EMFILE).layer, Layer::Resources);
    }
}
