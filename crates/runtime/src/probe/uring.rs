//! The features of io_uring on this machine: setup flags, registrations and operations as the
//! kernel reports them, and behaviour that shows only when it is tried.

use super::environment::Environment;
use super::layers::{self, Calls, Layer, Refusal};
use crate::sys::probe::{self as ask, SETUP_CQSIZE};
use crate::sys::ring::charged;
use crate::sys::trial::{Operation, TrialRing};
use io_uring::opcode;
use serde::Serialize;
use std::io::{self, Write};
use std::net::UdpSocket;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

macro_rules! features {
    ($($feature:ident: $kernel_name:literal, $since:literal, $option:expr, $default:literal;)*) => {
        /// A feature of io_uring that not every kernel has.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
        #[serde(rename_all = "snake_case")]
        #[repr(u8)]
        pub enum Feature {
            $(#[doc = $kernel_name] $feature,)*
        }

        /// All features, in the order of the enum, as if none were refused.
        static FEATURES: [FeatureReport; [$($since),*].len()] = [
            $(FeatureReport {
                feature: Feature::$feature,
                kernel_name: $kernel_name,
                since: $since,
                option: $option,
                default: $default,
                refusal: None,
            },)*
        ];
    };
}

// A feature, its name in the kernel, the release that brought it, the option of `--uring` that depends on
// it, and whether the engine takes it wherever it can.
features! {
    CqSize: "IORING_SETUP_CQSIZE", "5.5", Some("cq_entries"), true;
    DisabledRing: "IORING_SETUP_R_DISABLED", "5.10", None, false;
    SubmitAll: "IORING_SETUP_SUBMIT_ALL", "5.18", None, true;
    SingleIssuer: "IORING_SETUP_SINGLE_ISSUER", "6.0", Some("single_issuer"), true;
    DeferTaskrun: "IORING_SETUP_DEFER_TASKRUN", "6.1", Some("taskrun=defer"), true;
    CoopTaskrun: "IORING_SETUP_COOP_TASKRUN", "5.19", Some("taskrun=coop"), false;
    NoSqarray: "IORING_SETUP_NO_SQARRAY", "6.6", Some("no_sqarray"), true;
    Sqpoll: "IORING_SETUP_SQPOLL", "5.13", Some("sqpoll_idle_ms"), false;
    RegisteredRing: "IORING_REGISTER_RING_FDS", "5.18", Some("registered_ring"), true;
    DirectDescriptors: "IORING_RSRC_REGISTER_SPARSE", "5.19", Some("direct"), false;
    BufferRing: "IORING_REGISTER_PBUF_RING", "5.19", Some("buffers=ring"), true;
    IncrementalBuffers: "IOU_PBUF_RING_INC", "6.12", Some("buffers=incremental"), false;
    MultishotPoll: "IORING_POLL_ADD_MULTI", "5.13", Some("multishot"), true;
    MultishotAccept: "IORING_ACCEPT_MULTISHOT", "5.19", Some("multishot"), true;
    MultishotRecv: "IORING_RECV_MULTISHOT", "6.0", Some("multishot"), true;
    SkipSuccess: "IOSQE_CQE_SKIP_SUCCESS", "5.17", Some("skip_success"), true;
    WaitTimeout: "IORING_ENTER_EXT_ARG", "5.11", Some("ext_arg"), true;
    MinWait: "IORING_FEAT_MIN_TIMEOUT", "6.12", Some("min_wait_us"), false;
    NoIowait: "IORING_ENTER_NO_IOWAIT", "6.15", Some("no_iowait"), true;
    RecvBundle: "IORING_RECVSEND_BUNDLE", "6.10", None, false;
    ZeroCopySend: "IORING_OP_SEND_ZC", "6.0", None, false;
    FileOperations: "IORING_OP_OPENAT2", "5.6", Some("files=ring"), true;
}

use Feature as F;

/// The features that operations on files need together; without them, threads execute the
/// operations.
const FILE_OPERATIONS: [u8; 3] = [opcode::OpenAt2::CODE, opcode::Statx::CODE, opcode::Read::CODE];

/// The operations that the engine submits: name, code, release.
const OPERATIONS: [(&str, u8, &str); 9] = [
    ("POLL_ADD", opcode::PollAdd::CODE, "5.1"),
    ("TIMEOUT", opcode::Timeout::CODE, "5.4"),
    ("ACCEPT", opcode::Accept::CODE, "5.5"),
    ("CONNECT", opcode::Connect::CODE, "5.5"),
    ("ASYNC_CANCEL", opcode::AsyncCancel::CODE, "5.5"),
    ("SEND", opcode::Send::CODE, "5.6"),
    ("RECV", opcode::Recv::CODE, "5.6"),
    ("CLOSE", opcode::Close::CODE, "5.6"),
    ("PROVIDE_BUFFERS", opcode::ProvideBuffers::CODE, "5.7"),
];

const SUBMIT_ALL: u32 = 1 << 7;
const SINGLE_ISSUER: u32 = 1 << 12;

/// Setup flags with what they need beside them.
const SETUP_FLAGS: [(Feature, u32); 8] = [
    (F::CqSize, SETUP_CQSIZE),
    (F::DisabledRing, 1 << 6),
    (F::SubmitAll, SUBMIT_ALL),
    (F::SingleIssuer, SINGLE_ISSUER),
    (F::DeferTaskrun, SINGLE_ISSUER | 1 << 13),
    (F::NoSqarray, 1 << 16),
    (F::CoopTaskrun, 1 << 8),
    (F::Sqpoll, 1 << 1),
];

/// How many of them fit together in one ring.
const COMPATIBLE: usize = 6;

/// The bits of `io_uring_params.features`, from the lowest.
const FEATURE_BITS: [&str; 18] = [
    "SINGLE_MMAP",
    "NODROP",
    "SUBMIT_STABLE",
    "RW_CUR_POS",
    "CUR_PERSONALITY",
    "FAST_POLL",
    "POLL_32BITS",
    "SQPOLL_NONFIXED",
    "EXT_ARG",
    "NATIVE_WORKERS",
    "RSRC_TAGS",
    "CQE_SKIP",
    "LINKED_FILE",
    "REG_REG_RING",
    "RECVSEND_BUNDLE",
    "MIN_TIMEOUT",
    "RW_ATTR",
    "NO_IOWAIT",
];
const NODROP: u32 = 1 << 1;
const FAST_POLL: u32 = 1 << 5;
const NATIVE_WORKERS: u32 = 1 << 9;
const RW_ATTR: u32 = 1 << 16;
const NO_IOWAIT: u32 = 1 << 17;

/// How long a wait is tried.
const TRIAL_WAIT: Duration = Duration::from_micros(100);

/// A feature and whether it can be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FeatureReport {
    /// The feature.
    pub feature: Feature,
    /// Its name in the kernel's interface.
    pub kernel_name: &'static str,
    /// The Linux release that brought it; distributions may have it earlier.
    pub since: &'static str,
    /// The option that depends on it, as in `--uring OPTION`; `None`: nothing does.
    pub option: Option<&'static str>,
    /// The engine takes it wherever it can, without being asked.
    pub default: bool,
    /// Why not; `None` if it can be used.
    pub refusal: Option<Refusal>,
}

/// An operation that the engine uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OperationReport {
    /// Its name behind `IORING_OP_`.
    pub name: &'static str,
    /// The Linux release that brought it.
    pub since: &'static str,
    /// The kernel has it.
    pub allowed: bool,
}

/// The capabilities of io_uring on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Uring {
    /// Names of the feature bits that the kernel sets, behind `IORING_FEAT_`.
    pub feature_bits: Vec<&'static str>,
    /// All features, in fixed order.
    pub features: Vec<FeatureReport>,
    /// The operations that the engine uses.
    pub operations: Vec<OperationReport>,
    /// Rings of processes without CAP_IPC_LOCK count against RLIMIT_MEMLOCK.
    pub memlock_charged: bool,
}

impl Uring {
    /// Queries and tries everything: about a millisecond, and at most some hundred on a kernel that
    /// does not answer.
    ///
    /// # Errors
    /// When io_uring as a whole cannot be used.
    pub(super) fn detect(env: &Environment) -> Result<Uring, Refusal> {
        let calls = Calls::ask();
        let all = SETUP_FLAGS[..COMPATIBLE].iter().fold(0, |all, (_, flags)| all | flags);
        let (at_once, bits) = match setup(all) {
            Ok(bits) => (true, bits),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                (false, setup(0).map_err(|error| layers::setup_refused(&error, env, calls))?)
            }
            Err(error) => return Err(layers::setup_refused(&error, env, calls)),
        };
        let blocked = calls.blocked();
        if !blocked.is_empty() {
            return Err(layers::calls_blocked(&blocked, env));
        }
        let mut found = Findings { env, features: Vec::with_capacity(FEATURES.len()) };
        for (index, (feature, flags)) in SETUP_FLAGS.into_iter().enumerate() {
            let known = at_once && index < COMPATIBLE;
            found.add(feature, if known { Ok(()) } else { setup(flags).map(drop) })?;
        }
        let mut ring =
            TrialRing::new().map_err(|error| layers::setup_refused(&error, env, calls))?;
        let operations = list_operations(&ring, bits, env)?;
        found.add(F::FileOperations, file_operations(&ring))?;
        found.add(F::NoIowait, if bits & NO_IOWAIT == 0 { Err(unsupported()) } else { Ok(()) })?;
        found.registrations(&mut ring)?;
        found.behaviours(&mut ring)?;
        let mut features = found.features;
        features.sort_by_key(|report| report.feature as u8);
        Ok(Uring {
            feature_bits: bit_names(bits),
            features,
            operations,
            // liburing's test for the first change; the second came with the same release as
            // RW_ATTR. See `memlock_before_5_12` and `memlock_since_6_14` in the hazards.
            memlock_charged: bits & NATIVE_WORKERS == 0 || bits & RW_ATTR != 0,
        })
    }

    /// The features behind an option.
    pub(super) fn behind(option: &str) -> impl Iterator<Item = Feature> {
        let features = FEATURES.iter().filter(move |facts| facts.option == Some(option));
        features.map(|facts| facts.feature)
    }

    /// Why a feature cannot be used.
    ///
    /// # Errors
    /// The reason, if there is one.
    pub fn require(&self, feature: Feature) -> Result<(), Refusal> {
        match &self.features[feature as usize].refusal {
            Some(refusal) => Err(refusal.clone()),
            None => Ok(()),
        }
    }

    /// True if a feature can be used.
    pub fn allows(&self, feature: Feature) -> bool {
        self.features[feature as usize].refusal.is_none()
    }

    /// A kernel that has everything except these, for tests of the choice.
    #[cfg(test)]
    pub(super) fn without(lacking: &[Feature]) -> Uring {
        let env = Environment::read();
        let mut found = Findings { env: &env, features: Vec::new() };
        for FeatureReport { feature, .. } in FEATURES.clone() {
            let error = lacking.contains(&feature).then_some(libc::EINVAL);
            let outcome = error.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)));
            found.add(feature, outcome).unwrap();
        }
        Uring {
            feature_bits: vec![],
            features: found.features,
            operations: vec![],
            memlock_charged: true,
        }
    }
}

/// Tries one ring.
fn setup(flags: u32) -> io::Result<u32> {
    charged(|| ask::setup(flags)).map(|(_ring, bits)| bits)
}

fn bit_names(bits: u32) -> Vec<&'static str> {
    let set = |(index, _): &(usize, &str)| bits >> index & 1 == 1;
    FEATURE_BITS.into_iter().enumerate().filter(set).map(|(_, name)| name).collect()
}

/// The features that the engine requires: its operations (Linux 5.7), no lost completions, and
/// sockets that wait by polling instead of blocking a kernel thread.
fn list_operations(
    ring: &TrialRing,
    bits: u32,
    env: &Environment,
) -> Result<Vec<OperationReport>, Refusal> {
    let refused = |name: &str, error: io::Error| layers::feature_refused(name, "5.7", &error, env);
    let lacking = || io::Error::from_raw_os_error(libc::EINVAL);
    for (bit, name) in [(NODROP, "IORING_FEAT_NODROP"), (FAST_POLL, "IORING_FEAT_FAST_POLL")] {
        if bits & bit == 0 {
            return Err(refused(name, lacking()));
        }
    }
    let probe = ring.list_operations().map_err(|error| refused("IORING_REGISTER_PROBE", error))?;
    let report =
        |(name, code, since)| OperationReport { name, since, allowed: probe.is_supported(code) };
    let operations: Vec<_> = OPERATIONS.into_iter().map(report).collect();
    match operations.iter().find(|operation| !operation.allowed) {
        Some(missing) => Err(refused(&format!("IORING_OP_{}", missing.name), lacking())),
        None => Ok(operations),
    }
}

fn file_operations(ring: &TrialRing) -> io::Result<()> {
    let probe = ring.list_operations()?;
    let all = FILE_OPERATIONS.into_iter().all(|code| probe.is_supported(code));
    if all { Ok(()) } else { Err(unsupported()) }
}

struct Findings<'a> {
    env: &'a Environment,
    features: Vec<FeatureReport>,
}

impl Findings<'_> {
    /// Records the result of a feature.
    ///
    /// # Errors
    /// When resources ran out, which leaves the feature unknown.
    fn add(&mut self, feature: Feature, outcome: io::Result<()>) -> Result<(), Refusal> {
        let facts = &FEATURES[feature as usize];
        let refused =
            |error| layers::feature_refused(facts.kernel_name, facts.since, &error, self.env);
        let refusal = outcome.err().map(refused);
        if let Some(refusal) = &refusal
            && refusal.layer == Layer::Resources
        {
            return Err(refusal.clone());
        }
        self.features.push(FeatureReport { refusal, ..facts.clone() });
        Ok(())
    }

    fn registrations(&mut self, ring: &mut TrialRing) -> Result<(), Refusal> {
        self.add(F::RegisteredRing, ring.register_own_descriptor())?;
        self.add(F::DirectDescriptors, ring.register_files())?;
        let incremental = ring.register_buffers(true);
        if incremental.is_ok() {
            // The trials below want the plain kind; taking a ring back came with the ring.
            self.add(F::IncrementalBuffers, ring.unregister_buffers())?;
        } else {
            self.add(F::IncrementalBuffers, incremental)?;
        }
        self.add(F::BufferRing, ring.register_buffers(false))
    }

    fn behaviours(&mut self, ring: &mut TrialRing) -> Result<(), Refusal> {
        self.add(F::MultishotPoll, try_poll(ring))?;
        self.add(F::MultishotAccept, try_accept(ring))?;
        self.add(F::MultishotRecv, try_recv(ring))?;
        self.add(F::SkipSuccess, try_skip_success(ring))?;
        self.add(F::WaitTimeout, ring.wait_in_vain(TRIAL_WAIT, 0))?;
        self.add(F::MinWait, ring.wait_in_vain(TRIAL_WAIT, 1))?;
        self.add(F::RecvBundle, try_bundle(ring))?;
        self.add(F::ZeroCopySend, charged(|| try_zero_copy(ring)))
    }
}

/// Submits an operation that should continue after its first completion, takes that completion, and
/// ends the operation. Returns its result.
fn try_multishot(ring: &mut TrialRing, operation: Operation<'_>) -> io::Result<i32> {
    let user_data = ring.submit(operation)?;
    let answer = ring.answer()?.ok_or(io::ErrorKind::TimedOut)?;
    if answer.more {
        ring.cancel(user_data)?;
    }
    match answer.result {
        error if error < 0 => Err(io::Error::from_raw_os_error(-error)),
        _ if !answer.more => Err(unsupported()),
        result => Ok(result),
    }
}

/// For kernels that ignore unknown flags.
fn unsupported() -> io::Error {
    io::Error::from_raw_os_error(libc::EINVAL)
}

fn try_poll(ring: &mut TrialRing) -> io::Result<()> {
    let (ours, mut theirs) = UnixStream::pair()?;
    theirs.write_all(b"?")?;
    try_multishot(ring, Operation::MultishotPoll(ours.as_fd())).map(drop)
}

fn try_accept(ring: &mut TrialRing) -> io::Result<()> {
    let (listener, _client) = listener_with_client()?;
    try_multishot(ring, Operation::MultishotAccept(listener.as_fd())).map(drop)
}

fn try_recv(ring: &mut TrialRing) -> io::Result<()> {
    let (ours, mut theirs) = UnixStream::pair()?;
    theirs.write_all(b"?")?;
    try_multishot(ring, Operation::MultishotRecv(ours.as_fd())).map(drop)
}

fn try_bundle(ring: &mut TrialRing) -> io::Result<()> {
    let (ours, mut theirs) = UnixStream::pair()?;
    theirs.write_all(b"?")?;
    ring.submit(Operation::RecvBundle(ours.as_fd()))?;
    // A kernel without the flag refuses it.
    match ring.answer()?.ok_or(io::ErrorKind::TimedOut)?.result {
        error if error < 0 => Err(io::Error::from_raw_os_error(-error)),
        _ => Ok(()),
    }
}

fn try_skip_success(ring: &mut TrialRing) -> io::Result<()> {
    ring.submit(Operation::Nothing { silent: true })?;
    let second = ring.submit(Operation::Nothing { silent: false })?;
    let first = ring.answer()?.ok_or(io::ErrorKind::TimedOut)?;
    if first.user_data == second { Ok(()) } else { Err(unsupported()) }
}

/// The page it is sent from is charged while it is in transit, like the ring.
fn try_zero_copy(ring: &mut TrialRing) -> io::Result<()> {
    // Unix sockets cannot; a UDP socket connected to itself needs no peer.
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(socket.local_addr()?)?;
    ring.submit(Operation::SendZeroCopy(socket.as_fd()))?;
    let answer = ring.answer()?.ok_or(io::ErrorKind::TimedOut)?;
    if answer.more {
        // The notification that the byte is no longer needed.
        ring.answer()?;
    }
    match answer.result {
        error if error < 0 => Err(io::Error::from_raw_os_error(-error)),
        _ => Ok(()),
    }
}

/// A listening Unix socket with a connection in its backlog: needs no network.
fn listener_with_client() -> io::Result<(OwnedFd, OwnedFd)> {
    use socket2::{Domain, SockAddr, Socket, Type};
    let listener = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // An address of the family alone: the kernel chooses a name, see "Autobind" in unix(7).
    listener.bind(&SockAddr::unix("")?)?;
    listener.listen(1)?;
    let client = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    client.connect(&listener.local_addr()?)?;
    Ok((listener.into(), client.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn feature_bits_have_names() {
        assert_eq!(bit_names(0b10_0010), ["NODROP", "FAST_POLL"]);
    }

    #[test]
    fn a_detection_leaves_nothing_behind() {
        let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let env = Environment::read();
        let Ok(first) = Uring::detect(&env) else { return };
        let before = descriptors();
        // Other tests of this process open and close descriptors meanwhile, but not hundreds.
        for _ in 0..50 {
            assert_eq!(Uring::detect(&env).unwrap(), first);
        }
        assert!(descriptors() < before + 50, "{before} descriptors became {}", descriptors());
    }
}
