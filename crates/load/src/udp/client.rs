//! The streams of one worker thread: it opens their sockets, sends with each tick, and returns its counts.

use super::settings::Settings;
use super::traffic::{Counts, Traffic};
use crate::cpu::CpuUse;
use crate::requests::advice;
use crate::run::{Client, Control, work};
use std::cell::{OnceCell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use twinring::net::Granted;
use twinring::{
    JoinHandle, UdpSocket,
    measure::{call_times, monotonic_ns, restart_call_times},
    spawn,
    time::Interval,
    yield_now,
};

/// Sockets opened between two moments at which the run may be stopped.
const OPENED_AT_ONCE: usize = 64;
/// How long after the window packets may still leave that were due inside it.
const LATE_SENDS_NS: u64 = 100_000_000;

/// What the tasks of a thread share.
struct Thread {
    index: usize,
    settings: Arc<Settings>,
    control: Arc<Control>,
    sockets: OnceCell<Vec<UdpSocket>>,
    traffic: RefCell<Traffic>,
}

struct Streams {
    thread: Rc<Thread>,
    sending: Option<JoinHandle<()>>,
}

/// Runs the share of the load of thread `index`; `submits` if sends wait for `twinring::submit`.
pub(super) async fn run_thread(
    index: usize,
    settings: Arc<Settings>,
    control: Arc<Control>,
    submits: bool,
) -> Counts {
    let warmup = settings.common.warmup;
    let traffic = RefCell::new(Traffic::new(Arc::clone(&settings), submits));
    let (sockets, shared) = (OnceCell::new(), Arc::clone(&control));
    let thread = Rc::new(Thread { index, settings, control: shared, sockets, traffic });
    work(Streams { thread, sending: None }, &control, warmup).await
}

impl Client for Streams {
    type Outcome = Counts;

    async fn open(&mut self) -> u64 {
        let Thread { index, settings, traffic, .. } = &*self.thread;
        let (threads, all) = (settings.common.workers.threads, settings.common.connections);
        let mut sockets = Vec::new();
        for number in (*index as u64..all).step_by(threads) {
            if sockets.len().is_multiple_of(OPENED_AT_ONCE) {
                yield_now().await;
            }
            match open_one(settings, number) {
                Ok((socket, granted)) => {
                    sockets.push(socket);
                    let mut traffic = traffic.borrow_mut();
                    traffic.add_stream(number);
                    traffic.counts.note_granted(granted);
                }
                Err(error) => {
                    let what = || format!("socket {number}: {error}{}", advice(&error));
                    traffic.borrow_mut().counts.failed(monotonic_ns(), what);
                    break;
                }
            }
        }
        let opened = self.thread.sockets.get_or_init(|| sockets).len();
        // A task for each socket, which runs only when datagrams have arrived.
        for at in 0..opened {
            let thread = Rc::clone(&self.thread);
            spawn(poll_fn(move |cx| {
                thread.traffic.borrow_mut().poll_receive(&thread.sockets()[at], at, cx)
            }));
        }
        opened as u64
    }

    fn begin(&mut self, first_ns: u64) {
        self.thread.traffic.borrow_mut().begin(first_ns);
        self.sending = Some(spawn(Rc::clone(&self.thread).send()));
    }

    async fn drain(&mut self) {
        if let Some(sending) = self.sending.take() {
            // Aborted only by the end of the runtime.
            let _aborted = sending.await;
        }
    }

    fn outcome(self, cpu: CpuUse) -> Counts {
        let Thread { control, traffic, .. } = &*self.thread;
        let mut counts = traffic.borrow_mut().finish(self.thread.sockets(), &control.window());
        counts.cpu.push(cpu);
        counts
    }
}

impl Thread {
    fn sockets(&self) -> &[UdpSocket] {
        self.sockets.get().map_or(&[], Vec::as_slice)
    }

    /// Sends once per tick until all packets of the window have left, and waits for replies.
    async fn send(self: Rc<Self>) {
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
            if now_ns >= window.start && !std::mem::replace(&mut begun, true) {
                restart_call_times();
            }
            let mut traffic = self.traffic.borrow_mut();
            if let Some(late) = overrun.filter(|_| window.contains(&now_ns)) {
                traffic.counts.overrun_ns.saturating_record((late.as_nanos() as u64).max(1));
            }
            behind = match traffic.send(self.sockets(), now_ns, &window) {
                Ok(all_sent) => !all_sent,
                Err(error) => {
                    traffic.counts.failed(now_ns, || format!("sending: {error}"));
                    break;
                }
            };
            if now_ns >= window.end {
                if !std::mem::replace(&mut over, true) {
                    traffic.counts.calls = call_times();
                }
                if !behind || now_ns >= window.end + LATE_SENDS_NS {
                    break;
                }
            }
            let counts = &traffic.counts;
            self.control.show(self.index, counts.packets.received, counts.round_trip_sum_ns);
            let errors = counts.packets.mismatched + counts.errors.receive;
            self.control.show_errors(self.index, errors);
        }
        let end_ns = monotonic_ns() + self.settings.drain.as_nanos() as u64;
        while monotonic_ns() < end_ns {
            ticker.tick().await;
        }
    }
}

fn open_one(settings: &Settings, number: u64) -> io::Result<(UdpSocket, Granted)> {
    let (target, local) = (settings.target(), &settings.common.local);
    let local = local.get((number % local.len().max(1) as u64) as usize);
    let local = local.map(|address| SocketAddr::new(*address, 0));
    let bound = settings.socket_options().connect(local, target)?;
    let granted = bound.granted();
    Ok((UdpSocket::from_bound(bound)?, granted))
}
