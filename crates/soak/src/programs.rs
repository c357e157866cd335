//! Other programs of a run: blocking ones, on threads of the world.

use crate::plan::Plan;
use std::net::{SocketAddr, UdpSocket};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;
use twinring::sim::World;

/// Programs that run together. They end by themselves, in bounded simulated time.
#[derive(Default)]
pub(crate) struct Programs(Vec<JoinHandle<()>>);

impl Programs {
    pub(crate) fn spawn_program(&mut self, program: impl FnOnce() + Send + 'static) {
        self.0.push(spawn(program));
    }

    /// Waits until all have ended.
    ///
    /// # Panics
    /// With that of a program that found a fault.
    pub(crate) fn leave(self) {
        for program in self.0 {
            program.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    }
}

/// Descriptors that are left when a program takes all others: a few to many.
const LEFT_MAX: u64 = 200;

/// Makes descriptors scarce: the machine has few more than it uses now, and a program takes the
/// rest, and releases it, again and again. So accepting, connecting and opening hit EMFILE.
pub(crate) fn run_out_of_descriptors(world: &World, plan: &mut Plan, programs: &mut Programs) {
    let open = World::current().map_or(0, |world| world.open_descriptors());
    world.set_descriptors_max(open + plan.about(4, LEFT_MAX) as usize);
    let mut plan = plan.branch();
    programs.spawn_program(move || {
        for _ in 0..plan.about(1, 20) {
            let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
            let taken: Vec<UdpSocket> =
                std::iter::from_fn(|| UdpSocket::bind(anywhere).ok()).collect();
            sleep(plan.milliseconds(1, 500));
            drop(taken);
            sleep(Duration::from_millis(plan.about(1, 500)));
        }
    });
}
