//! The streams of one worker thread: it opens their sockets, sends with each tick, and returns its counts.

use super::ledger::{Ledger, Stream};
use super::packet::Format;
use super::plan::Plan;
use super::sender::{Sender, SocketCounts, counts};
use super::settings::Settings;
use super::traffic::{AT_ONCE_MIN, Shape, Sockets, Totals, Traffic};
use crate::cpu::CpuUse;
use crate::recorder::histogram;
use crate::run::{Client, Control, work};
use hdrhistogram::Histogram;
use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use twinring::net::Granted;
use twinring::{
    JoinHandle, UdpSocket,
    measure::{CallTime, monotonic_ns},
    spawn, yield_now,
};

/// Sockets opened between two moments at which the run may be stopped.
const OPENED_AT_ONCE: usize = 64;

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

struct Streams {
    index: usize,
    settings: Arc<Settings>,
    control: Arc<Control>,
    /// Sends wait for `twinring::submit`.
    submits: bool,
    sockets: Rc<Vec<UdpSocket>>,
    traffic: Rc<RefCell<Traffic>>,
    granted: Option<Granted>,
    sending: Option<JoinHandle<Sender>>,
    sent: Option<Sender>,
}

/// Runs the share of the load of thread `index`; `submits` if sends wait for `twinring::submit`.
pub(super) async fn run_thread(
    index: usize,
    settings: Arc<Settings>,
    control: Arc<Control>,
    submits: bool,
) -> Outcome {
    let warmup = settings.warmup;
    let streams = Streams {
        index,
        submits,
        sockets: Rc::default(),
        traffic: Rc::new(RefCell::new(traffic(&settings, index, 0, submits))),
        granted: None,
        sending: None,
        sent: None,
        control: Arc::clone(&control),
        settings,
    };
    work(streams, &control, warmup).await
}

fn traffic(settings: &Settings, index: usize, own: u64, submits: bool) -> Traffic {
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
    Traffic::new(shape, plan(settings, index, own, 0), ledger)
}

fn plan(settings: &Settings, index: usize, own: u64, first_ns: u64) -> Plan {
    let thread = (index as u64, settings.workers.threads as u64);
    Plan::new(settings.rate, settings.spread, settings.streams, thread, own, first_ns)
}

impl Streams {
    /// Streams of this thread that have a socket.
    fn own(&self) -> u64 {
        self.traffic.borrow().ledger.streams().len() as u64
    }

    fn open_one(&self, own: u64) -> io::Result<(UdpSocket, Granted)> {
        let settings = &self.settings;
        let number = own * settings.workers.threads as u64 + self.index as u64;
        let local = match settings.local.len() as u64 {
            0 => None,
            count => settings.local.get((number % count) as usize),
        };
        let local = local.map(|address| SocketAddr::new(*address, 0));
        let bound = settings.socket_options().connect(local, settings.target)?;
        let granted = bound.granted();
        Ok((UdpSocket::from_bound(bound)?, granted))
    }
}

impl Client for Streams {
    type Outcome = Outcome;

    async fn open(&mut self) -> u64 {
        let (settings, streams) =
            (Arc::clone(&self.settings), self.settings.streams_of(self.index));
        let wanted = if settings.single_socket { 1 } else { streams };
        let (mut sockets, mut totals) = (Vec::new(), Totals::default());
        for own in 0..wanted {
            if sockets.len().is_multiple_of(OPENED_AT_ONCE) {
                yield_now().await;
            }
            match self.open_one(own) {
                Ok((socket, granted)) => {
                    sockets.push(socket);
                    let least = self.granted.map_or(granted, |least| smaller(least, granted));
                    self.granted = Some(least);
                }
                Err(error) => {
                    totals.failed(monotonic_ns(), || open_failure(own, &error));
                    break;
                }
            }
        }
        let own = match settings.single_socket {
            true if !sockets.is_empty() => streams,
            _ => sockets.len() as u64,
        };
        let mut traffic = traffic(&settings, self.index, own, self.submits);
        traffic.totals = totals;
        (self.traffic, self.sockets) = (Rc::new(RefCell::new(traffic)), Rc::new(sockets));
        // A task for each socket, which runs only when datagrams have arrived.
        for at in 0..self.sockets.len() {
            let (sockets, traffic) = (Rc::clone(&self.sockets), Rc::clone(&self.traffic));
            spawn(async move {
                poll_fn(|cx| traffic.borrow_mut().poll_receive(&sockets, at, cx)).await;
            });
        }
        own
    }

    fn begin(&mut self, first_ns: u64) {
        let plan = plan(&self.settings, self.index, self.own(), first_ns);
        self.traffic.borrow_mut().begin(plan);
        let sender = Sender::new(
            self.index,
            Arc::clone(&self.settings),
            Arc::clone(&self.control),
            Rc::clone(&self.sockets),
            Rc::clone(&self.traffic),
        );
        self.sending = Some(spawn(sender.run()));
    }

    async fn drain(&mut self) {
        if let Some(sending) = self.sending.take() {
            // Aborted only by the end of the runtime.
            self.sent = sending.await.ok();
        }
    }

    fn outcome(self, cpu: CpuUse) -> Outcome {
        let mut traffic = self.traffic.borrow_mut();
        // Without a sender there was no window.
        let window = self.sent.as_ref().map_or(0..0, |_| self.control.window());
        let before = |at: usize| self.sent.as_ref().and_then(|sent| sent.before.get(at));
        let since: Vec<SocketCounts> = (self.sockets.iter().enumerate())
            .map(|(at, socket)| counts(socket).since(before(at)))
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
        let kernel_drops = match &self.sent {
            Some(sent) => sent.drops_since(),
            None => Some(0),
        };
        let (overrun_ns, calls) = self
            .sent
            .map_or_else(|| (histogram(), Vec::new()), |sent| (sent.overrun_ns, sent.calls));
        Outcome {
            rows,
            unsent,
            sockets,
            kernel_drops,
            granted: self.granted,
            cpu,
            calls,
            overrun_ns,
            totals: std::mem::take(&mut traffic.totals),
            round_trip_ns: std::mem::replace(&mut traffic.round_trip_ns, histogram()),
            lateness_ns: std::mem::replace(&mut traffic.lateness_ns, histogram()),
        }
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
