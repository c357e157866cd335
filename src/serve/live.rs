//! `--engine both`: workers of both engines serve the same addresses, and each second compares their CPU time per
//! unit of work. The kernel distributes connections and datagrams over the workers, by a hash of their addresses.
//!
//! CPU time is that of the workers' threads; softirq work on other CPUs is not in it. The interval covers the
//! seconds that were compared, not other connections. `lab` measures what this cannot: separate processes in
//! interleaved pairs.

use super::notices::tell;
use crate::engine_args::EngineArgs;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use twinring::{Engine, Runtime, config::Features};
use twinring_services::http::{Exposition, Pages};
use twinring_services::{Meters, Reading, Server, Service, Stage};
use twinring_wire::engines::{EngineSide, Engines, SCHEMA};

/// The slices of time that are compared.
const SLICE: Duration = Duration::from_secs(1);

/// Workers read themselves so often in a slice.
const READINGS_PER_SLICE: u32 = 4;

/// Units of work that each engine must do in a slice, or the slice is left out: with fewer, one housekeeping
/// task would decide.
const UNITS_MIN: u64 = 100;

/// Slices that are kept for the ratio and its interval: those of an hour.
const KEPT_MAX: usize = 3600;

/// The slices are averaged in this many blocks of consecutive ones, or fewer: neighbours in time resemble each
/// other, blocks do less.
const BLOCKS_MAX: usize = 12;

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

/// The engine of a worker: they alternate.
fn engine_of(worker: usize) -> Engine {
    if worker.is_multiple_of(2) { Engine::IoUring } else { Engine::Epoll }
}

/// The sum of the readings of an engine's workers.
fn sum(readings: &[Reading], engine: Engine) -> Reading {
    let mut sum = Reading::default();
    for (_, Reading { user_us, system_us, work }) in
        readings.iter().enumerate().filter(|(worker, _)| engine_of(*worker) == engine)
    {
        sum.user_us += user_us;
        sum.system_us += system_us;
        sum.work.merge(work);
    }
    sum
}

/// The work and the CPU time of one engine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Side {
    cpu_us: u64,
    units: f64,
}

impl Side {
    /// What happened between two readings.
    fn between(unit: Unit, before: &Reading, now: &Reading) -> Side {
        let cpu_us = |reading: &Reading| reading.user_us + reading.system_us;
        let units = now.work.units.saturating_sub(before.work.units);
        Side { cpu_us: cpu_us(now).saturating_sub(cpu_us(before)), units: unit.count(units) }
    }

    fn merge(&mut self, other: Side) {
        self.cpu_us += other.cpu_us;
        self.units += other.units;
    }

    /// CPU time per unit, if there is enough work for one.
    fn cost(self) -> Option<f64> {
        (self.units >= UNITS_MIN as f64 && self.cpu_us > 0).then(|| self.cpu_us as f64 / self.units)
    }
}

/// The slices so far.
#[derive(Clone, Debug, Default)]
struct History {
    /// Of CPU per unit on epoll, divided by that on io_uring.
    log_ratios: VecDeque<f64>,
    /// Sums over all compared slices.
    uring: Side,
    epoll: Side,
    compared: u64,
    left_out: u64,
}

impl History {
    fn add(&mut self, uring: Side, epoll: Side) {
        let (Some(uring_cost), Some(epoll_cost)) = (uring.cost(), epoll.cost()) else {
            self.left_out += 1;
            return;
        };
        self.uring.merge(uring);
        self.epoll.merge(epoll);
        self.compared += 1;
        if self.log_ratios.len() == KEPT_MAX {
            self.log_ratios.pop_front();
        }
        self.log_ratios.push_back((epoll_cost / uring_cost).ln());
    }

    /// The ratio, and its 95 % interval, which needs six blocks. `None` without a slice.
    fn estimate(&self) -> Option<(f64, Option<[f64; 2]>)> {
        let values: Vec<f64> = self.log_ratios.iter().copied().collect();
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let count = values.len().min(BLOCKS_MAX);
        let edge = |block: usize| block * values.len() / count.max(1);
        let blocks: Vec<f64> =
            (0..count).map(|block| mean(&values[edge(block)..edge(block + 1)])).collect();
        let ratios: Vec<f64> = blocks.iter().copied().map(f64::exp).collect();
        // So few are not drawn from, and need no seed.
        let ends = twinring_statistics::interval(&ratios, 0).and_then(|interval| interval.ends);
        let interval = ends.map(|ends| [ends.low, ends.high]);
        (!blocks.is_empty()).then(|| (mean(&blocks).exp(), interval))
    }
}

/// The comparison of a running service.
#[derive(Debug)]
pub(super) struct Live {
    unit: Unit,
    meters: Meters,
    epoll_features: Features,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// At the end of the last slice.
    before: Vec<Reading>,
    history: History,
}

impl Live {
    /// Prepares a service for the comparison that the arguments request. If it is not possible here, this prints
    /// why, and the service runs without.
    ///
    /// # Errors
    /// When the service cannot be compared as requested.
    pub(super) fn prepare<S: Service>(
        args: &EngineArgs,
        runtime: &Runtime,
        unit: Unit,
        server: Server<S>,
    ) -> io::Result<(Server<S>, Option<Arc<Live>>)> {
        let refused = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        if !args.compares() {
            return Ok((server, None));
        }
        if runtime.workers() < 2 {
            return refused("--engine both needs --workers 2 or more: one for each engine");
        }
        let epoll_features = runtime.features_of(1).clone();
        if runtime.features().engine() == epoll_features.engine() {
            tell(format!(
                "twinring: --engine both: io_uring cannot be used, so the server runs on epoll and compares \
                 nothing: {}",
                runtime.fallback_reason().unwrap_or("unknown")
            ));
            return Ok((server, None));
        }
        if matches!(runtime.features(), Features::IoUring(features) if features.sqpoll_idle_ms > 0)
        {
            return refused(
                "--engine both does not work with sqpoll, which moves a worker's CPU time to a thread of the kernel",
            );
        }
        let server = server.metered(SLICE / READINGS_PER_SLICE);
        let before = vec![Reading::default(); runtime.workers()];
        let state = Mutex::new(State { before, history: History::default() });
        let live = Live { unit, meters: server.meters(), epoll_features, state };
        Ok((server, Some(Arc::new(live))))
    }

    /// Compares slice after slice, on a thread of its own, until the process ends.
    pub(super) fn start(self: &Arc<Live>) {
        let live = Arc::clone(self);
        let thread = std::thread::Builder::new().name("engines".to_owned());
        let run = move || loop {
            std::thread::sleep(SLICE);
            live.end_slice(live.meters.read());
        };
        if let Err(error) = thread.spawn(run) {
            tell(format!("twinring: the engines are not compared: no thread: {error}"));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end_slice(&self, now: Vec<Reading>) {
        let mut state = self.state();
        let side =
            |engine| Side::between(self.unit, &sum(&state.before, engine), &sum(&now, engine));
        let (uring, epoll) = (side(Engine::IoUring), side(Engine::Epoll));
        state.history.add(uring, epoll);
        state.before = now;
    }

    /// For the ready line, as JSON and as text.
    pub(super) fn details(&self) -> (Value, String) {
        let workers = self.state().before.len();
        let uring_workers = workers.div_ceil(2);
        let details = json!({
            "io_uring_workers": uring_workers,
            "epoll_workers": workers - uring_workers,
            "epoll_features": self.epoll_features,
        });
        (details, "comparing the engines".to_owned())
    }

    /// The comparison so far.
    pub(super) fn engines(&self) -> Engines {
        let readings = self.meters.read();
        let side = |engine| self.engine_side(&readings, engine);
        let (mut io_uring, mut epoll) = (side(Engine::IoUring), side(Engine::Epoll));
        let state = self.state();
        // Over the compared slices: the time without work, and the first requests of cold caches, would hide it.
        io_uring.cpu_us_per_unit = state.history.uring.cost();
        epoll.cpu_us_per_unit = state.history.epoll.cost();
        let estimate = state.history.estimate();
        let cautions = self.cautions(&io_uring, &epoll);
        Engines {
            event: "engines".to_owned(),
            schema: SCHEMA.to_owned(),
            unit: self.unit.name().to_owned(),
            slice_s: SLICE.as_secs_f64(),
            slices_compared: state.history.compared,
            slices_left_out: state.history.left_out,
            slices_kept: state.history.log_ratios.len() as u64,
            units_min: UNITS_MIN,
            ratio: estimate.map(|(ratio, _)| ratio),
            interval: estimate.and_then(|(_, interval)| interval),
            io_uring,
            epoll,
            cautions,
        }
    }

    fn engine_side(&self, readings: &[Reading], engine: Engine) -> EngineSide {
        let Reading { user_us, system_us, work } = sum(readings, engine);
        let units = self.unit.count(work.units);
        EngineSide {
            workers: (0..readings.len()).filter(|worker| engine_of(*worker) == engine).count(),
            cpu_user_s: user_us as f64 / 1e6,
            cpu_system_s: system_us as f64 / 1e6,
            units,
            bytes: work.bytes,
            connections: work.accepted,
            open: work.open,
            cpu_us_per_unit: None,
            bytes_per_unit: (units > 0.0).then(|| work.bytes as f64 / units),
            latency_us_mean: (work.latencies > 0)
                .then(|| work.latency_us as f64 / work.latencies as f64),
        }
    }

    fn cautions(&self, uring: &EngineSide, epoll: &EngineSide) -> Vec<String> {
        let mut cautions = Vec::new();
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
                "the engines served unlike work: {uring:.0} bytes per {} on io_uring, {epoll:.0} on epoll",
                self.unit.name()
            ));
        }
        cautions
    }
}

/// The result of the comparison in a sentence.
pub(super) fn verdict(engines: &Engines) -> String {
    let (unit, slices) = (&engines.unit, engines.slices_kept);
    let Some(ratio) = engines.ratio else {
        let (least, left_out) = (engines.units_min, engines.slices_left_out);
        return match left_out {
            0 => "no second has ended yet".to_owned(),
            _ => format!(
                "nothing to compare: in none of {left_out} s did both engines serve {least} units ({unit})"
            ),
        };
    };
    let Some([low, high]) = engines.interval else {
        return format!(
            "epoll needs {ratio:.2} times the CPU of io_uring per {unit} so far; {slices} s are too few for an \
             interval"
        );
    };
    if low > 1.0 {
        format!(
            "epoll needs {ratio:.2} times the CPU of io_uring per {unit} [{low:.2}, {high:.2}], {slices} s"
        )
    } else if high < 1.0 {
        let (ratio, low, high) = (1.0 / ratio, 1.0 / high, 1.0 / low);
        format!(
            "io_uring needs {ratio:.2} times the CPU of epoll per {unit} [{low:.2}, {high:.2}], {slices} s"
        )
    } else {
        format!(
            "no difference detected: epoll/io_uring {ratio:.2} in CPU per {unit} [{low:.2}, {high:.2}], {slices} s"
        )
    }
}

/// The comparison for people, at the end of a server.
pub(super) fn summary(engines: &Engines) -> String {
    let mut text = format!("engines: {}", verdict(engines));
    for (name, side) in [("io_uring", &engines.io_uring), ("epoll", &engines.epoll)] {
        let cost = side.cpu_us_per_unit.map_or("-".to_owned(), |cost| format!("{cost:.2}"));
        let EngineSide { units, connections, .. } = side;
        text.push_str(&format!("; {name}: {cost} us, {units:.0} units, {connections} connections"));
    }
    for caution in &engines.cautions {
        text.push_str(&format!("; caution: {caution}"));
    }
    text
}

/// The pages of a service, and those of its comparison if it has one.
pub(crate) struct WithEngines<P> {
    pub(crate) pages: P,
    pub(crate) live: Option<Arc<Live>>,
}

impl<P: Pages> Pages for WithEngines<P> {
    fn stage(&self) -> Stage {
        self.pages.stage()
    }

    fn metrics(&self) -> String {
        let engines = self.live.as_ref().map(|live| metrics(&live.engines()));
        self.pages.metrics() + &engines.unwrap_or_default()
    }

    fn page(&self, path: &str) -> Option<(&'static str, String)> {
        let live = self.live.as_ref().filter(|_| path == "/engines.json")?;
        let line = serde_json::to_string(&live.engines()).ok()?;
        Some(("application/json", line + "\n"))
    }
}

fn metrics(engines: &Engines) -> String {
    let mut text = Exposition::default();
    let sides = [("io_uring", &engines.io_uring), ("epoll", &engines.epoll)];
    let mut family = |name: &str, help: &str, kind: &str, value: fn(&EngineSide) -> f64| {
        let name = format!("twinring_engine_{name}");
        text.family(&name, help, kind);
        for (engine, side) in sides {
            text.sample(&name, &[&format!("engine=\"{engine}\"")], value(side));
        }
    };
    family("workers", "Workers of the engine.", "gauge", |side| side.workers as f64);
    family("cpu_user_seconds_total", "CPU of its workers in user mode.", "counter", |side| {
        side.cpu_user_s
    });
    family("cpu_system_seconds_total", "CPU of its workers in the kernel.", "counter", |side| {
        side.cpu_system_s
    });
    family("units_total", "Units of work of the engine.", "counter", |side| side.units);
    family("bytes_total", "Bytes received and sent.", "counter", |side| side.bytes as f64);
    family("connections_total", "Connections of the engine.", "counter", |side| {
        side.connections as f64
    });
    family("connections_open", "Its open connections.", "gauge", |side| side.open as f64);
    if let Some(ratio) = engines.ratio {
        let help = "CPU per unit on epoll, divided by that on io_uring.";
        text.single("twinring_engine_cpu_ratio", help, "gauge", ratio);
    }
    text.into_text()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(log_ratios: impl IntoIterator<Item = f64>) -> History {
        let mut history = History::default();
        for log_ratio in log_ratios {
            let side = |factor: f64| Side { cpu_us: (1e9 * factor) as u64, units: 1e3 };
            history.add(side(1.0), side(f64::exp(log_ratio)));
        }
        history
    }

    #[test]
    fn slices_with_little_work_are_left_out_and_old_ones_forgotten() {
        let side = |cpu_us, units| Side { cpu_us, units };
        let mut few = History::default();
        for (uring, epoll) in [
            (side(1000, 99.0), side(1500, 100.0)),
            (side(1000, 100.0), side(1500, 99.0)),
            (side(0, 100.0), side(1500, 100.0)),
        ] {
            few.add(uring, epoll);
        }
        assert_eq!((few.compared, few.left_out, few.estimate()), (0, 3, None));
        let long = history((0..KEPT_MAX + 5).map(|slice| f64::from(u8::from(slice < 5))));
        assert_eq!((long.log_ratios.len(), long.compared), (KEPT_MAX, KEPT_MAX as u64 + 5));
        assert_eq!(long.estimate(), Some((1.0, Some([1.0, 1.0]))));
    }

    #[test]
    fn an_interval_needs_six_slices_and_spans_them() {
        let few = history([0.1, 0.2, 0.3, 0.4, 0.5]).estimate().expect("slices");
        assert_eq!(few.1, None);
        // With six, one pattern of 64 in each tail: the interval is all of the range.
        let (ratio, interval) = history([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]).estimate().expect("slices");
        let [low, high] = interval.expect("six");
        assert!((low - 0.1_f64.exp()).abs() < 1e-6 && (high - 0.6_f64.exp()).abs() < 1e-6);
        assert!((ratio - 0.35_f64.exp()).abs() < 1e-6);
    }
}
