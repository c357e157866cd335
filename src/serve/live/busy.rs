//! The idle clocks of the CPUs that the workers are pinned to: what is left of the time is all work
//! there, interrupts and softirq included. Only root may read them, and only before it drops its
//! rights, so the file is kept open.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::time::Instant;
use twinring::Engine;
use twinring_lab::accounting::idle_ns;

/// Longest text that is read: about 4 KiB for each of 2,048 CPUs.
const BYTES_MAX: usize = 8 << 20;

/// The CPUs of both engines, and their clocks.
#[derive(Debug)]
pub(super) struct BusyClock {
    timer_list: File,
    uring: BTreeSet<usize>,
    epoll: BTreeSet<usize>,
    /// The time, and the idle time of the CPUs of both engines, when the comparison began.
    at_start: OnceLock<(Instant, u64, u64)>,
}

impl BusyClock {
    /// `None` if the clocks cannot be read, or an engine has no CPU for itself.
    pub(super) fn open(uring: BTreeSet<usize>, epoll: BTreeSet<usize>) -> Option<BusyClock> {
        if uring.is_empty() || epoll.is_empty() || !uring.is_disjoint(&epoll) {
            return None;
        }
        let timer_list = File::open("/proc/timer_list").ok()?;
        let clock = BusyClock { timer_list, uring, epoll, at_start: OnceLock::new() };
        clock.read().is_some().then_some(clock)
    }

    pub(super) fn start(&self) {
        if let Some(start) = self.read() {
            self.at_start.get_or_init(|| start);
        }
    }

    /// Seconds in which the CPUs of an engine were not idle since the start.
    pub(super) fn busy_s(&self, engine: Engine) -> Option<f64> {
        let (began, uring_before, epoll_before) = self.at_start.get()?;
        let (now, uring, epoll) = self.read()?;
        let (before, idle_ns, cpus) = match engine {
            Engine::IoUring => (uring_before, uring, &self.uring),
            Engine::Epoll => (epoll_before, epoll, &self.epoll),
        };
        let all_s = now.duration_since(*began).as_secs_f64() * cpus.len() as f64;
        Some((all_s - idle_ns.saturating_sub(*before) as f64 / 1e9).max(0.0))
    }

    fn read(&self) -> Option<(Instant, u64, u64)> {
        let now = Instant::now();
        let mut text = Vec::new();
        let mut chunk = [0; 16 * 1024];
        while text.len() < BYTES_MAX {
            match self.timer_list.read_at(&mut chunk, text.len() as u64).ok()? {
                0 => break,
                length => text.extend_from_slice(&chunk[..length]),
            }
        }
        let text = String::from_utf8_lossy(&text);
        let sum = |cpus: &BTreeSet<usize>| cpus.iter().map(|cpu| idle_ns(&text, *cpu)).sum();
        let (uring, epoll): (Option<u64>, Option<u64>) = (sum(&self.uring), sum(&self.epoll));
        Some((now, uring?, epoll?))
    }
}
