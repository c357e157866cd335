//! The live comparison: workers of both engines serve the same addresses, and each slice of time
//! compares their CPU per unit of work (docs/live.md).

mod busy;
mod compare;
mod decide;
mod page;

pub(super) use page::WithEngines;

use super::notices::tell;
use crate::engine_args::EngineArgs;
use busy::BusyClock;
use compare::{History, Side, UNITS_MIN};
use decide::{Decision, ERROR_RATE, NEEDED, Slice};
use serde_json::{Value, json};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use twinring::net::Targets;
use twinring::{Engine, Features, Runtime};
use twinring_services::{Meters, Reading, Server, Service, Steerer};
use twinring_wire::engines::{Adaptive, EngineSide, Engines, SCHEMA};

/// Workers read themselves so often in a slice: a reading is older than the slice by at most the
/// fourth part of it.
const READINGS_PER_SLICE: u32 = 4;

/// With fewer connections on an engine, what they are like can decide instead of the engine.
const CONNECTIONS_FEW: u64 = 20;

/// The engines serve unlike work if their bytes per unit differ by more than this factor.
const UNLIKE: f64 = 1.1;

/// The unit of work of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// An answered request.
    Request,
    /// An answered datagram.
    Datagram,
    /// 1,024 received bytes: the echo sees no messages.
    KibReceived,
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Unit::Request => "request",
            Unit::Datagram => "datagram",
            Unit::KibReceived => "KiB received",
        }
    }

    /// The number of units that a service counted as `units`.
    fn count(self, units: u64) -> f64 {
        match self {
            Unit::Request | Unit::Datagram => units as f64,
            Unit::KibReceived => units as f64 / 1024.0,
        }
    }
}

/// The workers of an engine.
fn targets(engine: Engine) -> Targets {
    let first = usize::from(engine == Engine::Epoll);
    Targets { first, step: 2 }
}

fn engine_of(worker: usize) -> Engine {
    match targets(Engine::IoUring).contains(worker) {
        true => Engine::IoUring,
        false => Engine::Epoll,
    }
}

fn other(engine: Engine) -> Engine {
    match engine {
        Engine::IoUring => Engine::Epoll,
        Engine::Epoll => Engine::IoUring,
    }
}

/// The comparison of a running service.
#[derive(Debug)]
pub(super) struct Live {
    unit: Unit,
    slice: Duration,
    in_turns: bool,
    meters: Meters,
    steerer: Option<Steerer>,
    epoll_features: Features,
    /// Of the CPUs that the workers are pinned to.
    busy: Option<BusyClock>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// At the end of the last slice.
    before: Vec<Reading>,
    history: History,
    /// Only with `--engine adaptive`.
    decision: Option<Decision>,
    not_steered: Option<String>,
}

impl Live {
    /// Prepares a service for the comparison that the arguments request. If it is not possible here,
    /// this prints why, and the service runs without.
    ///
    /// # Errors
    /// When descriptors have run out, or the service cannot be compared as requested.
    pub(super) fn prepare<S: Service>(
        args: &EngineArgs,
        runtime: &Runtime,
        unit: Unit,
        server: Server<S>,
    ) -> io::Result<(Server<S>, Option<Arc<Live>>)> {
        if !args.compares() {
            return Ok((server, None));
        }
        let epoll_features = runtime.features_of(1).clone();
        if runtime.features().engine() == epoll_features.engine() {
            tell(format!(
                "twinring: --engine {}: io_uring cannot be used, so the server runs on epoll and \
                 compares nothing: {}",
                args.mode(),
                runtime.fallback_reason().unwrap_or("unknown")
            ));
            return Ok((server, None));
        }
        if matches!(runtime.features(), Features::IoUring(features) if features.sqpoll_idle_ms > 0)
        {
            let why = "sqpoll does the work of a worker on a thread of the kernel, whose CPU time is \
                       not compared; use it without --engine both or adaptive";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let in_turns = args.takes_turns();
        if in_turns && unit == Unit::Datagram {
            let why = "with one worker, senders would change their engine in every slice, which can \
                       reorder datagrams; use --workers 2";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let slice = args.slice();
        let server = server.metered(slice / READINGS_PER_SLICE);
        let (server, steerer) = match args.adapts() || in_turns {
            true => server.steered().map(|(server, steerer)| (server, Some(steerer)))?,
            false => (server, None),
        };
        let state = State {
            before: vec![Reading::default(); runtime.workers()],
            history: History::default(),
            decision: args.adapts().then(Decision::default),
            not_steered: None,
        };
        let (meters, state) = (server.meters(), Mutex::new(state));
        let cpus_of = |engine| {
            let workers = (0..runtime.workers()).filter(|worker| engine_of(*worker) == engine);
            workers.filter_map(|worker| args.cpu_of(worker)).collect()
        };
        let busy = BusyClock::open(cpus_of(Engine::IoUring), cpus_of(Engine::Epoll));
        let live = Live { unit, slice, in_turns, meters, steerer, epoll_features, busy, state };
        Ok((server, Some(Arc::new(live))))
    }

    /// Compares slice after slice, on a thread of its own, until the process ends.
    pub(super) fn start(self: &Arc<Live>) {
        self.busy.iter().for_each(BusyClock::start);
        let live = Arc::clone(self);
        let thread = std::thread::Builder::new().name("engines".to_owned());
        if let Err(error) = thread.spawn(move || live.run()) {
            tell(format!("twinring: the engines are not compared: no thread: {error}"));
        }
    }

    fn run(&self) {
        let mut first = Engine::IoUring;
        let mut steered = None;
        loop {
            let target = self.target();
            if self.in_turns && target.is_none() {
                // A B, then B A: what grows or falls over time does not favour an engine.
                self.steer(targets(first));
                std::thread::sleep(self.slice / 2);
                first = other(first);
                self.steer(targets(first));
                std::thread::sleep(self.slice / 2);
                steered = None;
            } else {
                // Without a move so far, the distribution of the kernel stays in use.
                let was_moved = steered.is_some();
                if steered != Some(target) && (target.is_some() || was_moved) {
                    self.steer(target.map_or(Targets::ALL, targets));
                    steered = Some(target);
                }
                std::thread::sleep(self.slice);
            }
            self.end_slice(&self.meters.read());
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn target(&self) -> Option<Engine> {
        self.state().decision.as_ref().and_then(Decision::target)
    }

    fn steer(&self, to: Targets) {
        let Some(steerer) = &self.steerer else { return };
        if let Err(error) = steerer.steer(to) {
            let mut state = self.state();
            if state.not_steered.replace(error.to_string()).is_none() {
                tell(format!(
                    "twinring: new connections cannot be steered to an engine: {error}; both \
                     engines get them"
                ));
            }
        }
    }

    /// Takes the readings at the end of a slice.
    fn end_slice(&self, now: &[Reading]) {
        let mut state = self.state();
        let before = std::mem::replace(&mut state.before, now.to_vec());
        let side = |engine| self.side(engine, &before, now);
        let (uring, epoll) = (side(Engine::IoUring), side(Engine::Epoll));
        let log_ratio = state.history.add(uring, epoll);
        let (units, bytes) = (uring.units + epoll.units, (uring.bytes + epoll.bytes) as f64);
        if let Some(decision) = &mut state.decision {
            decision.add(Slice { log_ratio, units, bytes });
        }
    }

    /// What the workers of an engine did between two readings.
    fn side(&self, engine: Engine, before: &[Reading], now: &[Reading]) -> Side {
        let mut side = Side::default();
        for (worker, (before, now)) in before.iter().zip(now).enumerate() {
            if engine_of(worker) == engine {
                let cpu_us = |reading: &Reading| reading.user_us + reading.system_us;
                side.cpu_us += cpu_us(now).saturating_sub(cpu_us(before));
                side.units += self.unit.count(now.work.units.saturating_sub(before.work.units));
                side.bytes += now.work.bytes.saturating_sub(before.work.bytes);
            }
        }
        side
    }

    /// For the ready line.
    pub(super) fn details(&self) -> (Value, String) {
        let workers = |engine| self.engine_side(engine).workers;
        let (uring, epoll) = (workers(Engine::IoUring), workers(Engine::Epoll));
        let mode = if self.state().decision.is_some() { "adaptive" } else { "both" };
        let turns = if self.in_turns { ", in turns, which is weaker" } else { "" };
        let text = format!(
            "{mode}: io_uring on {uring}, epoll on {epoll}, compared in slices of {:?}{turns}",
            self.slice
        );
        let details = json!({
            "mode": mode, "io_uring_workers": uring, "epoll_workers": epoll,
            "slice_s": self.slice.as_secs_f64(), "in_turns": self.in_turns,
            "epoll_features": self.epoll_features,
        });
        (details, text)
    }

    /// The workers of an engine. Its CPU per unit is left to the compared slices: the time without
    /// work, and the first requests of cold caches, would hide it.
    fn engine_side(&self, engine: Engine) -> EngineSide {
        let readings = self.meters.read();
        let of_engine =
            readings.iter().enumerate().filter(|(worker, _)| engine_of(*worker) == engine);
        let mut sum = Reading::default();
        let mut workers = 0;
        for (_, Reading { user_us, system_us, work }) in of_engine {
            workers += 1;
            sum.user_us += user_us;
            sum.system_us += system_us;
            sum.work.merge(work);
        }
        let (units, work) = (self.unit.count(sum.work.units), sum.work);
        let per_unit = |amount: u64| (units > 0.0).then(|| amount as f64 / units);
        EngineSide {
            workers,
            cpu_user_s: sum.user_us as f64 / 1e6,
            cpu_system_s: sum.system_us as f64 / 1e6,
            units,
            bytes: work.bytes,
            connections: work.accepted,
            open: work.open,
            cpu_busy_s: self.busy.as_ref().and_then(|busy| busy.busy_s(engine)),
            cpu_us_per_unit: None,
            bytes_per_unit: per_unit(work.bytes),
            latency_us_mean: (work.latencies > 0)
                .then(|| work.latency_us as f64 / work.latencies as f64),
        }
    }

    /// The comparison so far.
    pub(super) fn engines(&self) -> Engines {
        let mut io_uring = self.engine_side(Engine::IoUring);
        let mut epoll = self.engine_side(Engine::Epoll);
        let state = self.state();
        io_uring.cpu_us_per_unit = state.history.uring.cost();
        epoll.cpu_us_per_unit = state.history.epoll.cost();
        let estimate = state.history.estimate();
        let cautions = self.cautions(&io_uring, &epoll);
        Engines {
            event: "engines".to_owned(),
            schema: SCHEMA.to_owned(),
            mode: if state.decision.is_some() { "adaptive" } else { "both" }.to_owned(),
            unit: self.unit.name().to_owned(),
            slice_s: self.slice.as_secs_f64(),
            in_turns: self.in_turns,
            slices_compared: state.history.compared,
            slices_left_out: state.history.left_out,
            slices_kept: state.history.kept() as u64,
            units_min: UNITS_MIN,
            ratio: estimate.map(|estimate| estimate.ratio),
            interval: estimate.and_then(|estimate| estimate.interval).map(|(a, b)| [a, b]),
            io_uring,
            epoll,
            adaptive: state.decision.map(|decision| adaptive(&decision, &state.not_steered)),
            cautions,
        }
    }

    fn cautions(&self, uring: &EngineSide, epoll: &EngineSide) -> Vec<String> {
        let mut cautions = Vec::new();
        if self.in_turns {
            let why = "with one worker the engines take new connections in turn, not side by side";
            cautions.push(why.to_owned());
        }
        if uring.cpu_us_per_unit.is_none() {
            return cautions;
        }
        let fewest = uring.connections.min(epoll.connections);
        if self.unit != Unit::Datagram && fewest < CONNECTIONS_FEW {
            cautions.push(format!(
                "one engine served only {fewest} connections: a difference may be theirs"
            ));
        }
        if let (Some(uring), Some(epoll)) = (uring.bytes_per_unit, epoll.bytes_per_unit)
            && self.unit != Unit::KibReceived
            && (uring > epoll * UNLIKE || epoll > uring * UNLIKE)
        {
            cautions.push(format!(
                "the engines served unlike work: {uring:.0} bytes per {} on io_uring, {epoll:.0} on \
                 epoll",
                self.unit.name()
            ));
        }
        cautions
    }
}

fn adaptive(decision: &Decision, not_steered: &Option<String>) -> Adaptive {
    let (evidence_io_uring, evidence_epoll) = decision.evidence();
    let target = decision.target().filter(|_| not_steered.is_none());
    Adaptive {
        new_connections_to: target.map(|engine| engine.to_string()),
        chosen: decision.chosen().map(|engine| engine.to_string()),
        trials: decision.trials,
        decided: decision.decided,
        moves: decision.moves,
        evidence_io_uring,
        evidence_epoll,
        evidence_needed: NEEDED,
        error_rate: ERROR_RATE,
        not_steered: not_steered.clone(),
    }
}

/// The result of the comparison in a sentence.
pub(super) fn verdict(engines: &Engines) -> String {
    let (unit, slices, slice_s) = (&engines.unit, engines.slices_kept, engines.slice_s);
    let Some(ratio) = engines.ratio else {
        let (least, left_out) = (engines.units_min, engines.slices_left_out);
        if left_out == 0 {
            return "no slice of time has ended yet".to_owned();
        }
        return format!(
            "no slice to compare: in none of {left_out} did both engines serve {least} units ({unit})"
        );
    };
    let of = format!("{slices} slices of {slice_s} s");
    let Some([low, high]) = engines.interval else {
        return format!(
            "epoll needs {ratio:.2} times the CPU of io_uring per {unit} so far; {of} are too few \
             for an interval"
        );
    };
    let interval = |low: f64, high: f64| format!("[{low:.2}, {high:.2}], {of}");
    if low > 1.0 {
        let interval = interval(low, high);
        format!("epoll needs {ratio:.2} times the CPU of io_uring per {unit} {interval}")
    } else if high < 1.0 {
        let interval = interval(1.0 / high, 1.0 / low);
        let ratio = 1.0 / ratio;
        format!("io_uring needs {ratio:.2} times the CPU of epoll per {unit} {interval}")
    } else {
        let interval = interval(low, high);
        format!("no difference detected: epoll/io_uring {ratio:.2} in CPU per {unit} {interval}")
    }
}

/// The comparison for people, at the end of a server.
pub(super) fn summary(engines: &Engines) -> String {
    let mut text = format!("engines: {}", verdict(engines));
    text.push_str(&format!("; left_out={}", engines.slices_left_out));
    for (name, side) in [("io_uring", &engines.io_uring), ("epoll", &engines.epoll)] {
        let cost = side.cpu_us_per_unit.map_or("-".to_owned(), |cost| format!("{cost:.2}"));
        let EngineSide { workers, units, connections, cpu_user_s, cpu_system_s, .. } = side;
        text.push_str(&format!(
            "; {name}: workers={workers} connections={connections} units={units:.0} \
             cpu_user_s={cpu_user_s:.2} cpu_system_s={cpu_system_s:.2} cpu_us_per_unit={cost}"
        ));
    }
    if let Some(adaptive) = &engines.adaptive {
        let chosen = adaptive.chosen.as_deref().unwrap_or("none");
        let Adaptive { trials, decided, moves, .. } = adaptive;
        text.push_str(&format!(
            "; chosen={chosen} trials={trials} decided={decided} moves={moves}"
        ));
    }
    for caution in &engines.cautions {
        text.push_str(&format!("; caution: {caution}"));
    }
    text
}
