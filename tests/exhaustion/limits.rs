//! Limits of a server that runs already, what it uses, and what is left of that afterwards.

use crate::support::{SOCKETS_WITHOUT_CONNECTIONS, Server};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use std::fmt;

/// Sets a limit of a running server: its soft one, `None` for as much as it may have.
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

/// Lets this process have as many descriptors as it may: crowds are large.
pub(crate) fn make_room_for_crowds() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let new = Rlimit { current: maximum, maximum };
    rustix::process::setrlimit(Resource::Nofile, new).expect("a soft limit below the hard one");
}

/// What a server without connections uses.
#[derive(Clone, Copy)]
pub(crate) struct Usage {
    descriptors: usize,
    memory_bytes: u64,
}

impl Usage {
    /// Waits until the connections are gone: `listeners` remain.
    pub(crate) fn at_rest(server: &Server, listeners: usize) -> Usage {
        server.wait_for_sockets(SOCKETS_WITHOUT_CONNECTIONS - 1 + listeners);
        Usage { descriptors: server.descriptors(), memory_bytes: server.memory_bytes() }
    }

    /// As [`at_rest`](Usage::at_rest), while a witness is connected.
    pub(crate) fn at_rest_but_one(server: &Server, listeners: usize) -> Usage {
        Usage::at_rest(server, listeners + 1)
    }
}

/// Crowds until one leaves no more than the one before.
const CROWDS_MAX: u32 = 5;

/// Lets crowds come, one like the other, until one leaves no more descriptors than the one before
/// it, and at most `tolerance_bytes` more: an allocator does not find the same holes twice, and a
/// file may just be looked at, but a leak would come each time. `crowd` returns what is in use after
/// it.
pub(crate) fn crowds_leave_nothing(
    tolerance_bytes: u64,
    mut crowd: impl FnMut() -> Usage,
) -> Growth {
    let mut before = crowd();
    for _ in 1..CROWDS_MAX {
        let after = crowd();
        let growth = after.memory_bytes.saturating_sub(before.memory_bytes);
        if after.descriptors <= before.descriptors && growth <= tolerance_bytes {
            return Growth(growth);
        }
        let (now, then) = (after.descriptors, before.descriptors);
        println!("a crowd left {growth} bytes more, and {now} descriptors after {then}");
        before = after;
    }
    panic!("each of {CROWDS_MAX} crowds left descriptors, or more than {tolerance_bytes} bytes");
}

/// Bytes that were not given back.
pub(crate) struct Growth(u64);

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "descriptors back, {} KiB more than before", self.0 >> 10)
    }
}
