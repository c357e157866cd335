//! What is to be measured: an experiment is a TOML file, the built-in ones included.
//!
//! An experiment has a grid for each protocol that it is about. Every point of a grid, on every
//! network, is a [`Cell`]; in each cell every subject that speaks the protocol is run `pairs`
//! times. The first of them is the baseline.

mod check;
mod choices;
mod overrides;
mod published;
mod source;
mod subject;

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::cpus::Pin;
use crate::error::LabError;
use crate::json;
use crate::placement::Wanted;
use crate::workload::Grid;

use source::Source;

pub use choices::{Accounting, Correction, NetChoice, NetKind, Until};
pub use overrides::Overrides;
pub use published::{
    Printed, Published, PublishedAgainst, PublishedCall, PublishedDatagrams, PublishedEcho,
    PublishedEchoRate, PublishedRate, PublishedRequests,
};
pub(crate) use source::Check;
pub use subject::{Nginx, Ready, Subject};

pub use crate::workload::{
    AnswersInTime, Arrivals, Cell, HttpGrid, HttpPoint, KeepsUp, Point, Protocol, TcpGrid,
    TcpPoint, UdpGrid, UdpPoint, UnderTest,
};

/// The schema of experiment files.
pub const EXPERIMENT_SCHEMA: &str = "twinring.lab.experiment/3";

/// The most pairs that are accepted.
const MAX_PAIRS: usize = 1000;

/// A name that differs from another by as many letters is taken for a slip of the finger.
const EDITS_MAX: usize = 2;

/// The largest experiment file that is read; the largest of ours has 20 KB.
pub const EXPERIMENT_BYTES_MAX: u64 = 1 << 20;

/// Experiments that come with the program: name and text.
pub const BUILT_IN: &[(&str, &str)] = &[
    ("quick", include_str!("../../experiments/quick.toml")),
    ("aa", include_str!("../../experiments/aa.toml")),
    ("tcp-grid", include_str!("../../experiments/tcp-grid.toml")),
    ("scale", include_str!("../../experiments/scale.toml")),
    ("churn", include_str!("../../experiments/churn.toml")),
    ("streaming", include_str!("../../experiments/streaming.toml")),
    ("open-loop", include_str!("../../experiments/open-loop.toml")),
    ("load-curve", include_str!("../../experiments/load-curve.toml")),
    ("scaling", include_str!("../../experiments/scaling.toml")),
    ("second-opinion", include_str!("../../experiments/second-opinion.toml")),
    ("ablation", include_str!("../../experiments/ablation.toml")),
    ("schedule", include_str!("../../experiments/schedule.toml")),
    ("prices", include_str!("../../experiments/prices.toml")),
    ("udp-streams", include_str!("../../experiments/udp-streams.toml")),
    ("udp-bulk", include_str!("../../experiments/udp-bulk.toml")),
    ("http-sizes", include_str!("../../experiments/http-sizes.toml")),
    ("http-many", include_str!("../../experiments/http-many.toml")),
    ("http-churn", include_str!("../../experiments/http-churn.toml")),
    ("http-tls", include_str!("../../experiments/http-tls.toml")),
    ("http2", include_str!("../../experiments/http2.toml")),
    ("http-map", include_str!("../../experiments/http-map.toml")),
    ("accounting-cost", include_str!("../../experiments/accounting-cost.toml")),
    ("peers", include_str!("../../experiments/peers.toml")),
    ("published-frevib", include_str!("../../experiments/published-frevib.toml")),
    ("published-joakimthun", include_str!("../../experiments/published-joakimthun.toml")),
    ("published-go-uring", include_str!("../../experiments/published-go-uring.toml")),
    ("published-nginx", include_str!("../../experiments/published-nginx.toml")),
    ("published-asyncudp", include_str!("../../experiments/published-asyncudp.toml")),
    ("dispute-depth", include_str!("../../experiments/disputes/depth.toml")),
    ("dispute-epoll-ctl", include_str!("../../experiments/disputes/epoll-ctl.toml")),
    ("dispute-many-connections", include_str!("../../experiments/disputes/many-connections.toml")),
    ("dispute-naive-ring", include_str!("../../experiments/disputes/naive-ring.toml")),
    ("dispute-task-work", include_str!("../../experiments/disputes/task-work.toml")),
    ("dispute-barriers", include_str!("../../experiments/disputes/barriers.toml")),
    ("sandbox-cost", include_str!("../../experiments/sandbox-cost.toml")),
    ("sandbox-cost-epoll", include_str!("../../experiments/sandbox-cost-epoll.toml")),
];

/// Experiments about what is disputed in public, each with its claims. `lab run disputes` runs all of
/// them.
pub const DISPUTES: &[&str] = &[
    "schedule",
    "dispute-depth",
    "dispute-epoll-ctl",
    "dispute-many-connections",
    "dispute-naive-ring",
    "dispute-task-work",
    "dispute-barriers",
];

/// Other names of built-in experiments, by which they were known first.
pub const ALIASES: &[(&str, &str)] =
    &[("http-files", "published-nginx"), ("udp-single", "published-asyncudp")];

/// The text of a built-in experiment by its name or alias.
pub fn built_in(name: &str) -> Option<&'static str> {
    let alias = ALIASES.iter().find(|(alias, _)| *alias == name);
    let name = alias.map_or(name, |(_, name)| name);
    BUILT_IN.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// A whole experiment, as written in a file or as changed by options.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// [`EXPERIMENT_SCHEMA`].
    pub schema: String,
    /// A short name, also the beginning of the bundle's.
    pub name: String,
    /// One line that says what question it answers.
    #[serde(default)]
    pub about: String,
    /// Pairs per cell; under [`MIN_PAIRS`](crate::statistics::MIN_PAIRS) there is no verdict.
    pub pairs: usize,
    /// How many blocks excluded for noise may be run again, per cell.
    #[serde(default)]
    pub spare_pairs: usize,
    /// Goes on beyond `pairs` until the intervals are narrow enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Until>,
    /// What is done about the accidents of many verdicts at once.
    #[serde(default)]
    pub correction: Correction,
    /// Two subjects are equivalent if neither needs this many percent less than the other.
    #[serde(default = "usual_equivalence_percent")]
    pub equivalence_percent: f64,
    /// The network between server and client.
    #[serde(default)]
    pub net: NetChoice,
    /// How the CPU use of a run is found.
    #[serde(default)]
    pub accounting: Accounting,
    /// How the two CPUs have to lie to each other. Each block waits for that, within bounds.
    #[serde(default, skip_serializing_if = "Wanted::is_any")]
    pub placement: Wanted,
    /// The CPUs, if they are to be certain ones.
    #[serde(default, skip_serializing_if = "Pin::is_free")]
    pub pin: Pin,
    /// Load before the window opens, in seconds.
    pub warmup_s: f64,
    /// The measured window, in seconds.
    pub window_s: f64,
    /// The cells of TCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<TcpGrid>,
    /// The cells of UDP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp: Option<UdpGrid>,
    /// The cells of HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpGrid>,
    /// Who is compared; the first that speaks a protocol is its baseline.
    pub subjects: Vec<Subject>,
    /// What others have published about the same work.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub published: Vec<Published>,
    /// What others claim about it, each with its source, in sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<String>,
    /// What of it could not be done again, and why, in sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_reproduced: Vec<String>,
}

/// Hardly any service changes its engine for less.
fn usual_equivalence_percent() -> f64 {
    3.0
}

impl Experiment {
    /// The cells of a protocol, if it has any.
    pub(crate) fn grid(&self, protocol: Protocol) -> Option<&dyn Grid> {
        match protocol {
            Protocol::Tcp => self.tcp.as_ref().map(|grid| grid as &dyn Grid),
            Protocol::Udp => self.udp.as_ref().map(|grid| grid as &dyn Grid),
            Protocol::Http => self.http.as_ref().map(|grid| grid as &dyn Grid),
        }
    }

    pub(crate) fn grids_mut(&mut self) -> impl Iterator<Item = (Protocol, &mut dyn Grid)> {
        let Experiment { tcp, udp, http, .. } = self;
        let grids = [
            tcp.as_mut().map(|grid| (Protocol::Tcp, grid as &mut dyn Grid)),
            udp.as_mut().map(|grid| (Protocol::Udp, grid as &mut dyn Grid)),
            http.as_mut().map(|grid| (Protocol::Http, grid as &mut dyn Grid)),
        ];
        grids.into_iter().flatten()
    }

    pub(crate) fn keep_protocols(&mut self, keep: impl Fn(Protocol) -> bool) {
        for protocol in Protocol::ALL.iter().filter(|protocol| !keep(**protocol)) {
            match protocol {
                Protocol::Tcp => self.tcp = None,
                Protocol::Udp => self.udp = None,
                Protocol::Http => self.http = None,
            }
        }
    }
}

impl Experiment {
    /// The built-in experiment of this name, or the one in the file of this path.
    ///
    /// # Errors
    /// [`LabError::UnknownExperiment`] when there is neither, [`LabError::Read`] when the file
    /// cannot be read, [`LabError::BadExperiment`] with line and expectation when it is wrong.
    pub fn find(name: &str) -> Result<Experiment, LabError> {
        if let Some(text) = built_in(name) {
            return Experiment::from_toml(text, &format!("built-in `{name}`"));
        }
        let path = Path::new(name);
        if !path.exists() {
            let known = BUILT_IN.iter().map(|(known, _)| *known).collect::<Vec<_>>().join(", ");
            let names = BUILT_IN.iter().chain(ALIASES).map(|(known, _)| *known);
            let like = names.map(|known| (strsim::damerau_levenshtein(name, known), known)).min();
            let suggestion = like.filter(|(edits, _)| *edits <= EDITS_MAX).map(|(_, known)| known);
            return Err(LabError::UnknownExperiment { name: name.to_owned(), suggestion, known });
        }
        let text = twinring_input::read_to_string(path, EXPERIMENT_BYTES_MAX)
            .map_err(|error| LabError::read(path, error))?;
        Experiment::from_toml(&text, name)
    }

    /// Reads and checks the text of an experiment file; `place` names it in errors.
    ///
    /// # Errors
    /// [`LabError::BadExperiment`].
    pub fn from_toml(text: &str, place: &str) -> Result<Experiment, LabError> {
        let source = Source::of_file(place, text);
        let bad = |error: toml::de::Error| LabError::BadExperiment {
            place: source.at_offset(error.span().map(|span| span.start)),
            problem: error.message().to_owned(),
            expected: "the fields that `twinring lab show quick` prints".to_owned(),
        };
        toml::from_str::<Experiment>(text).map_err(bad)?.resolved(&source)
    }

    /// Reads an experiment from a bundle.
    ///
    /// # Errors
    /// What is missing, unknown or wrong in it.
    pub(crate) fn from_stored(value: &serde_json::Value) -> Result<Experiment, String> {
        let experiment: Experiment = json::from_value(value)?;
        experiment.resolved(&Source::named("the experiment")).map_err(|error| error.to_string())
    }

    /// Checks everything, and gives each subject what it has of the one it is `from`.
    fn resolved(mut self, source: &Source<'_>) -> Result<Experiment, LabError> {
        self.check_origins(source)?;
        let origin = |subject: &Subject| {
            let name = subject.from.as_ref()?;
            self.subjects.iter().find(|other| other.name == *name)
        };
        let changed = |subject: &Subject| match origin(subject) {
            Some(origin) => subject.changed_from(origin),
            None => subject.clone(),
        };
        let subjects = self.subjects.iter().map(changed);
        self.subjects = subjects.map(Subject::with_nginx_spelt_out).collect();
        self.check(source)?;
        Ok(self)
    }

    /// Every cell on the given networks, in the order of the report.
    pub fn cells(&self, nets: &[NetKind]) -> Vec<Cell> {
        let grids = self.protocols().filter_map(|protocol| self.grid(protocol));
        let points: Vec<Point> = grids.flat_map(|grid| grid.points()).collect();
        let cell = |net| move |point: &Point| Cell { net, point: *point };
        nets.iter().flat_map(|net| points.iter().map(cell(*net))).collect()
    }

    /// The protocols it has cells of, in the order of the report.
    pub fn protocols(&self) -> impl Iterator<Item = Protocol> {
        Protocol::ALL.iter().copied().filter(|protocol| self.grid(*protocol).is_some())
    }

    /// The most workers of a cell.
    pub(crate) fn workers_most(&self) -> usize {
        let grids = self.protocols().filter_map(|protocol| self.grid(protocol));
        grids.flat_map(|grid| grid.points()).map(|point| point.workers()).max().unwrap_or(1)
    }

    fn first_protocol(&self) -> Protocol {
        self.protocols().next().unwrap_or(Protocol::Tcp)
    }

    /// The subjects that speak a protocol, as positions in `subjects`; the first is the baseline.
    pub fn subjects_of(&self, protocol: Protocol) -> Vec<usize> {
        let speaks = |(position, subject): (usize, &Subject)| {
            let speaks = match subject.protocol {
                Some(only) => only == protocol,
                None => match subject.own_protocol() {
                    Some(own) => own == protocol,
                    None => subject.engine.is_some() || protocol == self.first_protocol(),
                },
            };
            speaks.then_some(position)
        };
        self.subjects.iter().enumerate().filter_map(speaks).collect()
    }

    /// The comparisons in the cells of a protocol, as positions in `subjects`: baseline,
    /// subject. Everybody with the first, or with the one it is `from`; and as `against` says. If
    /// every one of them has another that is the same but for its name, only with that one: who
    /// asks that, asks about the method.
    pub fn contests(&self, protocol: Protocol) -> Vec<(usize, usize)> {
        let speakers = self.subjects_of(protocol);
        let named = |name: &String| {
            speakers.iter().copied().find(|speaker| self.subjects[*speaker].name == *name)
        };
        let is_own = |speaker: &usize| self.subjects[*speaker].from.is_none();
        let others = speakers.iter().copied().skip(1).filter(is_own);
        let mut contests: Vec<_> = others.map(|subject| (speakers[0], subject)).collect();
        for &subject in &speakers {
            let Subject { from, against, .. } = &self.subjects[subject];
            for opponent in from.iter().chain(against).filter_map(named) {
                if !contests.contains(&(opponent, subject)) {
                    contests.push((opponent, subject));
                }
            }
        }
        let is_aa = |contest: &&(usize, usize)| {
            self.subjects[contest.0].is_twin_of(&self.subjects[contest.1])
        };
        let aa: Vec<(usize, usize)> = contests.iter().filter(is_aa).copied().collect();
        let has_twin = |speaker: &usize| aa.iter().any(|(a, b)| a == speaker || b == speaker);
        if speakers.iter().all(has_twin) { aa } else { contests }
    }

    /// The commands of the load generators for a protocol and a subject, placeholders still in them:
    /// of the first, and of the second if there is one.
    pub fn load_templates(&self, protocol: Protocol, subject: &Subject) -> Vec<Vec<String>> {
        let Some(grid) = self.grid(protocol) else { return Vec::new() };
        let commands = [grid.load(), grid.second_load()].into_iter().filter(|it| !it.is_empty());
        let for_subject = |command: &[String]| {
            let both = self.under_test(protocol) == UnderTest::Both;
            let own = subject.load_arguments.iter().filter(|_| both);
            command.iter().chain(own).cloned().collect()
        };
        commands.map(for_subject).collect()
    }

    /// Warm-up and window of a protocol's runs, in seconds.
    pub fn pace_s(&self, protocol: Protocol) -> (f64, f64) {
        let [warmup_s, window_s] = self.grid(protocol).map(|grid| grid.pace()).unwrap_or_default();
        (warmup_s.unwrap_or(self.warmup_s), window_s.unwrap_or(self.window_s))
    }

    /// Whose work the verdicts on a protocol are about.
    pub fn under_test(&self, protocol: Protocol) -> UnderTest {
        self.grid(protocol).map_or(UnderTest::Server, |grid| grid.under_test())
    }
}

#[cfg(test)]
mod tests;
