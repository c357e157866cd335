//! The streams of one worker thread: it opens their sockets, sends with each tick, and returns its counts.

use super::UdpSettings;
use super::traffic::{ThreadCounts, Traffic};
use crate::requests::advice;
use crate::run::{Client, Control, work};
use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use twinring::net::Granted;
use twinring::{JoinHandle, UdpSocket, measure::monotonic_ns, spawn, time::Interval, yield_now};
use twinring_wire::load::Cpu;

/// Sockets opened between two moments at which the run may be stopped.
const OPENED_AT_ONCE: usize = 64;
/// How long after the window packets may still leave that were due inside it.
const LATE_SENDS_NS: u64 = 100_000_000;

struct Sender {
    index: usize,
    settings: Arc<UdpSettings>,
    control: Arc<Control>,
    traffic: Rc<RefCell<Traffic>>,
    sending: Option<JoinHandle<()>>,
}

/// Runs the share of the load of thread `index`; `submits` if sends wait for `twinring::submit`.
pub(super) async fn run_thread(
    index: usize,
    settings: Arc<UdpSettings>,
    shared: Arc<Control>,
    submits: bool,
) -> ThreadCounts {
    let warmup = settings.common.warmup;
    let traffic = Rc::new(RefCell::new(Traffic::new(Arc::clone(&settings), submits)));
    let control = Arc::clone(&shared);
    work(Sender { index, settings, control, traffic, sending: None }, &shared, warmup).await
}

impl Client for Sender {
    type Outcome = ThreadCounts;

    async fn open(&mut self) -> u64 {
        let threads = self.settings.common.workers.threads as usize;
        for (at, number) in (self.index as u64..self.settings.streams).step_by(threads).enumerate()
        {
            if at.is_multiple_of(OPENED_AT_ONCE) {
                yield_now().await;
            }
            let mut traffic = self.traffic.borrow_mut();
            match open_one(&self.settings, number) {
                Ok((socket, granted)) => traffic.add_stream(number, socket, granted),
                Err(error) => {
                    let what = || format!("socket {number}: {error}{}", advice(&error));
                    traffic.counts.failed(monotonic_ns(), what);
                    break;
                }
            }
        }
        let opened = self.traffic.borrow().sockets.len();
        // A task for each socket, which runs only when datagrams have arrived.
        for at in 0..opened {
            let traffic = Rc::clone(&self.traffic);
            spawn(poll_fn(move |cx| traffic.borrow_mut().poll_receive(at, cx)));
        }
        opened as u64
    }

    fn begin(&mut self, first_ns: u64) {
        self.traffic.borrow_mut().begin(first_ns);
        let (traffic, control) = (Rc::clone(&self.traffic), Arc::clone(&self.control));
        self.sending = Some(spawn(send(self.index, Arc::clone(&self.settings), control, traffic)));
    }

    async fn drain(&mut self) {
        if let Some(sending) = self.sending.take() {
            // Aborted only by the end of the runtime.
            let _aborted = sending.await;
        }
    }

    fn outcome(self, cpu: Cpu) -> ThreadCounts {
        let mut counts = self.traffic.borrow_mut().finish(&self.control.window());
        counts.cpu = cpu;
        counts
    }
}

/// Sends once per tick until all packets of the window have left, and waits for replies.
async fn send(
    index: usize,
    settings: Arc<UdpSettings>,
    control: Arc<Control>,
    traffic: Rc<RefCell<Traffic>>,
) {
    let mut ticker = Interval::new(settings.tick);
    let mut behind = false;
    loop {
        // A sender that is late does not wait for the next tick.
        let overrun = if behind {
            yield_now().await;
            None
        } else {
            ticker.tick().await.overrun
        };
        // Its end may come earlier than planned.
        let window = control.window();
        let now_ns = monotonic_ns();
        let mut traffic = traffic.borrow_mut();
        if let Some(late) = overrun.filter(|_| window.contains(&now_ns)) {
            traffic.counts.overrun_ns.saturating_record((late.as_nanos() as u64).max(1));
        }
        behind = match traffic.send(now_ns, &window) {
            Ok(all_sent) => !all_sent,
            Err(error) => {
                traffic.counts.failed(now_ns, || format!("sending: {error}"));
                break;
            }
        };
        if now_ns >= window.end && (!behind || now_ns >= window.end + LATE_SENDS_NS) {
            break;
        }
        let (counts, shown) = (&traffic.counts, &control.progress[index]);
        shown.answered.store(counts.packets.received, Relaxed);
        shown.latency_ns.store(counts.round_trip_sum_ns, Relaxed);
        shown.errors.store(counts.packets.mismatched + counts.errors.receive, Relaxed);
    }
    let end_ns = monotonic_ns() + settings.drain.as_nanos() as u64;
    while monotonic_ns() < end_ns {
        ticker.tick().await;
    }
}

fn open_one(settings: &UdpSettings, number: u64) -> io::Result<(UdpSocket, Granted)> {
    let local = &settings.common.local;
    let local = local.get((number % local.len().max(1) as u64) as usize);
    let local = local.map(|address| SocketAddr::new(*address, 0));
    let bound = settings.socket_options().connect(local, settings.target())?;
    let granted = bound.granted();
    Ok((UdpSocket::from_bound(bound)?, granted))
}
