//! Every system call of the runtime, and the clock. In builds with the feature `faults`, which is for
//! tests, seeded faults can lie between the kernel and the engines, which do not know of them.

pub(crate) mod lend;
pub(crate) mod real;
pub(crate) mod waker;

#[cfg(not(feature = "faults"))]
pub(crate) use real::*;

#[cfg(feature = "faults")]
mod faulty;
#[cfg(feature = "faults")]
pub(crate) use faulty::*;
