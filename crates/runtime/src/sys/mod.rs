//! The seam between the runtime and its platform: every system call, the clock, and threads.
//!
//! Below it is the kernel of this machine (`real`). In builds with the feature `sim` a call may
//! instead be answered by a simulated machine, if it concerns an object of such a machine
//! (`simulated`; docs/simulation.md). This choice is made only here. Seeded faults are also below
//! it: the drivers know of neither.
//!
//! The functions take plain descriptors and slices and return [`std::io::Result`], and keep no
//! state. `EINTR` is retried if the call can be repeated without losing anything.

pub(crate) mod lend;
mod real;
pub(crate) mod waker;

#[cfg(not(feature = "sim"))]
pub(crate) use real::*;

#[cfg(feature = "sim")]
mod simulated;
#[cfg(feature = "sim")]
pub(crate) use simulated::*;
