//! Which engine suits one workload on this machine: what to measure, and what follows from it.

mod page;

use serde::Serialize;

use crate::error::LabError;
use crate::estimate::Estimate;
use crate::experiment::{Axis, Cell, Experiment, NetChoice, NetKind, Overrides, Protocol};
use crate::result::Bundle;
use crate::statistics::Interval;
use crate::statistics::MIN_PAIRS;
use crate::summary::{CellSummary, Comparison, Figures, Metric, Verdict};

pub use page::{html, text};

const TEMPLATE: &str = include_str!("../../experiments/advise.toml");

/// The schema of [`Advice`] as JSON.
pub const ADVICE_SCHEMA: &str = "twinring.advice/1";

/// A difference below this share is not worth a decision.
const WORTH_SHARE: f64 = 0.03;

/// More pairs than this make an interval hardly narrower.
const PAIRS_MAX: usize = 24;

/// The names of the subjects in the template.
const EPOLL: &str = "epoll";
const IO_URING: &str = "io_uring";
const EPOLL_AT_ONCE: &str = "epoll-at-once";

/// What a server has to do.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Workload {
    /// TCP is an echo of messages, HTTP static files, UDP streams that are reflected.
    pub protocol: Protocol,
    /// Connections, or streams of UDP, per worker.
    pub connections: u32,
    /// Bytes of a message, a file or a datagram's payload.
    pub bytes: u32,
    /// Requests per second of all connections of a worker; 0: as many as it can answer.
    pub rate_per_s: u32,
    /// Whether HTTP is spoken over TLS.
    pub tls: bool,
    /// The networks to measure on.
    pub net: NetChoice,
}

/// How much is measured beside the workload itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Neighbours {
    /// Other connections and other sizes.
    Both,
    /// Other connections.
    Connections,
    /// None.
    Nothing,
}

impl Workload {
    /// The experiment: the workload, and as many of its neighbours and pairs as fit into so many
    /// seconds. The workload itself always gets [`MIN_PAIRS`].
    ///
    /// # Errors
    /// [`LabError::BadExperiment`] when a number is out of range.
    pub fn experiment(&self, seconds: f64) -> Result<Experiment, LabError> {
        let mut chosen = self.beside(Neighbours::Nothing)?;
        for neighbours in [Neighbours::Connections, Neighbours::Both] {
            let larger = self.beside(neighbours)?;
            if Estimate::of(&larger).seconds <= seconds {
                chosen = larger;
            }
        }
        let pair_s = Estimate::of(&chosen).seconds / chosen.pairs as f64;
        chosen.pairs = ((seconds / pair_s) as usize).clamp(MIN_PAIRS, PAIRS_MAX);
        Ok(chosen)
    }

    fn beside(&self, neighbours: Neighbours) -> Result<Experiment, LabError> {
        let mut experiment = Experiment::from_toml(TEMPLATE, "built-in `advise`")?;
        if self.protocol == Protocol::Udp {
            // It has no sends to gather.
            experiment.subjects.retain(|subject| subject.name != EPOLL_AT_ONCE);
            experiment.subjects.iter_mut().for_each(|subject| subject.against.clear());
        }
        let mut connections = vec![self.connections];
        if neighbours != Neighbours::Nothing {
            let few = self.connections < 100;
            connections.push(if few { self.connections * 10 } else { self.connections / 10 });
        }
        let mut sizes = vec![self.bytes];
        // A datagram of UDP has to fit into a packet.
        if neighbours == Neighbours::Both && self.protocol != Protocol::Udp {
            sizes.push(if self.bytes < 16_384 { 65_536 } else { 1_024 });
        }
        let udp = self.protocol == Protocol::Udp;
        let mut axes = vec![("bytes", sizes)];
        axes.push((if udp { "streams" } else { "connections" }, connections));
        match self.protocol {
            Protocol::Udp => axes.push(("packets_per_s", vec![self.packets_per_s()])),
            Protocol::Http => axes.push(("tls", vec![self.tls.into()])),
            Protocol::Tcp => {}
        }
        if self.rate_per_s > 0 && !udp {
            axes.push(("rate_per_s", vec![self.rate_per_s]));
        }
        let axes = axes.into_iter().map(|(key, values)| (key.to_owned(), values)).collect();
        experiment.with(&Overrides {
            protocol: Some(self.protocol),
            axes,
            net: Some(self.net),
            ..Overrides::default()
        })
    }

    /// Packets per second of one stream of UDP; 50 is a telephone call.
    fn packets_per_s(&self) -> u32 {
        match self.rate_per_s {
            0 => 50,
            rate => (rate / self.connections.max(1)).max(1),
        }
    }

    /// Whether a cell is the workload itself, on any network.
    fn is(&self, cell: &Cell) -> bool {
        (cell.point.clients().1, cell.point.get(Axis::Bytes)) == (self.connections, self.bytes)
    }
}

/// Which engine to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Choice {
    /// It needs less CPU on one network at least, and more on none.
    IoUring,
    /// It needs less CPU on one network at least, and more on none; or io_uring cannot run here.
    Epoll,
    /// The difference is too small to matter.
    Either,
    /// One on some networks, the other on others.
    Depends,
    /// Too much noise, or neither did the work.
    Unknown,
}

/// What one cell says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// io_uring saves at least 3 % of the CPU.
    IoUring,
    /// epoll does.
    Epoll,
    /// They differ by less than 3 %.
    Same,
    /// The interval is too wide, or there is none.
    Unclear,
}

/// One engine in one cell.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct EngineFigures {
    /// CPU of the server per request, interrupts and softirq included, in nanoseconds.
    pub server_cpu_ns: f64,
    /// Cores for a million requests per second.
    pub cores_per_million_per_s: f64,
    /// Requests per second that were answered.
    pub requests_per_s: f64,
    /// Median latency in microseconds.
    pub latency_us_p50: f64,
    /// 99th percentile of latency in microseconds.
    pub latency_us_p99: f64,
}

impl EngineFigures {
    fn of(figures: &Figures) -> EngineFigures {
        let server_cpu_ns = figures[Metric::ServerCpuNs];
        EngineFigures {
            server_cpu_ns,
            cores_per_million_per_s: server_cpu_ns / 1e3,
            requests_per_s: figures[Metric::RequestsPerS],
            latency_us_p50: figures[Metric::LatencyUsP50],
            latency_us_p99: figures[Metric::LatencyUsP99],
        }
    }
}

/// CPU that io_uring saves, in percent of what the other needs; negative where it needs more.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Saving {
    /// The estimate.
    pub percent: f64,
    /// Lower end of its interval at 95 %; none of fewer than 6 pairs.
    pub low: Option<f64>,
    /// Upper end.
    pub high: Option<f64>,
}

impl Saving {
    /// From a ratio of CPU, the other's to that of io_uring.
    fn of(ratio: &Interval) -> Saving {
        let percent = |ratio: f64| (1.0 - 1.0 / ratio) * 100.0;
        Saving {
            percent: percent(ratio.ratio),
            low: ratio.ends.map(|it| percent(it.low)),
            high: ratio.ends.map(|it| percent(it.high)),
        }
    }
}

/// What was found in one cell.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The cell in words, without its network.
    pub workload: String,
    /// The network.
    pub net: NetKind,
    /// What follows from it.
    pub effect: Effect,
    /// What io_uring saves against epoll, both gathering their sends.
    pub saving: Option<Saving>,
    /// What it saves against epoll that sends each answer at once, as most programs do.
    pub saving_at_once: Option<Saving>,
    /// epoll with gathered sends.
    pub epoll: Option<EngineFigures>,
    /// io_uring.
    pub io_uring: Option<EngineFigures>,
    /// epoll that sends at once.
    pub epoll_at_once: Option<EngineFigures>,
    /// The verdict of the lab on the two engines.
    pub verdict: String,
}

impl Row {
    fn of(cell: &CellSummary) -> Row {
        let figures = |name: &str| {
            let subject = cell.subjects.iter().find(|subject| subject.name == name)?;
            subject.figures.as_ref().map(EngineFigures::of)
        };
        // Above 1 the subject needs less than the baseline.
        let ratio = |subject: &str, baseline: &str| {
            let is_it = |it: &&Comparison| {
                (it.subject.as_str(), it.baseline.as_str()) == (subject, baseline)
            };
            cell.comparisons.iter().find(is_it)
        };
        let engines = ratio(IO_URING, EPOLL);
        let interval = engines.and_then(|comparison| comparison.of_record());
        let void = engines.is_some_and(|it| matches!(it.verdict, Verdict::Void { .. }));
        let at_once = ratio(IO_URING, EPOLL_AT_ONCE).and_then(|it| it.of_record());
        let whole = cell.cell.to_string();
        let phrase = format!(" {}", cell.cell.net.phrase());
        Row {
            workload: whole.strip_suffix(&phrase).unwrap_or(&whole).to_owned(),
            net: cell.cell.net,
            effect: engines.filter(|_| !void).map_or(Effect::Unclear, effect),
            saving: interval.map(Saving::of),
            saving_at_once: at_once.map(Saving::of),
            epoll: figures(EPOLL),
            io_uring: figures(IO_URING),
            epoll_at_once: figures(EPOLL_AT_ONCE),
            verdict: engines.map_or("not measured".to_owned(), |it| it.verdict.to_string()),
        }
    }
}

/// What the tests of one comparison of io_uring with epoll say. The verdict beside it is corrected for
/// all cells that were measured, most of which only show what would change the answer.
fn effect(engines: &Comparison) -> Effect {
    let level = 1.0 - engines.confidence;
    let Some(Interval { ratio, p_value, .. }) = engines.of_record() else {
        return Effect::Unclear;
    };
    let is_small = ratio.ln().abs() < WORTH_SHARE.ln_1p();
    let is_equivalent = engines.equivalence.is_some_and(|it| it.p_value <= level);
    match *p_value <= level {
        true if is_small => Effect::Same,
        true if *ratio > 1.0 => Effect::IoUring,
        true => Effect::Epoll,
        false if is_equivalent => Effect::Same,
        false => Effect::Unclear,
    }
}

/// What one cell after the other says together.
fn choice(rows: &[Row]) -> Choice {
    let any = |effect| rows.iter().any(|row| row.effect == effect);
    match (any(Effect::IoUring), any(Effect::Epoll), any(Effect::Same)) {
        (true, true, _) => Choice::Depends,
        (true, false, _) => Choice::IoUring,
        (false, true, _) => Choice::Epoll,
        (false, false, true) => Choice::Either,
        (false, false, false) => Choice::Unknown,
    }
}

/// The machine's support of io_uring. The caller probes it: the lab itself does not use io_uring.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Local {
    /// Why io_uring cannot run here and what to do, if it cannot.
    pub refused: Option<String>,
    /// What speaks against it on this kernel and in this container.
    pub against: Vec<String>,
    /// The features that `--engine auto` takes here.
    pub features: Option<String>,
}

/// The page.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Advice {
    /// `result`.
    pub event: &'static str,
    /// [`ADVICE_SCHEMA`].
    pub schema: &'static str,
    /// What was asked for.
    pub workload: Workload,
    /// Which engine to take.
    pub choice: Choice,
    /// The workload on each network.
    pub asked: Vec<Row>,
    /// Other connections and sizes.
    pub neighbours: Vec<Row>,
    /// What the machine says.
    pub local: Local,
    /// The command that serves it.
    pub command: String,
    /// The machine: kernel, processor, date, version.
    pub machine: Vec<String>,
    /// The bundle with the raw data, if anything was measured.
    pub bundle: Option<String>,
}

impl Advice {
    /// From what was measured.
    pub fn of(workload: &Workload, bundle: &Bundle, directory: &str, local: Local) -> Advice {
        let cells = bundle.summary.iter().flat_map(|summary| &summary.cells);
        let (asked, neighbours): (Vec<_>, Vec<_>) = cells.partition(|it| workload.is(&it.cell));
        let rows = |cells: Vec<&CellSummary>| cells.into_iter().map(Row::of).collect::<Vec<_>>();
        let asked = rows(asked);
        let machine = vec![
            format!("Linux {}", bundle.machine.kernel),
            bundle.machine.cpu_model.clone(),
            bundle.started.clone(),
            format!("twinring {}", bundle.lab_version),
        ];
        Advice {
            choice: choice(&asked),
            neighbours: rows(neighbours),
            asked,
            machine,
            bundle: Some(directory.to_owned()),
            ..Advice::unmeasured(workload, local)
        }
        .with_command()
    }

    /// Where there is nothing to choose from: io_uring cannot run here.
    pub fn unmeasured(workload: &Workload, local: Local) -> Advice {
        Advice {
            event: "result",
            schema: ADVICE_SCHEMA,
            workload: *workload,
            choice: Choice::Epoll,
            asked: Vec::new(),
            neighbours: Vec::new(),
            command: String::new(),
            local,
            machine: Vec::new(),
            bundle: None,
        }
        .with_command()
    }

    fn with_command(mut self) -> Advice {
        let engine = match self.choice {
            Choice::IoUring => "io_uring",
            Choice::Epoll => "epoll",
            Choice::Either | Choice::Depends | Choice::Unknown => "auto",
        };
        let service = match (self.workload.protocol, self.workload.tls) {
            (Protocol::Tcp, _) => "echo --listen ADDRESS",
            (Protocol::Udp, _) => "udp --listen ADDRESS",
            (Protocol::Http, false) => "http --root DIR --listen ADDRESS",
            (Protocol::Http, true) => {
                "http --root DIR --listen-tls ADDRESS --tls-cert CHAIN --tls-key KEY"
            }
        };
        self.command = format!("twinring serve {service} --engine {engine}");
        self
    }

    /// As one line of JSON.
    pub fn json_line(&self) -> String {
        // A struct of strings and numbers without maps always serialises.
        serde_json::to_string(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Ends;

    fn workload(protocol: Protocol) -> Workload {
        let (connections, bytes, rate_per_s) = (100, 1024, 0);
        Workload { protocol, connections, bytes, rate_per_s, tls: false, net: NetChoice::All }
    }

    #[test]
    fn more_time_buys_neighbours_and_then_pairs() {
        for protocol in [Protocol::Tcp, Protocol::Http, Protocol::Udp] {
            let cells = |seconds| {
                let experiment = workload(protocol).experiment(seconds).unwrap();
                assert_eq!(experiment.protocols().collect::<Vec<_>>(), [protocol]);
                (experiment.cells(&[NetKind::Lo]).len(), experiment.pairs)
            };
            assert_eq!(cells(1.0), (1, MIN_PAIRS));
            let (most, pairs) = cells(3600.0);
            assert_eq!(pairs, PAIRS_MAX);
            assert_eq!(most, if protocol == Protocol::Udp { 2 } else { 4 });
        }
    }

    #[test]
    fn a_rate_and_tls_reach_the_experiment() {
        let http = Workload { rate_per_s: 5_000, tls: true, ..workload(Protocol::Http) };
        let point = http.experiment(1.0).unwrap().cells(&[NetKind::Lo])[0].point;
        assert_eq!((point.rate_per_s(), point.get(Axis::Tls)), (5_000, 1));
        let udp = Workload { rate_per_s: 20_000, ..workload(Protocol::Udp) };
        let point = udp.experiment(1.0).unwrap().cells(&[NetKind::Lo])[0].point;
        assert_eq!(point.get(Axis::PacketsPerS), 200);
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        let none = Workload { connections: 0, ..workload(Protocol::Tcp) };
        assert!(matches!(none.experiment(60.0), Err(LabError::BadExperiment { .. })));
    }

    #[test]
    fn networks_that_disagree_make_it_depend() {
        let row = |effect| Row {
            workload: String::new(),
            net: NetKind::Lo,
            effect,
            saving: None,
            saving_at_once: None,
            epoll: None,
            io_uring: None,
            epoll_at_once: None,
            verdict: String::new(),
        };
        use Effect::{Epoll, IoUring, Same, Unclear};
        for (effects, expected) in [
            (&[IoUring, Same, Unclear][..], Choice::IoUring),
            (&[Epoll, Same], Choice::Epoll),
            (&[IoUring, Epoll], Choice::Depends),
            (&[Same, Unclear], Choice::Either),
            (&[Unclear], Choice::Unknown),
            (&[], Choice::Unknown),
        ] {
            let rows: Vec<Row> = effects.iter().map(|effect| row(*effect)).collect();
            assert_eq!(choice(&rows), expected, "{effects:?}");
        }
    }

    #[test]
    fn what_is_saved_is_a_share_of_what_the_other_needs() {
        let ends = Some(Ends { low: 1.0, high: 2.0 });
        let ratio =
            Interval { ratio: 1.25, ends, pairs: 8, p_value: 0.01, detectable_percent: 1.0 };
        let saving = Saving::of(&ratio);
        assert!((saving.percent - 20.0).abs() < 1e-9);
        assert_eq!((saving.low, saving.high), (Some(0.0), Some(50.0)));
        // Five pairs have no interval.
        assert_eq!(Saving::of(&Interval { ends: None, ..ratio }).low, None);
    }
}
