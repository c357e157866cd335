//! Who else is there while a load runs: programs with blocking calls, on threads of the world.

use crate::plan::Plan;
use std::net::{SocketAddr, UdpSocket};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;
use twinring::sim::World;

/// Some that came together. They end by themselves, in bounded simulated time.
#[derive(Default)]
pub(crate) struct Company(Vec<JoinHandle<()>>);

impl Company {
    pub(crate) fn invite(&mut self, guest: impl FnOnce() + Send + 'static) {
        self.0.push(spawn(guest));
    }

    /// Waits until all have gone.
    ///
    /// # Panics
    /// With whoever found something wrong.
    pub(crate) fn leave(self) {
        for guest in self.0 {
            guest.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    }
}

/// Descriptors that are left for everybody when somebody takes them all: a few to a lot.
const LEFT_MAX: u64 = 200;

/// Lets descriptors be scarce: the machine has few more than it uses now, and somebody takes what is
/// left, and gives it back, again and again. So EMFILE meets accepting, connecting and opening.
pub(crate) fn run_out_of_descriptors(world: &World, plan: &mut Plan, company: &mut Company) {
    let open = World::current().map_or(0, |world| world.open_descriptors());
    world.set_descriptors_max(open + plan.about(4, LEFT_MAX) as usize);
    let mut plan = plan.branch();
    company.invite(move || {
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
