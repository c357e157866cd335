//! Every system call of the runtime, and the clock.
//!
//! The functions take plain descriptors and slices and return [`std::io::Result`], and keep no
//! state. `EINTR` is retried if the call can be repeated without losing anything. In builds with the
//! feature `faults`, which is for tests, seeded faults can lie between the kernel and the engines,
//! which do not know of them.

pub(crate) mod lend;
mod real;
pub(crate) mod waker;

#[cfg(not(feature = "faults"))]
pub(crate) use real::*;

#[cfg(feature = "faults")]
mod faulty;
#[cfg(feature = "faults")]
pub(crate) use faulty::*;
