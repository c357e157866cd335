//! One worker thread of the load: it opens its sockets, begins with the others, sends with each
//! tick, and returns its counts.

use super::control::{Control, Note};
use super::ledger::{Ledger, Stream};
use super::packet::Format;
use super::plan::Plan;
use super::settings::Settings;
use super::traffic::{AT_ONCE_MIN, Shape, Sockets, Totals, Traffic};
use crate::cpu::{CpuStart, CpuUse};
use crate::recorder::histogram;
use hdrhistogram::Histogram;
use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use twinring::net::Granted;
use twinring::{
    CallTime, Ticker, UdpSocket, call_times, monotonic_ns, restart_call_times, spawn, yield_now,
};

/// How long after the window packets may still leave that were due inside it.
const LATE_SENDS_NS: u64 = 100_000_000;
/// Sockets whose drops are read in one tick: a system call each.
const DROPS_PER_TICK: usize = 32;
/// Sockets opened between two checks whether the run was stopped.
const OPENED_PER_LOOK: usize = 64;

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

/// A stream with its number among all.
pub(super) struct Row {
    pub(super) number: u64,
    pub(super) ssrc: u32,
    pub(super) counts: Stream,
}

/// The result of a thread.
pub(super) struct Outcome {
    pub(super) rows: Vec<Row>,
    pub(super) totals: Totals,
    /// Due inside the window and not sent.
    pub(super) unsent: u64,
    pub(super) round_trip_ns: Histogram<u64>,
    pub(super) lateness_ns: Histogram<u64>,
    pub(super) overrun_ns: Histogram<u64>,
    pub(super) sockets: SocketCounts,
    /// `None` if the kernel does not report them.
    pub(super) kernel_drops: Option<u64>,
    /// The smallest buffers that a socket got.
    pub(super) granted: Option<Granted>,
    pub(super) cpu: CpuUse,
    pub(super) calls: Vec<CallTime>,
}

struct Worker {
    index: usize,
    settings: Arc<Settings>,
    control: Arc<Control>,
    sockets: Rc<Vec<UdpSocket>>,
    traffic: Rc<RefCell<Traffic>>,
    overrun_ns: Histogram<u64>,
    /// The counts of each socket when the window began.
    before: Vec<SocketCounts>,
    /// The kernel's drops of each socket shortly before; `None` if the kernel does not report them.
    drops_before: Option<Vec<u64>>,
    granted: Option<Granted>,
}

/// Runs the share of the load of thread `index`; `submits` if sends wait for `twinring::submit`.
pub(super) async fn work(
    index: usize,
    settings: Arc<Settings>,
    control: Arc<Control>,
    submits: bool,
) -> Outcome {
    let mut worker = Worker::open(index, settings, control, submits);
    worker.control.note(Note::Ready { opened: worker.own() });
    worker.receive();
    worker.run().await
}

impl Worker {
    /// Opens this thread's sockets, as many as can be. Failures are counted.
    fn open(index: usize, settings: Arc<Settings>, control: Arc<Control>, submits: bool) -> Worker {
        let streams = settings.streams_of(index);
        let wanted = if settings.single_socket { 1 } else { streams };
        let options = settings.socket_options();
        let mut sockets = Vec::new();
        let mut granted: Option<Granted> = None;
        let mut totals = Totals::default();
        for own in 0..wanted {
            if sockets.len().is_multiple_of(OPENED_PER_LOOK) && control.is_stopped() {
                break;
            }
            let number = own * settings.workers.threads as u64 + index as u64;
            let local = match settings.local.len() as u64 {
                0 => None,
                count => settings.local.get((number % count) as usize),
            };
            let local = local.map(|address| SocketAddr::new(*address, 0));
            let opened = options.connect(local, settings.target).and_then(|bound| {
                let got = bound.granted();
                UdpSocket::from_bound(bound).map(|socket| (socket, got))
            });
            match opened {
                Ok((socket, got)) => {
                    sockets.push(socket);
                    granted = Some(granted.map_or(got, |least| smaller(least, got)));
                }
                Err(error) => {
                    totals.failed(monotonic_ns(), || open_failure(number, &error));
                    break;
                }
            }
        }
        let own = match settings.single_socket {
            true if !sockets.is_empty() => streams,
            _ => sockets.len() as u64,
        };
        let shape = Shape {
            format: Format::new(
                settings.payload,
                settings.packet_bytes as usize,
                settings.seed,
                settings.rate.millionths(),
            ),
            sockets: if settings.single_socket { Sockets::Single } else { Sockets::Each },
            verify: settings.verify,
            gso: settings.gso,
            submits,
            at_once_max: settings.at_once_max(AT_ONCE_MIN),
        };
        let ledger = Ledger::new(own as usize, settings.remembered());
        let mut traffic = Traffic::new(shape, plan(&settings, index, own, 0), ledger);
        traffic.totals = totals;
        Worker {
            index,
            drops_before: Some(Vec::with_capacity(sockets.len())),
            sockets: Rc::new(sockets),
            traffic: Rc::new(RefCell::new(traffic)),
            overrun_ns: histogram(),
            before: Vec::new(),
            granted,
            settings,
            control,
        }
    }

    /// Streams of this thread that have a socket.
    fn own(&self) -> u64 {
        self.traffic.borrow().ledger.streams().len() as u64
    }

    /// Starts a task for each socket, which runs only when datagrams have arrived.
    fn receive(&self) {
        for at in 0..self.sockets.len() {
            let (sockets, traffic) = (Rc::clone(&self.sockets), Rc::clone(&self.traffic));
            spawn(async move {
                poll_fn(|cx| traffic.borrow_mut().poll_receive(&sockets, at, cx)).await;
            });
        }
    }

    async fn run(&mut self) -> Outcome {
        let mut ticker = Ticker::new(self.settings.tick);
        let window = loop {
            match self.control.window() {
                Some(window) => break window,
                None if self.control.is_cancelled() => return self.outcome(&(0..0), None),
                None => ticker.tick().await,
            };
        };
        let first_ns = window.start - self.settings.warmup.as_nanos() as u64;
        let plan = plan(&self.settings, self.index, self.own(), first_ns);
        self.traffic.borrow_mut().begin(plan);
        let mut cpu_start = None;
        let mut measured = None;
        let mut behind = false;
        let window = loop {
            // A sender that is late does not wait for the next tick.
            let overrun = if behind {
                yield_now().await;
                None
            } else {
                ticker.tick().await.overrun
            };
            // Its end may come earlier than planned.
            let window = self.control.window().unwrap_or(0..0);
            let now_ns = monotonic_ns();
            if now_ns >= window.start && cpu_start.is_none() {
                cpu_start = Some(CpuStart::read());
                restart_call_times();
            }
            if let Some(late) = overrun.filter(|_| window.contains(&now_ns)) {
                self.overrun_ns.saturating_record((late.as_nanos() as u64).max(1));
            }
            behind = match self.send(now_ns, &window) {
                Ok(all_sent) => !all_sent,
                Err(error) => {
                    let what = || format!("sending: {error}");
                    self.traffic.borrow_mut().totals.failed(now_ns, what);
                    break window;
                }
            };
            if now_ns >= window.end {
                measured.get_or_insert_with(|| {
                    (cpu_start.as_ref().map(CpuStart::used).unwrap_or_default(), call_times())
                });
                if !behind || now_ns >= window.end + LATE_SENDS_NS {
                    break window;
                }
            } else if now_ns < window.start {
                self.note_drops(window.start - now_ns);
            }
            self.show_progress();
        };
        let end_ns = monotonic_ns() + self.settings.drain.as_nanos() as u64;
        while monotonic_ns() < end_ns {
            ticker.tick().await;
        }
        self.outcome(&window, measured)
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
        let (traffic, progress) = (self.traffic.borrow(), &self.control.progress[self.index]);
        let totals = &traffic.totals;
        progress.received.store(totals.received, Relaxed);
        progress.round_trip_ns.store(totals.round_trip_ns, Relaxed);
        progress.errors.store(totals.mismatched + totals.receive_errors, Relaxed);
    }

    /// The counts of the window.
    fn outcome(
        &mut self,
        window: &Range<u64>,
        measured: Option<(CpuUse, Vec<CallTime>)>,
    ) -> Outcome {
        let mut traffic = self.traffic.borrow_mut();
        let since: Vec<SocketCounts> = (self.sockets.iter().enumerate())
            .map(|(at, socket)| counts(socket).since(self.before.get(at)))
            .collect();
        let measuring = traffic.measuring;
        let due_until = |ns: u64| traffic.plan().due(ns.saturating_sub(1));
        let due = due_until(window.end).saturating_sub(due_until(window.start));
        let unsent = match measuring || window.end > window.start {
            true => due.saturating_sub(traffic.totals.sent),
            false => 0,
        };
        let rows = (0u32..).zip(traffic.ledger.streams()).map(|(own, counts)| {
            let number = traffic.plan().global(own);
            let mut counts = counts.clone();
            if !self.settings.single_socket && measuring {
                // If a socket has one stream, its refused packets are known.
                counts.sent = counts.sent.saturating_sub(since[own as usize].refused);
            }
            Row { number, ssrc: traffic.format().ssrc(number), counts }
        });
        let rows = rows.collect();
        let mut sockets = SocketCounts::default();
        since.iter().filter(|_| measuring).for_each(|counts| sockets.add(counts));
        let (cpu, calls) = measured.unwrap_or_default();
        Outcome {
            rows,
            unsent,
            sockets,
            kernel_drops: self.drops_since(),
            granted: self.granted,
            cpu,
            calls,
            overrun_ns: std::mem::replace(&mut self.overrun_ns, histogram()),
            totals: std::mem::take(&mut traffic.totals),
            round_trip_ns: std::mem::replace(&mut traffic.round_trip_ns, histogram()),
            lateness_ns: std::mem::replace(&mut traffic.lateness_ns, histogram()),
        }
    }

    fn drops_since(&self) -> Option<u64> {
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

fn plan(settings: &Settings, index: usize, own: u64, first_ns: u64) -> Plan {
    let thread = (index as u64, settings.workers.threads as u64);
    Plan::new(settings.rate, settings.spread, settings.streams, thread, own, first_ns)
}

fn counts(socket: &UdpSocket) -> SocketCounts {
    let stats = socket.counted();
    SocketCounts {
        refused: stats.send_errors.total(),
        icmp: stats.icmp_errors,
        blocked: stats.blocked,
        gso_fallbacks: stats.gso_fallbacks,
    }
}

impl SocketCounts {
    fn since(mut self, before: Option<&SocketCounts>) -> SocketCounts {
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

fn smaller(mut least: Granted, other: Granted) -> Granted {
    least.recv_buffer_bytes = least.recv_buffer_bytes.min(other.recv_buffer_bytes);
    least.send_buffer_bytes = least.send_buffer_bytes.min(other.send_buffer_bytes);
    least.gro &= other.gro;
    least.gso &= other.gso;
    least
}

fn open_failure(number: u64, error: &io::Error) -> String {
    let advice = match error.kind() {
        io::ErrorKind::AddrNotAvailable | io::ErrorKind::AddrInUse => {
            "; no local port is free: give more source addresses with --local"
        }
        // The errors of setting up a socket are text around the kernel's own.
        _ if error.to_string().contains("os error 24") => {
            "; raise the limit of descriptors with `ulimit -n`"
        }
        _ => "",
    };
    format!("socket {number}: {error}{advice}")
}
