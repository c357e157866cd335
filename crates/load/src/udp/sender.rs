//! Sending the packets of one thread, once per tick.

use super::settings::Settings;
use super::traffic::Traffic;
use crate::recorder::histogram;
use crate::run::Control;
use hdrhistogram::Histogram;
use std::cell::RefCell;
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use twinring::measure::{CallTime, call_times, monotonic_ns, restart_call_times};
use twinring::{UdpSocket, time::Interval, yield_now};

/// How long after the window packets may still leave that were due inside it.
const LATE_SENDS_NS: u64 = 100_000_000;
/// Sockets whose drops are read in one tick: a system call each.
const DROPS_PER_TICK: usize = 32;

/// The counts of the sockets since the window began.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SocketCounts {
    /// Packets that the kernel refused to send.
    pub(super) refused: u64,
    /// ICMP errors about something sent.
    pub(super) icmp: u64,
    /// Sends that found a full buffer and waited.
    pub(super) blocked: u64,
    /// Buffers that the kernel did not segment.
    pub(super) gso_fallbacks: u64,
}

/// The task that sends, and what it leaves behind.
pub(super) struct Sender {
    index: usize,
    settings: Arc<Settings>,
    control: Arc<Control>,
    sockets: Rc<Vec<UdpSocket>>,
    traffic: Rc<RefCell<Traffic>>,
    pub(super) overrun_ns: Histogram<u64>,
    /// The counts of each socket when the window began.
    pub(super) before: Vec<SocketCounts>,
    /// The kernel's drops of each socket shortly before; `None` if the kernel does not report them.
    drops_before: Option<Vec<u64>>,
    /// System calls inside the window.
    pub(super) calls: Vec<CallTime>,
}

impl Sender {
    pub(super) fn new(
        index: usize,
        settings: Arc<Settings>,
        control: Arc<Control>,
        sockets: Rc<Vec<UdpSocket>>,
        traffic: Rc<RefCell<Traffic>>,
    ) -> Sender {
        let drops_before = Some(Vec::with_capacity(sockets.len()));
        let (overrun_ns, before) = (histogram(), Vec::new());
        Sender {
            index,
            settings,
            control,
            sockets,
            traffic,
            overrun_ns,
            before,
            drops_before,
            calls: Vec::new(),
        }
    }

    /// Sends until all packets of the window have left, and waits for replies.
    pub(super) async fn run(mut self) -> Sender {
        let mut ticker = Interval::new(self.settings.tick);
        let (mut behind, mut begun, mut over) = (false, false, false);
        loop {
            // A sender that is late does not wait for the next tick.
            let overrun = if behind {
                yield_now().await;
                None
            } else {
                ticker.tick().await.overrun
            };
            // Its end may come earlier than planned.
            let window = self.control.window();
            let now_ns = monotonic_ns();
            if let Some(late) = overrun.filter(|_| window.contains(&now_ns)) {
                self.overrun_ns.saturating_record((late.as_nanos() as u64).max(1));
            }
            if now_ns >= window.start && !std::mem::replace(&mut begun, true) {
                restart_call_times();
            }
            behind = match self.send(now_ns, &window) {
                Ok(all_sent) => !all_sent,
                Err(error) => {
                    let what = || format!("sending: {error}");
                    self.traffic.borrow_mut().totals.failed(now_ns, what);
                    break;
                }
            };
            if now_ns >= window.end {
                if !std::mem::replace(&mut over, true) {
                    self.calls = call_times();
                }
                if !behind || now_ns >= window.end + LATE_SENDS_NS {
                    break;
                }
            } else if now_ns < window.start {
                self.note_drops(window.start - now_ns);
            }
            self.show_progress();
        }
        let end_ns = monotonic_ns() + self.settings.drain.as_nanos() as u64;
        while monotonic_ns() < end_ns {
            ticker.tick().await;
        }
        self
    }

    /// Sends due packets: first those before the window. False if there are more.
    fn send(&mut self, now_ns: u64, window: &Range<u64>) -> io::Result<bool> {
        let mut traffic = self.traffic.borrow_mut();
        let last_ns = window.end.saturating_sub(1).min(now_ns);
        if !traffic.measuring {
            let before_ns = window.start.saturating_sub(1);
            traffic.send_due(&self.sockets, last_ns.min(before_ns))?;
            if last_ns <= before_ns || traffic.behind(before_ns) > 0 {
                return Ok(traffic.behind(last_ns) == 0);
            }
            self.before = self.sockets.iter().map(counts).collect();
            traffic.measuring = true;
        }
        traffic.send_due(&self.sockets, last_ns)?;
        Ok(traffic.behind(last_ns) == 0)
    }

    /// Reads the kernel's drops of some sockets, if the window begins soon: all have been read by
    /// then, and no tick is delayed by thousands of system calls.
    fn note_drops(&mut self, ahead_ns: u64) {
        let Some(drops) = &mut self.drops_before else { return };
        let left = self.sockets.len() - drops.len();
        let ticks = (ahead_ns / self.settings.tick.as_nanos() as u64) as usize;
        if ticks > left.div_ceil(DROPS_PER_TICK) + 1 {
            return;
        }
        let asked: io::Result<Vec<u64>> = self.sockets[drops.len()..]
            .iter()
            .take(DROPS_PER_TICK)
            .map(|socket| socket.stats().map(|stats| stats.kernel_drops))
            .collect();
        match asked {
            Ok(asked) => drops.extend(asked),
            Err(_) => self.drops_before = None,
        }
    }

    fn show_progress(&self) {
        let traffic = self.traffic.borrow();
        let totals = &traffic.totals;
        self.control.show(self.index, totals.received, totals.round_trip_ns);
        self.control.show_errors(self.index, totals.mismatched + totals.receive_errors);
    }

    /// What the kernel has dropped since the window began.
    pub(super) fn drops_since(&self) -> Option<u64> {
        let before = self.drops_before.as_ref()?;
        let mut sum = 0;
        for (at, socket) in self.sockets.iter().enumerate() {
            let drops = socket.stats().ok()?.kernel_drops;
            // The kernel counts modulo 2^32.
            let before = before.get(at).copied().unwrap_or(0);
            sum += u64::from((drops as u32).wrapping_sub(before as u32));
        }
        Some(sum)
    }
}

pub(super) fn counts(socket: &UdpSocket) -> SocketCounts {
    let stats = socket.counted();
    SocketCounts {
        refused: stats.send_errors.total(),
        icmp: stats.icmp_errors,
        blocked: stats.blocked,
        gso_fallbacks: stats.gso_fallbacks,
    }
}

impl SocketCounts {
    pub(super) fn since(mut self, before: Option<&SocketCounts>) -> SocketCounts {
        let before = before.copied().unwrap_or_default();
        self.refused -= before.refused;
        self.icmp -= before.icmp;
        self.blocked -= before.blocked;
        self.gso_fallbacks -= before.gso_fallbacks;
        self
    }

    pub(super) fn add(&mut self, other: &SocketCounts) {
        self.refused += other.refused;
        self.icmp += other.icmp;
        self.blocked += other.blocked;
        self.gso_fallbacks += other.gso_fallbacks;
    }
}
