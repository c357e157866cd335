//! The capabilities of this machine: which engine can run, with which features, and for every
//! missing feature the layer that refuses it and the fix.
//!
//! Features are probed, versions never compared: distributions carry new features on old
//! releases and leave out others. Kernels with a fault that the engine cannot avoid are the one
//! exception (`uring::FAULTS`).

mod environment;
mod layers;
pub mod prices;
mod uring;

pub use self::environment::{Container, Environment, Limit};
pub(crate) use self::layers::ring_refused;
pub use self::layers::{Layer, Refusal};
pub(crate) use self::uring::select_uring;
pub use self::uring::{FeatureReport, UringReport};

use crate::config::UringOptions;
use crate::sys;
use serde::Serialize;

/// The result of the probe.
#[derive(Clone, Debug, Serialize)]
pub struct Capabilities {
    /// The restrictions between this process and io_uring.
    pub environment: Environment,
    /// The features of io_uring; `None` if it is refused as a whole.
    pub uring: Option<UringReport>,
    /// The features that the engine uses by default; `None` if it cannot run.
    pub chosen: Option<UringOptions>,
    /// Why the engine cannot run on io_uring.
    pub refusal: Option<Refusal>,
    /// epoll_pwait2(2) is there (Linux 5.11); without it timeouts of the epoll engine are rounded
    /// up to milliseconds.
    pub epoll_pwait2: bool,
}

impl Capabilities {
    /// Runs the whole probe; about a millisecond.
    pub fn detect() -> Capabilities {
        let environment = Environment::read();
        let (uring, refused) = match UringReport::detect(&environment) {
            Ok(uring) => (Some(uring), None),
            Err(refusal) => (None, Some(refusal)),
        };
        // The selection has the better message about exhausted memory.
        let chosen = select_uring(&UringOptions::default(), 1, None);
        let refusal = chosen.as_ref().err().cloned().or(refused);
        let chosen = chosen.ok().filter(|_| refusal.is_none());
        Capabilities { environment, uring, chosen, refusal, epoll_pwait2: sys::poll::has_pwait2() }
    }

    /// The default features that are not available here.
    pub fn missing(&self) -> Vec<&FeatureReport> {
        let features = self.uring.iter().flat_map(|uring| &uring.features);
        features.filter(|it| it.option.is_none() && it.refusal.is_some()).collect()
    }
}
