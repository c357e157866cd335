//! Known faults of certain kernels. Only here are versions compared: a kernel's features are
//! probed, but a fault that shows under load cannot be.
//!
//! As of November 2026. A range is the reported one, or that of the fix; a distribution may have
//! the fix in an older release.

use super::environment::Environment;
use serde::Serialize;
use std::fmt;

/// Major, minor and patch of a kernel release; a release candidate precedes its release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Release(u16, u16, u16, Candidate);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Candidate {
    Number(u16),
    Released,
}

const fn release(major: u16, minor: u16, patch: u16) -> Release {
    Release(major, minor, patch, Candidate::Released)
}

const fn candidate(major: u16, minor: u16, number: u16) -> Release {
    Release(major, minor, 0, Candidate::Number(number))
}

/// No release is that far.
const OPEN: Release = release(u16::MAX, 0, 0);

impl Release {
    /// Reads `6.1.115`, `6.8.0-rc3`, `6.18.44-vendor`.
    pub(super) fn parse(text: &str) -> Option<Release> {
        let mut words = text.trim().split(['-', '+', '_']);
        let mut numbers = words.next()?.split('.').map(str::parse::<u16>);
        let major = numbers.next()?.ok()?;
        let minor = numbers.next()?.ok()?;
        let patch = numbers.next().and_then(Result::ok).unwrap_or(0);
        let candidate = words.next().and_then(|word| word.strip_prefix("rc")?.parse().ok());
        let candidate = candidate.map_or(Candidate::Released, Candidate::Number);
        Some(Release(major, minor, patch, candidate))
    }

    /// The stable release a kernel was built from. Debian and Ubuntu number their own builds in
    /// `uname -r` (6.1.0-27, 6.8.0-31) and name the stable release elsewhere.
    pub(super) fn of(env: &Environment) -> Option<Release> {
        let debian = env.kernel_version.split_once("Debian ").map(|(_, rest)| rest);
        let ubuntu = env.kernel_signature.as_deref().and_then(|text| text.split(' ').nth(2));
        [debian, ubuntu, Some(&env.kernel)].into_iter().flatten().find_map(Release::parse)
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)?;
        match self.3 {
            Candidate::Number(number) => write!(f, "-rc{number}"),
            Candidate::Released => Ok(()),
        }
    }
}

/// A known fault of certain kernels.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Hazard {
    /// Short name.
    pub name: &'static str,
    /// The affected releases, in words.
    pub affected: &'static str,
    /// The symptom.
    pub symptom: &'static str,
    /// Where it was reported.
    pub source: &'static str,
    /// The affected part of Twinring, and its workaround; `None`: Twinring does not use it.
    pub concerns: Option<&'static str>,
    /// From the first release (included) to the second (not included).
    #[serde(skip)]
    ranges: &'static [(Release, Release)],
}

/// All known hazards, oldest first.
pub const HAZARDS: &[Hazard] = &[
    Hazard {
        name: "sqpoll_spin",
        affected: "before 5.10.186",
        symptom: "the submission thread of SQPOLL never sleeps: 100 % of a CPU",
        source: "libuv#4093",
        concerns: Some("sqpoll_idle_ms, off by default"),
        ranges: &[(release(5, 1, 0), release(5, 10, 186))],
    },
    Hazard {
        name: "memlock_before_5_12",
        affected: "before 5.12",
        symptom: "rings are charged to RLIMIT_MEMLOCK, then 64 KiB by default: ENOMEM at setup",
        source: "seastar#1436",
        concerns: Some("every ring; raise `ulimit -l`"),
        ranges: &[(release(5, 1, 0), release(5, 12, 0))],
    },
    Hazard {
        name: "spurious_enomem",
        affected: "before 6.6.86, 6.12.21, 6.13.9 and 6.14",
        symptom: "operations fail with ENOMEM although memory is free",
        source: "seastar#2728",
        concerns: Some("receives and sends: a connection ends with that error"),
        ranges: &[
            (release(5, 1, 0), release(6, 6, 86)),
            (release(6, 7, 0), release(6, 12, 21)),
            (release(6, 13, 0), release(6, 13, 9)),
        ],
    },
    Hazard {
        name: "multishot_lost_reset",
        affected: "6.0 and later, open; rarer since March 2026",
        symptom: "a multishot receive does not report a reset that arrives together with data",
        source: "liburing#1549, measured on 6.18.44",
        concerns: Some("streams; worked around: idle ones are checked after a second or two"),
        ranges: &[(release(6, 0, 0), OPEN)],
    },
    Hazard {
        name: "multishot_urgent_data",
        affected: "measured on 6.18.44; probably 6.0 and later, open",
        symptom: "a multishot receive sometimes does not report data behind TCP urgent data; recv(2) finds it",
        source: "3 of 50 tries with SQPOLL with liburing 2.3, without Twinring; rarer without SQPOLL",
        concerns: Some("streams; worked around: idle ones are checked after a second or two"),
        ranges: &[(release(6, 0, 0), OPEN)],
    },
    Hazard {
        name: "recvmsg_multishot_enobufs",
        affected: "6.1.7",
        symptom: "multishot recvmsg constantly runs out of buffers (ENOBUFS)",
        source: "liburing#778",
        concerns: None,
        ranges: &[(release(6, 1, 7), release(6, 1, 8))],
    },
    Hazard {
        name: "idle_counts_as_iowait",
        affected: "6.1.39 and later 6.1, 6.4.4 to 6.14; from 6.15 on a program can opt out",
        symptom: "a CPU on which a program waits in io_uring shows as 100 % iowait, /proc/pressure/io \
                  as stalled, and the CPU's frequency may be raised, without a real problem",
        source: "liburing#943, netty#16655, compio#957",
        concerns: Some(
            "every idle worker, in monitoring tools; from 6.15 on no_iowait prevents it",
        ),
        ranges: &[(release(6, 1, 39), release(6, 2, 0)), (release(6, 4, 4), release(6, 15, 0))],
    },
    Hazard {
        name: "unkillable_receiver",
        affected: "6.1.115",
        symptom: "a UDP receiver blocks in io_uring_enter and cannot be killed",
        source: "liburing#1289",
        concerns: Some("workers that receive; use --engine epoll or another kernel"),
        ranges: &[(release(6, 1, 115), release(6, 1, 116))],
    },
    Hazard {
        name: "multishot_accept_wrong_descriptor",
        affected: "6.6.1 to 6.8-rc3, fixed in stable releases of February 2024",
        symptom: "multishot accept with DEFER_TASKRUN reports a descriptor that is not open",
        source: "liburing#1062",
        concerns: Some("accepting; use --uring taskrun=coop or multishot=off"),
        ranges: &[
            (release(6, 6, 1), release(6, 6, 18)),
            (release(6, 7, 0), release(6, 7, 6)),
            (candidate(6, 8, 1), candidate(6, 8, 5)),
        ],
    },
    Hazard {
        name: "linked_timeout_lockup",
        affected: "6.11",
        symptom: "linked timeouts under load lock up a CPU",
        source: "liburing#1390",
        concerns: None,
        ranges: &[(candidate(6, 11, 1), candidate(6, 12, 1))],
    },
    Hazard {
        name: "recvmsg_multishot_incremental",
        affected: "6.12 and later, open",
        symptom: "multishot recvmsg into incremental buffers fails with EFAULT",
        source: "liburing#1433",
        concerns: None,
        ranges: &[(release(6, 12, 0), OPEN)],
    },
    Hazard {
        name: "bundles_out_of_order",
        affected: "6.13.11 to 6.14",
        symptom: "receive bundles name their buffers in the wrong order: bytes are reordered",
        source: "liburing#1409, liburing#1423",
        concerns: None,
        ranges: &[(release(6, 13, 11), candidate(6, 15, 1))],
    },
    Hazard {
        name: "memlock_since_6_14",
        affected: "6.14 and later",
        symptom: "rings of processes without CAP_IPC_LOCK are charged to RLIMIT_MEMLOCK again, per \
                  user, and released some milliseconds after their end: ENOMEM at setup",
        source: "io_create_region in the kernel's io_uring/memmap.c, measured on 6.18",
        concerns: Some("every ring, about 170 KiB for each worker"),
        ranges: &[(release(6, 14, 0), OPEN)],
    },
    Hazard {
        name: "fragmentation_enomem",
        affected: "6.14 and later, open",
        symptom: "setup of a large ring fails with ENOMEM when memory is fragmented",
        source: "liburing#1614",
        concerns: Some("setup; try a smaller ring (--uring sq_entries=, cq_entries=)"),
        ranges: &[(release(6, 14, 0), OPEN)],
    },
    Hazard {
        name: "wait_overrun",
        affected: "reported for a current kernel, open",
        symptom: "one io_uring_enter took 876 ms for a wait of 10 ms",
        source: "liburing#1635",
        concerns: Some("timers; the counter wait_overrun_us shows it"),
        ranges: &[(release(5, 11, 0), OPEN)],
    },
];

impl Hazard {
    fn affects(&self, running: Release) -> bool {
        self.ranges.iter().any(|(from, until)| (*from..*until).contains(&running))
    }
}

/// The hazards of the running kernel.
pub(super) fn of_kernel(env: &Environment) -> Vec<Hazard> {
    let running = Release::of(env);
    let affects = |hazard: &&Hazard| running.is_some_and(|running| hazard.affects(running));
    HAZARDS.iter().filter(affects).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(release: &str) -> Vec<&'static str> {
        let release = Release::parse(release).unwrap();
        HAZARDS.iter().filter(|hazard| hazard.affects(release)).map(|hazard| hazard.name).collect()
    }

    #[test]
    fn releases_match_their_hazards_only() {
        let has = |release: &str, name: &str| names(release).contains(&name);
        for (name, affected, clear) in [
            ("sqpoll_spin", "5.4.0", "5.10.186"),
            ("sqpoll_spin", "5.10.185-1-amd64", "5.11.0"),
            ("memlock_before_5_12", "5.11.22", "5.12.0"),
            ("spurious_enomem", "6.6.85", "6.6.86"),
            ("spurious_enomem", "6.12.20", "6.12.21"),
            ("spurious_enomem", "6.13.8-arch1-1", "6.13.9"),
            ("spurious_enomem", "6.1.130", "6.14.0"),
            ("recvmsg_multishot_enobufs", "6.1.7", "6.1.6"),
            ("idle_counts_as_iowait", "6.1.39", "6.1.38"),
            ("idle_counts_as_iowait", "6.14.9", "6.15.0"),
            ("unkillable_receiver", "6.1.115", "6.1.114"),
            ("unkillable_receiver", "6.1.115-rt", "6.1.116"),
            ("multishot_accept_wrong_descriptor", "6.6.9", "6.6.0"),
            ("multishot_accept_wrong_descriptor", "6.7.4", "6.6.86"),
            ("multishot_accept_wrong_descriptor", "6.8.0-rc3", "6.8.0"),
            ("linked_timeout_lockup", "6.11.0-24-generic", "6.12.0"),
            ("bundles_out_of_order", "6.13.11", "6.13.10"),
            ("bundles_out_of_order", "6.14.7", "6.15.0-rc1"),
            ("memlock_since_6_14", "6.18.44", "6.13.12"),
            ("recvmsg_multishot_incremental", "7.1.0", "6.11.9"),
        ] {
            assert!(has(affected, name), "{name} {affected}");
            assert!(!has(clear, name), "{name} {clear}");
        }
    }

    #[test]
    fn distributions_name_their_stable_release_elsewhere() {
        let mut env = Environment::read();
        env.kernel = "6.1.0-27-amd64".into();
        env.kernel_version = "#1 SMP PREEMPT_DYNAMIC Debian 6.1.115-1 (2024-11-01)".into();
        env.kernel_signature = None;
        assert_eq!(Release::of(&env).unwrap().to_string(), "6.1.115");
        assert!(of_kernel(&env).iter().any(|hazard| hazard.name == "unkillable_receiver"));
        env.kernel = "6.8.0-31-generic".into();
        env.kernel_version = "#31-Ubuntu SMP".into();
        env.kernel_signature = Some("Ubuntu 6.8.0-31.31-generic 6.8.1".into());
        assert_eq!(Release::of(&env).unwrap().to_string(), "6.8.1");
        env.kernel_signature = None;
        assert_eq!(Release::of(&env).unwrap().to_string(), "6.8.0");
        env.kernel = "custom".into();
        env.kernel_version = String::new();
        assert!(of_kernel(&env).is_empty());
    }

    #[test]
    fn candidates_come_before_their_release() {
        let parse = |text| Release::parse(text).unwrap();
        assert!(parse("6.8.0-rc3") < parse("6.8.0"));
        assert!(parse("6.8-rc3") > parse("6.7.12"));
        assert!(parse("6.8.0-rc3").to_string() == "6.8.0-rc3");
        assert_eq!(Release::parse("next"), None);
    }
}
