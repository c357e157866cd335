//! The one seam between the runtime and what it runs on: every system call, the clock, and threads.
//!
//! Below it lies the kernel of this machine (`real`). In builds with the feature `sim` each call may
//! instead be answered by a simulated machine, if it is about something that such a machine has made
//! (`simulated`; docs/simulation.md). Which of the two it is, is decided here and nowhere else. Seeded
//! faults are below it, too: the drivers know of neither.
//!
//! The functions take plain descriptors and slices and return [`std::io::Result`]; nothing in here
//! keeps state. `EINTR` is retried where the call can be repeated without losing anything.

mod real;
pub(crate) mod waker;

#[cfg(not(feature = "sim"))]
pub(crate) use real::*;

#[cfg(feature = "sim")]
mod simulated;
#[cfg(feature = "sim")]
pub(crate) use simulated::*;
