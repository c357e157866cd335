//! Limits of a running server, its use of resources, and what remains of that afterwards.

use crate::support::{SOCKETS_WITHOUT_CONNECTIONS, Server};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

/// Sets a soft limit of a running server; `None` is the hard limit.
pub(crate) fn limit(server: &Server, resource: Resource, soft: Option<u64>) {
    // It has the hard limits of this process.
    let maximum = getrlimit(resource).maximum;
    let pid = Pid::from_raw(server.pid() as i32);
    let new = Rlimit { current: soft.or(maximum), maximum };
    prlimit(pid, resource, new).expect("it is a child of this process");
}

/// Raises the hard limit of a running server as well; false without CAP_SYS_RESOURCE.
pub(crate) fn raise(server: &Server, resource: Resource, to: u64) -> bool {
    let pid = Pid::from_raw(server.pid() as i32);
    prlimit(pid, resource, Rlimit { current: Some(to), maximum: Some(to) }).is_ok()
}

/// What the tests of this suite have open at the same time, at most.
pub(crate) const TESTS_DESCRIPTORS: u64 = 5_000;

/// The resources of a server without connections.
#[derive(Clone, Copy)]
pub(crate) struct Usage {
    descriptors: usize,
    memory_bytes: u64,
}

impl Usage {
    /// Waits until the connections have ended: `listeners` remain.
    pub(crate) fn at_rest(server: &Server, listeners: usize) -> Usage {
        server.wait_for_sockets(SOCKETS_WITHOUT_CONNECTIONS - 1 + listeners);
        Usage { descriptors: server.descriptors(), memory_bytes: server.memory_bytes() }
    }

    /// As [`at_rest`](Usage::at_rest), while another client is connected.
    pub(crate) fn at_rest_but_one(server: &Server, listeners: usize) -> Usage {
        Usage::at_rest(server, listeners + 1)
    }
}

/// Rounds of clients until one leaves no more than the previous one.
const ROUNDS_MAX: u32 = 5;

/// Runs equal rounds of clients until one leaves no more descriptors than the previous one, and at
/// most `tolerance_bytes` more: an allocator does not find the same holes twice, and a file may be
/// open for a check, but a leak would occur each time. `clients` returns the resources in use after
/// a round.
pub(crate) fn clients_leave_nothing(tolerance_bytes: u64, mut clients: impl FnMut() -> Usage) {
    let mut before = clients();
    for _ in 1..ROUNDS_MAX {
        let after = clients();
        let growth = after.memory_bytes.saturating_sub(before.memory_bytes);
        if after.descriptors <= before.descriptors && growth <= tolerance_bytes {
            return;
        }
        before = after;
    }
    panic!("each of {ROUNDS_MAX} rounds left descriptors, or more than {tolerance_bytes} bytes");
}
