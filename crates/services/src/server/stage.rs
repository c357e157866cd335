//! The stage of a service, for all threads to see; and what has to be let go when it shuts down.

use std::io;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use twinring::net::{Steering, Targets};

/// The stage of a service. It only advances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Some workers do not accept yet.
    Starting,
    /// All workers accept.
    Ready,
    /// At least one worker was asked to finish.
    Draining,
}

/// What the workers of a service share with other threads.
#[derive(Debug, Default)]
pub(crate) struct SharedStage {
    stage: AtomicU8,
    /// For each address. Each holds a listening socket open, so all are dropped at shutdown.
    steering: Mutex<Vec<Steering>>,
}

impl SharedStage {
    pub(super) fn ready(&self) {
        self.stage.fetch_max(Stage::Ready as u8, Ordering::AcqRel);
    }

    pub(crate) fn begin_drain(&self) {
        self.stage.fetch_max(Stage::Draining as u8, Ordering::AcqRel);
        self.steer_by(Vec::new());
    }

    pub(super) fn steer_by(&self, steering: Vec<Steering>) {
        *self.steering.lock().unwrap_or_else(PoisonError::into_inner) = steering;
    }

    pub(crate) fn get(&self) -> Stage {
        match self.stage.load(Ordering::Acquire) {
            0 => Stage::Starting,
            1 => Stage::Ready,
            _ => Stage::Draining,
        }
    }
}

/// Steers new connections, or datagrams, to some of the workers of a service.
#[derive(Clone, Debug)]
pub struct Steerer(pub(super) Arc<SharedStage>);

impl Steerer {
    /// From now on, they go to `targets`; see [`Steering`]. Does nothing during a shutdown.
    ///
    /// # Errors
    /// When there is no such worker, or the kernel does not support it.
    pub fn steer(&self, targets: Targets) -> io::Result<()> {
        let steering = self.0.steering.lock().unwrap_or_else(PoisonError::into_inner);
        steering.iter().try_for_each(|steering| steering.steer(targets))
    }
}
