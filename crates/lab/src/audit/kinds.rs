//! The rules by name, and what to do when one fails.

use serde::{Deserialize, Serialize};

/// The rules, causes before their consequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The server could not be used.
    ServerNotReady,
    /// The server ended before it was asked to.
    ServerDied,
    /// The network is not what it says.
    NetworkMismatch,
    /// Bytes came back other than they were sent, or a file came other than it is.
    PayloadMismatch,
    /// Fewer connections were served at once, or fewer streams opened, than were asked for.
    UnequalAdmission,
    /// The load generator met errors.
    ClientErrors,
    /// A request was never answered.
    StalledRequest,
    /// A connection or stream got no answer inside the window.
    StarvedConnection,
    /// A promised line is missing, unreadable, or contradicts itself.
    BadResult,
    /// Requests or packets are unaccounted for: what was sent is not what came back and what did not.
    Unbalanced,
    /// No request was answered inside the window.
    NothingAnswered,
    /// Rate, latency and requests in flight contradict each other.
    LittlesLaw,
    /// An open loop did not keep its schedule. One run of requests is noise; a subject is void if
    /// most of its runs are late.
    ScheduleLag,
    /// The server did not end well when it was asked to.
    ServerDidNotStop,
    /// The load generator failed or did not finish.
    ClientFailed,
    /// CPU use could not be established.
    NoAccounting,
    /// The hypervisor took CPU time away.
    Steal,
    /// The hypervisor moved the CPUs.
    Moved,
    /// The CPUs did not lie as the experiment wants it.
    Misplaced,
    /// Other processes used CPU time.
    OtherProcesses,
    /// A CPU quota was used up.
    Throttled,
    /// The lab sampled too late.
    LateSample,
    /// Several load generators did not load at the same time.
    WindowsApart,
    /// The bytes that came back were not verified.
    UnverifiedPayload,
    /// Packets came that no stream had sent.
    ForeignPackets,
    /// The kernel dropped packets at a full receive buffer of either side.
    KernelDrops,
    /// The kernel dropped packets at a full receive backlog of a CPU.
    BacklogDrops,
    /// So many packets were lost that latency says nothing.
    PacketsLost,
    /// The completion queue overflowed.
    CqOverflow,
    /// The subject left both CPUs idle although requests were waiting.
    SubjectWaits,
}

impl Kind {
    /// All of them, in their order.
    pub const ALL: [Kind; 30] = [
        Kind::ServerNotReady,
        Kind::ServerDied,
        Kind::NetworkMismatch,
        Kind::PayloadMismatch,
        Kind::UnequalAdmission,
        Kind::ClientErrors,
        Kind::StalledRequest,
        Kind::StarvedConnection,
        Kind::BadResult,
        Kind::Unbalanced,
        Kind::NothingAnswered,
        Kind::LittlesLaw,
        Kind::ScheduleLag,
        Kind::ServerDidNotStop,
        Kind::ClientFailed,
        Kind::NoAccounting,
        Kind::Steal,
        Kind::Moved,
        Kind::Misplaced,
        Kind::OtherProcesses,
        Kind::Throttled,
        Kind::LateSample,
        Kind::WindowsApart,
        Kind::UnverifiedPayload,
        Kind::ForeignPackets,
        Kind::KernelDrops,
        Kind::BacklogDrops,
        Kind::PacketsLost,
        Kind::CqOverflow,
        Kind::SubjectWaits,
    ];

    /// The rule in words.
    pub fn title(self) -> &'static str {
        match self {
            Kind::ServerNotReady => "server not ready",
            Kind::ServerDied => "server died",
            Kind::ServerDidNotStop => "server did not stop",
            Kind::ClientFailed => "load generator failed",
            Kind::BadResult => "bad result",
            Kind::NoAccounting => "no CPU accounting",
            Kind::NothingAnswered => "nothing answered",
            Kind::PayloadMismatch => "payload mismatch",
            Kind::UnverifiedPayload => "payload not verified",
            Kind::Unbalanced => "requests unaccounted for",
            Kind::ClientErrors => "client errors",
            Kind::UnequalAdmission => "unequal admission",
            Kind::StarvedConnection => "starved connection or stream",
            Kind::StalledRequest => "stalled request",
            Kind::LittlesLaw => "Little's law broken",
            Kind::ScheduleLag => "late schedule",
            Kind::ForeignPackets => "foreign packets",
            Kind::KernelDrops => "full receive buffers",
            Kind::BacklogDrops => "full receive backlog",
            Kind::NetworkMismatch => "network is not what it says",
            Kind::PacketsLost => "packets lost",
            Kind::CqOverflow => "completion queue overflow",
            Kind::Steal => "steal time",
            Kind::Throttled => "CPU quota",
            Kind::Moved => "virtual CPUs moved",
            Kind::Misplaced => "CPUs not as wanted",
            Kind::OtherProcesses => "other processes",
            Kind::LateSample => "late sample",
            Kind::WindowsApart => "windows apart",
            Kind::SubjectWaits => "the subject waits",
        }
    }

    /// What the reader can do about it.
    pub fn advice(self) -> &'static str {
        match self {
            Kind::ServerNotReady => "run the server's command by hand and read what it says",
            Kind::ServerDied => "run the server's command by hand under the same load",
            Kind::ServerDidNotStop => "a server should end with code 0 soon after SIGTERM",
            Kind::ClientFailed => "run the load's command by hand; check descriptors and ports",
            Kind::BadResult => "compare the load's output with docs/json.md",
            Kind::NoAccounting => {
                "see that all load generators start at the same time and run to their end"
            }
            Kind::NothingAnswered => {
                "check the server, and for UDP its receive buffer; make window and warm-up longer"
            }
            Kind::PayloadMismatch => "the server sends wrong bytes or answers: fix it first",
            Kind::UnverifiedPayload => "have the load generator compare what comes: see its --help",
            Kind::Unbalanced => "the load generator miscounts: its other figures are doubtful",
            Kind::ClientErrors => "check limits on connections and descriptors of the server",
            Kind::UnequalAdmission => "raise the server's backlog, connection or descriptor limit",
            Kind::StarvedConnection => "the server forgets or starves some of its clients",
            Kind::StalledRequest => "the server lost bytes of it, or forgot it",
            Kind::LittlesLaw => "latencies or counts are wrong, or connections hang",
            Kind::ScheduleLag => {
                "the load generator could not keep the schedule: lower the rate, or give it a CPU of \
                 its own"
            }
            Kind::ForeignPackets => {
                "see who else sends to this address, or what the server makes up"
            }
            Kind::KernelDrops => {
                "whose buffer it was, was late to read: see its CPU; larger buffers only hide it"
            }
            Kind::BacklogDrops => {
                "raise net.core.netdev_max_backlog: TCP sends again what is lost, after a while \
                 that is part of the latency"
            }
            Kind::NetworkMismatch => {
                "use another network (--net), and see docs/method.md, Three networks"
            }
            Kind::PacketsLost => {
                "keep fewer bytes in flight: a veth's NAPI holds 256 packets, and TCP sends what it \
                 dropped again after 200 ms"
            }
            Kind::CqOverflow => "give the ring a larger completion queue",
            Kind::Throttled => "a control group limits this process: measure without its CPU quota",
            Kind::Steal => "another guest uses this CPU: measure at a quieter time",
            Kind::Moved => "the hypervisor does that; --placement close waits for one placement",
            Kind::Misplaced => "measure at another time, or with --placement any",
            Kind::OtherProcesses => "stop what else runs on this machine",
            Kind::LateSample => {
                "something kept the lab from running: stop what else runs here; between hosts, \
                 make the window longer"
            }
            Kind::WindowsApart => "a client host started late: stop what else runs there",
            Kind::SubjectWaits => "it sleeps or waits for timers: see its latency",
        }
    }
}
