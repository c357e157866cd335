//! What is to be measured: an experiment is a TOML file, the built-in ones included.
//!
//! An experiment has a grid for each protocol that it is about. Every point of a grid, on every
//! network, is a [`Cell`]; in each cell every subject that speaks the protocol is run `pairs`
//! times. The first of them is the baseline.

mod check;
mod choices;
mod published;
mod source;
mod subject;

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::cpus::Pin;
use crate::error::LabError;
use crate::workload::axes_of;

pub use choices::{NetChoice, NetKind};
pub use published::{Printed, Published, PublishedAgainst, PublishedDatagrams};
pub(crate) use source::Source;
pub use subject::{Ready, Subject};

pub use crate::workload::{Arrivals, Axis, Cell, Grid, Point, Protocol, Slo, UnderTest};

/// The schema of experiment files.
pub const EXPERIMENT_SCHEMA: &str = "twinring.lab.experiment/4";

const MAX_PAIRS: usize = 1000;

/// The largest experiment file that is read; the largest of ours has 20 KB.
pub const EXPERIMENT_BYTES_MAX: u64 = 1 << 20;

/// A whole experiment, as written in a file or as changed by options.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// [`EXPERIMENT_SCHEMA`].
    pub schema: String,
    /// A short name, also the beginning of the bundle's.
    pub name: String,
    /// One line that says what question it answers.
    #[serde(default)]
    pub about: String,
    /// Pairs per cell: a fixed number.
    pub pairs: usize,
    /// How many excluded blocks may be replaced, per cell.
    #[serde(default)]
    pub spare_pairs: usize,
    /// The network between server and client.
    #[serde(default)]
    pub net: NetChoice,
    /// The CPUs, if they are given.
    #[serde(default, skip_serializing_if = "Pin::is_free")]
    pub pin: Pin,
    /// Where the load generators run, if on other machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<Via>,
    /// Load before the window opens, in seconds.
    pub warmup_s: f64,
    /// The measured window, in seconds.
    pub window_s: f64,
    /// The cells of TCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<Grid>,
    /// The cells of UDP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp: Option<Grid>,
    /// The cells of HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<Grid>,
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

/// Load generators on other machines. The lab and the server run on this one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, clap::Args)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[command(next_help_heading = "Load generators on other machines")]
pub struct Via {
    /// What the command of the load generator begins with: `ssh beta`, `srun --overlap -N1 -n1`, `kubectl exec -i pod --`.
    // One value, which is split; clap takes `Vec` for several.
    #[arg(id = "via", long = "via", value_name = "COMMAND", required = false, requires = "address",
          value_parser = words)]
    pub command: std::vec::Vec<String>,
    /// How many load generators that starts: so many results are expected, and each gets an equal part
    /// of the load.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "via")]
    pub generators: u32,
    /// The address of this machine that they reach.
    #[arg(long, value_name = "IP", required = false, requires = "via")]
    pub address: std::net::IpAddr,
    /// The program of twinring on the other machines.
    #[arg(long = "via-program", value_name = "PATH", default_value = "twinring", requires = "via")]
    pub program: String,
    /// Seconds from the start of the command to the moment at which all of them begin.
    #[arg(long = "lead", value_name = "SECONDS", default_value_t = 3.0, requires = "via")]
    pub lead_s: f64,
}

fn words(text: &str) -> Result<Vec<String>, String> {
    let words = shlex::split(text).filter(|words| !words.is_empty());
    words.ok_or_else(|| "expected a command whose quotes are closed".to_owned())
}

impl Experiment {
    /// The cells of a protocol, if it has any.
    pub fn grid(&self, protocol: Protocol) -> Option<&Grid> {
        match protocol {
            Protocol::Tcp => self.tcp.as_ref(),
            Protocol::Udp => self.udp.as_ref(),
            Protocol::Http => self.http.as_ref(),
        }
    }

    fn each_mut(&mut self) -> [(Protocol, &mut Option<Grid>); 3] {
        let Experiment { tcp, udp, http, .. } = self;
        [(Protocol::Tcp, tcp), (Protocol::Udp, udp), (Protocol::Http, http)]
    }

    pub(crate) fn grids_mut(&mut self) -> impl Iterator<Item = (Protocol, &mut Grid)> {
        self.each_mut().into_iter().filter_map(|(protocol, grid)| Some((protocol, grid.as_mut()?)))
    }

    /// Leaves out the cells of other protocols.
    pub fn keep_protocols(&mut self, keep: impl Fn(Protocol) -> bool) {
        for (protocol, grid) in self.each_mut() {
            grid.take_if(|_| !keep(protocol));
        }
    }

    /// The built-in experiment of this name, or the one in the file of this path.
    pub fn find(name: &str) -> Result<Experiment, LabError> {
        if let Some(text) = built_in(name) {
            return Experiment::from_toml(text, &format!("built-in `{name}`"));
        }
        let path = Path::new(name);
        if !path.exists() {
            return Err(unknown(name));
        }
        let text = twinring_input::read_to_string(path, EXPERIMENT_BYTES_MAX)
            .map_err(|error| LabError::read(path, error))?;
        Experiment::from_toml(&text, name)
    }

    /// Reads and checks the text of an experiment file; `place` names it in errors.
    ///
    /// # Errors
    /// With the line, and what was expected there.
    pub fn from_toml(text: &str, place: &str) -> Result<Experiment, LabError> {
        let source = Source::of_file(place, text);
        let bad = |error: toml::de::Error| {
            let place = source.at_offset(error.span().map(|span| span.start));
            let expected = "the fields that `twinring lab show quick` prints";
            LabError::request(place, error.message(), expected)
        };
        let experiment = toml::from_str::<Experiment>(text).map_err(bad)?;
        experiment.check(&source)?;
        Ok(experiment)
    }

    /// Whether one that was read from a bundle makes sense.
    pub(crate) fn check_stored(&self) -> Result<(), String> {
        self.check(&Source::named("the experiment")).map_err(|error| error.to_string())
    }

    /// Every cell on the given networks, in the order of the report.
    pub fn cells(&self, nets: &[NetKind]) -> Vec<Cell> {
        let grids = self.protocols().filter_map(|protocol| Some((protocol, self.grid(protocol)?)));
        let points: Vec<Point> = grids.flat_map(|(protocol, grid)| grid.points(protocol)).collect();
        let cell = |net| move |point: &Point| Cell { net, point: *point };
        nets.iter().flat_map(|net| points.iter().map(cell(*net))).collect()
    }

    /// The networks that it asks for.
    pub fn networks(&self) -> &[NetKind] {
        if self.via.is_some() { &[NetKind::Hosts] } else { self.net.kinds() }
    }

    /// The protocols it has cells of, in the order of the report.
    pub fn protocols(&self) -> impl Iterator<Item = Protocol> {
        Protocol::ALL.iter().copied().filter(|protocol| self.grid(*protocol).is_some())
    }

    pub(crate) fn workers_most(&self) -> usize {
        self.cells(&[NetKind::Lo]).iter().map(|cell| cell.point.workers()).max().unwrap_or(1)
    }

    fn first_protocol(&self) -> Protocol {
        self.protocols().next().unwrap_or(Protocol::Tcp)
    }

    /// The subjects that speak a protocol, as positions in `subjects`; the first is the baseline.
    pub fn subjects_of(&self, protocol: Protocol) -> Vec<usize> {
        let speaks = |(position, subject): (usize, &Subject)| {
            let speaks = match subject.protocol.or_else(|| subject.own_protocol()) {
                Some(only) => only == protocol,
                None => subject.engine.is_some() || protocol == self.first_protocol(),
            };
            speaks.then_some(position)
        };
        self.subjects.iter().enumerate().filter_map(speaks).collect()
    }

    /// The comparisons in the cells of a protocol, as positions in `subjects`: baseline,
    /// subject. Every subject with the first, and as `against` says; one that is another but for its name
    /// with that one (an A/A test). If all have such a twin, that is all.
    pub fn contests(&self, protocol: Protocol) -> Vec<(usize, usize)> {
        let speakers = self.subjects_of(protocol);
        let subject = |position: usize| &self.subjects[position];
        let named = |name: &String| speakers.iter().copied().find(|it| subject(*it).name == *name);
        let twin = |later: usize| {
            let is_twin = |it: &usize| subject(*it).is_twin_of(subject(speakers[later]));
            speakers[..later].iter().copied().find(is_twin)
        };
        let later = || 1..speakers.len();
        let others = later().filter(|it| twin(*it).is_none()).map(|it| (speakers[0], speakers[it]));
        let opponents = |it: usize| {
            subject(it).against.iter().filter_map(named).map(move |opponent| (opponent, it))
        };
        let against = speakers.iter().flat_map(|it| opponents(*it));
        let twins = later().filter_map(|it| Some((twin(it)?, speakers[it])));
        let mut contests: Vec<(usize, usize)> = Vec::new();
        for contest in others.chain(against).chain(twins) {
            if !contests.contains(&contest) {
                contests.push(contest);
            }
        }
        let is_aa = |contest: &&(usize, usize)| {
            self.subjects[contest.0].is_twin_of(&self.subjects[contest.1])
        };
        let aa: Vec<(usize, usize)> = contests.iter().filter(is_aa).copied().collect();
        let has_twin = |speaker: &usize| aa.iter().any(|(a, b)| a == speaker || b == speaker);
        if speakers.iter().all(has_twin) { aa } else { contests }
    }

    /// The command of the load generator for a protocol and a subject, placeholders still in it.
    pub fn load_template(&self, protocol: Protocol, subject: &Subject) -> Vec<String> {
        let grid = self.grid(protocol);
        let command = grid.map(|grid| grid.load.clone()).filter(|load| !load.is_empty());
        let target = if protocol == Protocol::Http { "{urls}" } else { "{addr}" };
        let usual = || {
            ["{twinring}", "load", protocol.name(), target, "{options}"].map(str::to_owned).to_vec()
        };
        let mut command = command.unwrap_or_else(usual);
        if self.under_test(protocol) == UnderTest::Both {
            command.extend(subject.load_arguments.iter().cloned());
        }
        command
    }

    /// Warm-up and window of a protocol's runs, in seconds.
    pub fn pace_s(&self, protocol: Protocol) -> (f64, f64) {
        let grid = self.grid(protocol);
        let [warmup_s, window_s] =
            grid.map(|grid| [grid.warmup_s, grid.window_s]).unwrap_or_default();
        (warmup_s.unwrap_or(self.warmup_s), window_s.unwrap_or(self.window_s))
    }

    /// Whose work the results of a protocol are about.
    pub fn under_test(&self, protocol: Protocol) -> UnderTest {
        self.grid(protocol).map_or(UnderTest::Server, |grid| grid.under_test)
    }
}

/// What the command line changes.
impl Experiment {
    /// Looks at it again after changes.
    ///
    /// # Errors
    /// When it makes no sense any more.
    pub fn checked(self) -> Result<Experiment, LabError> {
        self.check(&Source::named("the options"))?;
        Ok(self)
    }

    /// Sets the seconds of warm-up and of the measured window, for all protocols.
    pub fn set_pace(&mut self, warmup_s: Option<f64>, window_s: Option<f64>) {
        self.warmup_s = warmup_s.unwrap_or(self.warmup_s);
        self.window_s = window_s.unwrap_or(self.window_s);
        for (_, grid) in self.grids_mut() {
            grid.warmup_s = warmup_s.or(grid.warmup_s);
            grid.window_s = window_s.or(grid.window_s);
        }
    }

    /// Compares these instead: see [`Subject::parse`]. Cells of a protocol that not all of them speak are left out.
    pub fn set_subjects(&mut self, subjects: Vec<Subject>) {
        let first = self.first_protocol();
        self.subjects = subjects;
        for subject in self.subjects.iter_mut().filter(|subject| subject.command.is_some()) {
            subject.protocol.get_or_insert(first);
        }
        let all_speak = |it: &Protocol| self.subjects.len() == self.subjects_of(*it).len();
        let kept: Vec<Protocol> = self.protocols().filter(all_speak).collect();
        self.keep_protocols(|protocol| kept.contains(&protocol));
    }

    /// Replaces the points of an axis, by key, in every protocol that has the axis; `bytes` is the size in any of them.
    ///
    /// # Errors
    /// When no cell has the axis.
    pub fn set_axis(&mut self, key: &str, values: &[u32]) -> Result<(), LabError> {
        let mut is_known = false;
        for (protocol, grid) in self.grids_mut() {
            let Some(spec) = Axis::of_key(protocol, key) else { continue };
            grid.set(spec, values);
            is_known = true;
            // Both give a rate: the one that is given replaces the other.
            let other = match spec.axis {
                Axis::RatePerS => "load_percent",
                Axis::LoadPercent => "rate_per_s",
                _ => continue,
            };
            if let Some(other) = Axis::of_key(protocol, other) {
                grid.set(other, &[0]);
            }
        }
        if is_known {
            return Ok(());
        }
        let mut known: Vec<&str> =
            self.protocols().flat_map(axes_of).map(|spec| spec.key).collect();
        known.sort_unstable();
        known.dedup();
        let found = format!("no cell of this experiment has an axis `{key}`");
        Err(LabError::request(
            "--set",
            found,
            format!("{}, which its cells have", known.join(", ")),
        ))
    }
}

/// A name that differs from another by as many letters is taken for a typing error.
const EDITS_MAX: usize = 2;

/// Names and texts of the experiments that come with the program.
pub const BUILT_IN: &[(&str, &str)] = &[
    ("quick", include_str!("../../experiments/quick.toml")),
    ("aa", include_str!("../../experiments/aa.toml")),
    ("grid", include_str!("../../experiments/grid.toml")),
    ("schedule", include_str!("../../experiments/schedule.toml")),
    ("load-curve", include_str!("../../experiments/load-curve.toml")),
    ("scaling", include_str!("../../experiments/scaling.toml")),
    ("churn", include_str!("../../experiments/churn.toml")),
    ("ablation", include_str!("../../experiments/ablation.toml")),
    ("udp-streams", include_str!("../../experiments/udp-streams.toml")),
    ("http", include_str!("../../experiments/http.toml")),
    ("peers", include_str!("../../experiments/peers.toml")),
    ("published-frevib", include_str!("../../experiments/published-frevib.toml")),
    ("published-joakimthun", include_str!("../../experiments/published-joakimthun.toml")),
    ("published-go-uring", include_str!("../../experiments/published-go-uring.toml")),
    ("published-nginx", include_str!("../../experiments/published-nginx.toml")),
    ("published-asyncudp", include_str!("../../experiments/published-asyncudp.toml")),
];

/// The text of a built-in experiment.
pub fn built_in(name: &str) -> Option<&'static str> {
    BUILT_IN.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

fn unknown(name: &str) -> LabError {
    let known: Vec<&str> = BUILT_IN.iter().map(|(known, _)| *known).collect();
    let like = known.iter().map(|known| (strsim::damerau_levenshtein(name, known), *known)).min();
    let like = like.filter(|(edits, _)| *edits <= EDITS_MAX);
    let suggestion = like.map_or(String::new(), |(_, it)| format!(", did you mean `{it}`?"));
    LabError::unknown(format!(
        "no experiment `{name}`{suggestion}; built in are: {}; or give the path of a TOML file",
        known.join(", ")
    ))
}

#[cfg(test)]
mod tests;
