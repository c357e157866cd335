//! io_uring on this machine: what the engine requires (Linux 6.1), what it can use beside that, and whether
//! it can run with the requested options.

use super::environment::Environment;
use super::layers::{self, Layer, Refusal};
use crate::config::UringOptions;
use crate::sys::probe as trial;
use io_uring::{Probe, opcode};
use rustix::io_uring::IoringSetupFlags;
use serde::Serialize;
use std::io;
use std::sync::OnceLock;

/// The operations that the engine submits.
const OPERATIONS: [(&str, u8); 11] = [
    ("POLL_ADD", opcode::PollAdd::CODE),
    ("TIMEOUT", opcode::Timeout::CODE),
    ("ACCEPT", opcode::Accept::CODE),
    ("CONNECT", opcode::Connect::CODE),
    ("ASYNC_CANCEL", opcode::AsyncCancel::CODE),
    ("SEND", opcode::Send::CODE),
    ("SENDMSG", opcode::SendMsg::CODE),
    ("RECV", opcode::Recv::CODE),
    ("RECVMSG", opcode::RecvMsg::CODE),
    ("CLOSE", opcode::Close::CODE),
    ("READ", opcode::Read::CODE),
];

/// Bits of `io_uring_params.features`.
const FEAT_RW_ATTR: u32 = 1 << 16;
const FEAT_NO_IOWAIT: u32 = 1 << 17;

const DEFER_TASKRUN: &str = "IORING_SETUP_DEFER_TASKRUN";
const PBUF_RING: &str = "IORING_REGISTER_PBUF_RING";
const NO_IOWAIT: &str = "IORING_ENTER_NO_IOWAIT";
const SQPOLL: &str = "IORING_SETUP_SQPOLL";

/// A feature and whether it can be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FeatureReport {
    /// Its name in the kernel's interface.
    pub kernel_name: &'static str,
    /// The Linux release that brought it; distributions may have it earlier.
    pub since: &'static str,
    /// The option that needs it, as in `--uring OPTION`; `None`: the engine takes it where it can.
    pub option: Option<&'static str>,
    /// Why not; `None` if it can be used.
    pub refusal: Option<Refusal>,
}

/// The capabilities of io_uring on this machine, on which the engine can run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UringReport {
    /// What the engine uses, in fixed order.
    pub features: Vec<FeatureReport>,
    /// Rings of processes without CAP_IPC_LOCK count against RLIMIT_MEMLOCK.
    pub memlock_charged: bool,
}

impl UringReport {
    /// Tries a ring, its registrations and what it can do; about a millisecond. Fails when the
    /// engine cannot run on it.
    pub(super) fn detect(env: &Environment) -> Result<UringReport, Refusal> {
        let blocked: Vec<_> = trial::blocked_calls().collect();
        let (_ring, bits) = trial::setup(IoringSetupFlags::empty())
            .map_err(|error| layers::setup_refused(&error, env, &blocked))?;
        if !blocked.is_empty() {
            return Err(layers::calls_blocked(&blocked, env));
        }
        if let Some(refusal) = known_fault(env) {
            return Err(refusal);
        }
        let refused = |name: &str, since: &str, error: io::Error| {
            layers::feature_refused(name, since, &error, env)
        };
        let ring = trial::trial_ring().map_err(|error| refused(DEFER_TASKRUN, "6.1", error))?;
        trial::register_buffers(&ring).map_err(|error| refused(PBUF_RING, "5.19", error))?;
        let mut probe = Probe::new();
        ring.submitter()
            .register_probe(&mut probe)
            .map_err(|error| refused("IORING_REGISTER_PROBE", "5.6", error))?;
        let unsupported = || io::Error::from_raw_os_error(libc::EINVAL);
        if let Some((name, _)) = OPERATIONS.iter().find(|(_, code)| !probe.is_supported(*code)) {
            return Err(refused(&format!("IORING_OP_{name}"), "6.1", unsupported()));
        }
        let no_iowait = if bits & FEAT_NO_IOWAIT == 0 { Err(unsupported()) } else { Ok(()) };
        let sqpoll = trial::setup(IoringSetupFlags::SQPOLL).map(drop);
        let mut features = Vec::new();
        for (kernel_name, since, option, tried) in [
            (DEFER_TASKRUN, "6.1", None, Ok(())),
            (PBUF_RING, "5.19", None, Ok(())),
            (NO_IOWAIT, "6.15", None, no_iowait),
            (SQPOLL, "5.13", Some("sqpoll_idle_ms"), sqpoll),
        ] {
            let refusal = tried.err().map(|error| refused(kernel_name, since, error));
            if let Some(refusal) = refusal.as_ref().filter(|it| it.layer == Layer::Resources) {
                return Err(refusal.clone());
            }
            features.push(FeatureReport { kernel_name, since, option, refusal });
        }
        // Charged again since the release that brought RW_ATTR, 6.14.
        Ok(UringReport { features, memlock_charged: bits & FEAT_RW_ATTR != 0 })
    }

    fn refusal_of(&self, kernel_name: &str) -> Option<&Refusal> {
        self.features.iter().find(|it| it.kernel_name == kernel_name)?.refusal.as_ref()
    }
}

/// Major, minor and patch of a kernel release.
type Release = (u16, u16, u16);

/// Kernels on which the engine does not run because of a fault that shows under load, and so cannot be
/// probed: from the first release (included) to the second (not included); what happens, and where that
/// was reported. Faults that need no check at start are in docs/kernels.md.
const FAULTS: &[(Release, Release, &str)] = &[
    (
        (6, 1, 115),
        (6, 1, 116),
        "a receiver blocks in io_uring_enter and cannot be killed (liburing#1289)",
    ),
    ((6, 6, 1), (6, 6, 18), ACCEPT),
    ((6, 7, 0), (6, 7, 6), ACCEPT),
];

const ACCEPT: &str = "multishot accept reports a descriptor that is not open (liburing#1062)";

/// Why io_uring is not used on this kernel, although it is there.
fn known_fault(env: &Environment) -> Option<Refusal> {
    // The stable release that it was built from. Debian and Ubuntu number their own builds in
    // `uname -r` (6.1.0-27, 6.8.0-31) and name the stable release elsewhere.
    let debian = env.kernel_version.split_once("Debian ").map(|(_, rest)| rest);
    let ubuntu = env.kernel_signature.as_deref().and_then(|text| text.split(' ').nth(2));
    let running = [debian, ubuntu, Some(&env.kernel)].into_iter().flatten().find_map(release)?;
    let (_, fixed, what) =
        FAULTS.iter().find(|(from, until, _)| (*from..*until).contains(&running))?;
    let what = format!("the kernel ({}) has a fault: {what}", env.kernel);
    let fix = format!("run Linux {}.{}.{} or newer", fixed.0, fixed.1, fixed.2);
    Some(Refusal::new(Layer::Kernel, what, fix))
}

/// Reads `6.1.115` and `6.18.44-vendor`.
fn release(text: &str) -> Option<Release> {
    let mut numbers = text.trim().split(['-', '+', '_']).next()?.split('.').map(str::parse::<u16>);
    let (major, minor) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some((major, minor, numbers.next().and_then(Result::ok).unwrap_or(0)))
}

const PAGE_BYTES: u64 = 4096;
/// Upper bound of the memory charged for the probe's rings. The kernel returns it some milliseconds
/// after they are closed, so it may still count when the first worker creates its ring.
const PROBE_BYTES: u64 = 64 * 1024;

/// The features of io_uring for `workers` rings of the same kind, created when `later` holds. The
/// kernel is probed at the first call that succeeds (about a millisecond). Fails when io_uring as a
/// whole, or a feature that was requested by name, is refused, or resources ran out.
pub(crate) fn select_uring(
    options: &UringOptions,
    workers: usize,
    later: Option<&Environment>,
) -> Result<UringOptions, Refusal> {
    static DETECTED: OnceLock<UringReport> = OnceLock::new();
    let mut options = options.clone();
    options.cq_entries = options.cq_entries.max(options.sq_entries);
    let env = Environment::read();
    let later = later.unwrap_or(&env);
    // Now the kernel would still answer otherwise.
    if later.sysctl_refuses() && !env.sysctl_refuses() {
        return Err(layers::sysctl(later));
    }
    let uncharged = later.cap_ipc_lock;
    let uring = match DETECTED.get() {
        Some(uring) => uring,
        None => {
            // On a kernel that charges rings the first of the probe fails already.
            let found = UringReport::detect(&env).map_err(|refusal| match refusal.layer {
                Layer::Resources if !uncharged => {
                    check_memlock(&options, workers, &env).err().unwrap_or(refusal)
                }
                _ => refusal,
            })?;
            DETECTED.get_or_init(|| found)
        }
    };
    options.no_iowait &= uring.refusal_of(NO_IOWAIT).is_none();
    if let Some(refusal) = uring.refusal_of(SQPOLL).filter(|_| options.sqpoll_idle_ms > 0) {
        let what = format!("sqpoll_idle_ms was requested: {}", refusal.what);
        return Err(Refusal::new(Layer::Options, what, &*refusal.fix));
    }
    if uring.memlock_charged && !uncharged {
        check_memlock(&options, workers, &env)?;
    }
    Ok(options)
}

/// Compares what the rings of all workers are charged with the limit. An upper bound: other
/// processes of the same user share the limit, and the memory that they hold cannot be seen.
fn check_memlock(options: &UringOptions, workers: usize, env: &Environment) -> Result<(), Refusal> {
    let Some(limit) = env.memlock_bytes.soft else { return Ok(()) };
    let pages =
        |entries: u32, bytes: u64| (u64::from(entries) * bytes).next_multiple_of(PAGE_BYTES);
    // 64 bytes a submission, 4 for its index, 16 a completion behind a page of heads and tails, 16 a
    // buffer.
    let ring = pages(options.sq_entries, 64)
        + pages(options.sq_entries, 4)
        + PAGE_BYTES
        + pages(options.cq_entries, 16)
        + pages(options.buffer_count, 16);
    let needed = ring.saturating_mul(workers as u64).saturating_add(PROBE_BYTES);
    match needed > limit {
        true => Err(layers::memlock_too_low(needed, limit, env.cap_ipc_lock)),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_match_their_faults_only() {
        let mut env = Environment::default();
        for (kernel, version, faulty) in [
            ("6.1.115-rt", "", true),
            ("6.1.116", "", false),
            ("6.1.0-27-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.115-1 (2024-11-01)", true),
            ("6.6.9", "", true),
            ("6.6.0", "", false),
            ("6.7.6", "", false),
            ("6.18.44", "", false),
            ("custom", "", false),
        ] {
            env.kernel = kernel.to_owned();
            env.kernel_version = version.to_owned();
            assert_eq!(known_fault(&env).is_some(), faulty, "{kernel} {version}");
        }
        env.kernel = "6.8.0-31-generic".to_owned();
        env.kernel_signature = Some("Ubuntu 6.6.2-31.31-generic 6.6.2".to_owned());
        let refusal = known_fault(&env).expect("named by its signature");
        assert!(refusal.fix.contains("6.6.18") && refusal.allows_fallback(), "{refusal}");
    }

    #[test]
    fn memlock_is_compared_with_the_needs_of_all_rings() {
        let mut env = Environment::default();
        let (default, small) = (UringOptions::default(), "sq_entries=256,cq_entries=1024");
        for (options, workers, limit, fix) in [
            ("", 1, Some(64), "`ulimit -l 236`"),
            (small, 1, Some(64), "`ulimit -l "),
            (small, 1, Some(128), ""),
            ("", 1, Some(256), ""),
            ("", 2, Some(256), "or CAP_IPC_LOCK"),
            ("", 1000, None, ""),
        ] {
            env.memlock_bytes.soft = limit.map(|kib: u64| kib * 1024);
            let refusal = check_memlock(&options.parse().unwrap(), workers, &env).err();
            let told = refusal.as_ref().map_or(String::new(), |it| it.fix.clone());
            assert!(told.contains(fix) && told.is_empty() == fix.is_empty(), "{limit:?}: {told}");
            assert!(refusal.is_none_or(|it| it.layer == Layer::Memlock && it.allows_fallback()));
        }
        // A process that has it, and drops it before the rings are created, is not advised to
        // obtain it.
        (env.cap_ipc_lock, env.memlock_bytes.soft) = (true, Some(256 * 1024));
        let refusal = check_memlock(&default, 2, &env).unwrap_err();
        assert!(refusal.fix.contains("keep CAP_IPC_LOCK"), "{refusal}");
    }
}
