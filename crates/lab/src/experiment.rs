//! What is to be measured: an experiment is a TOML file, the built-in ones included.
//!
//! The first subject is the baseline. Every point of the axes, on every network, is a [`Cell`];
//! in each cell every subject is run `pairs` times.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::LabError;

/// The schema of experiment files.
pub const EXPERIMENT_SCHEMA: &str = "twinring.lab.experiment/1";

/// Experiments that come with the program: name and text.
pub const BUILT_IN: &[(&str, &str)] = &[("quick", include_str!("../experiments/quick.toml"))];

/// The fewest pairs a verdict may rest on.
pub const MIN_PAIRS: usize = 8;

/// The most pairs, subjects and points of an axis that are accepted.
const MAX_PAIRS: usize = 1000;
const MAX_SUBJECTS: usize = 64;
const MAX_POINTS: usize = 64;

/// The longest window and warm-up, which with the limits above bounds every run.
const MAX_SECONDS: f64 = 300.0;

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
    /// Pairs per cell; under [`MIN_PAIRS`] there is no verdict.
    pub pairs: usize,
    /// How many blocks spoilt by noise may be run again, per cell.
    #[serde(default)]
    pub spare_pairs: usize,
    /// The network between server and client.
    #[serde(default)]
    pub net: NetChoice,
    /// How the CPU use of a run is found.
    #[serde(default)]
    pub accounting: Accounting,
    /// Load before the window opens, in seconds.
    pub warmup_s: f64,
    /// The measured window, in seconds.
    pub window_s: f64,
    /// What is varied.
    pub axes: Axes,
    /// The load generator. It never follows the subject's engine.
    pub load: Load,
    /// Who is compared; the first is the baseline.
    pub subjects: Vec<Subject>,
}

/// The points of the grid: every combination is a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Axes {
    /// Connections open at once.
    pub connections: Vec<u32>,
    /// Bytes of one message.
    pub message_bytes: Vec<u32>,
    /// Requests in flight per connection.
    #[serde(default = "depth_one")]
    pub depth: Vec<u32>,
}

fn depth_one() -> Vec<u32> {
    vec![1]
}

/// The command of the load generator. It must print the JSON lines of `twinring load`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// Program and arguments, with placeholders in braces.
    pub command: Vec<String>,
}

/// One of the programs that are compared: our echo server on an engine, or any command.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subject {
    /// Its name in the report.
    pub name: String,
    /// `io_uring` or `epoll`: `twinring serve echo` on this engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    /// Features of the engine, as `key=value,key=value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub features: Option<String>,
    /// Any other program and its arguments, with placeholders in braces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// How to know that it serves; by default `json` for an engine and `tcp` for a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<Ready>,
}

/// How a subject says that it can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ready {
    /// By the `ready` line of `twinring serve` on standard output.
    Json,
    /// By accepting a TCP connection.
    Tcp,
}

/// Which network was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetChoice {
    /// Namespaces where rights allow, else loopback with the reason.
    #[default]
    Auto,
    /// Two network namespaces joined by a veth pair, receive steering pinned per end.
    Veth,
    /// Plain loopback.
    Loopback,
    /// Both side by side.
    Both,
}

impl std::str::FromStr for NetChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<NetChoice, String> {
        match text {
            "auto" => Ok(NetChoice::Auto),
            "veth" => Ok(NetChoice::Veth),
            "loopback" => Ok(NetChoice::Loopback),
            "both" => Ok(NetChoice::Both),
            _ => Err(format!("`{text}` is none of auto, veth, loopback, both")),
        }
    }
}

/// How the busy time of a CPU is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accounting {
    /// By the kernel's idle clock, which changes nothing.
    #[default]
    IdleClock,
    /// By a process of idle priority on each CPU, which notices when it does not run. The CPU
    /// then never sleeps, and that changes what is measured; see `docs/method.md`.
    Soaker,
}

impl std::str::FromStr for Accounting {
    type Err = String;

    fn from_str(text: &str) -> Result<Accounting, String> {
        match text {
            "idle_clock" => Ok(Accounting::IdleClock),
            "soaker" => Ok(Accounting::Soaker),
            _ => Err(format!("`{text}` is none of idle_clock, soaker")),
        }
    }
}

impl fmt::Display for Accounting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Accounting::IdleClock => "the kernel's idle clock",
            Accounting::Soaker => "soakers",
        })
    }
}

/// Which network a cell was measured on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetKind {
    /// Two namespaces and a veth pair, receive steering (RPS) pinned per end.
    Veth,
    /// Plain loopback.
    Loopback,
}

impl fmt::Display for NetKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NetKind::Veth => "veth",
            NetKind::Loopback => "loopback",
        })
    }
}

/// One point of the grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cell {
    /// The network.
    pub net: NetKind,
    /// Connections open at once.
    pub connections: u32,
    /// Bytes of one message.
    pub message_bytes: u32,
    /// Requests in flight per connection.
    pub depth: u32,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {}", self.connections, bytes(self.message_bytes))?;
        if self.depth != 1 {
            write!(f, " x depth {}", self.depth)?;
        }
        write!(f, " on {}", self.net)
    }
}

/// A number of bytes as people write it: `128 B`, `16 KB`.
pub(crate) fn bytes(count: u32) -> String {
    match count {
        0 => "0 B".to_owned(),
        _ if count.is_multiple_of(1 << 20) => format!("{} MB", count >> 20),
        _ if count.is_multiple_of(1 << 10) => format!("{} KB", count >> 10),
        _ => format!("{count} B"),
    }
}

/// What the command line changes in an experiment. `None` leaves the experiment's own value.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// Pairs per cell.
    pub pairs: Option<usize>,
    /// Seconds of the measured window.
    pub window_s: Option<f64>,
    /// Seconds of warm-up.
    pub warmup_s: Option<f64>,
    /// Connection counts.
    pub connections: Option<Vec<u32>>,
    /// Message sizes, in bytes.
    pub message_bytes: Option<Vec<u32>>,
    /// Requests in flight per connection.
    pub depth: Option<Vec<u32>>,
    /// The network.
    pub net: Option<NetChoice>,
    /// How CPU use is found.
    pub accounting: Option<Accounting>,
    /// When not empty, these subjects instead of the experiment's: see [`Subject::parse`].
    pub subjects: Vec<Subject>,
}

impl Subject {
    /// Reads the subject of an option: `NAME=ENGINE`, `NAME=ENGINE:key=value,…` where the engine
    /// is `io_uring` or `epoll`, or `NAME=PROGRAM ARGUMENT…` with `{addr}` among the arguments.
    ///
    /// # Errors
    /// [`LabError::BadExperiment`] when the text has no name, no program, or open quotes.
    pub fn parse(text: &str) -> Result<Subject, LabError> {
        let bad = |problem: &str| LabError::BadExperiment {
            place: format!("--subject `{text}`"),
            problem: problem.to_owned(),
            expected: "NAME=io_uring[:key=value,…], NAME=epoll[:…] or NAME=PROGRAM ARGUMENTS with \
                       {addr} among them"
                .to_owned(),
        };
        let (name, value) = text.split_once('=').ok_or_else(|| bad("no `=`"))?;
        let name = name.trim().to_owned();
        let (engine, features) = match value.split_once(':') {
            Some((engine, features)) => (engine.trim(), Some(features.to_owned())),
            None => (value.trim(), None),
        };
        if matches!(engine, "io_uring" | "epoll") {
            let engine = Some(engine.to_owned());
            return Ok(Subject { name, engine, features, ..Subject::default() });
        }
        let command = shlex::split(value).ok_or_else(|| bad("a quote is not closed"))?;
        Ok(Subject { name, command: Some(command), ..Subject::default() })
    }

    /// How readiness is found out.
    pub fn ready_check(&self) -> Ready {
        self.ready.unwrap_or(if self.engine.is_some() { Ready::Json } else { Ready::Tcp })
    }

    /// Program and arguments, placeholders still in them.
    pub fn command_template(&self) -> Vec<String> {
        let (Some(engine), None) = (&self.engine, &self.command) else {
            return self.command.clone().unwrap_or_default();
        };
        let mut command: Vec<String> = ["{twinring}", "serve", "echo", "--listen", "{addr}"]
            .into_iter()
            .chain(["--engine", engine, "--workers", "1", "--pin", "{server_cpu}", "--json"])
            .map(str::to_owned)
            .collect();
        if let Some(features) = &self.features {
            command.push(if engine == "epoll" { "--epoll" } else { "--uring" }.to_owned());
            command.push(features.clone());
        }
        command
    }
}

impl Experiment {
    /// The built-in experiment of this name, or the one in the file of this path.
    ///
    /// # Errors
    /// [`LabError::UnknownExperiment`] when there is neither, [`LabError::Read`] when the file
    /// cannot be read, [`LabError::BadExperiment`] with line and expectation when it is wrong.
    pub fn find(name: &str) -> Result<Experiment, LabError> {
        if let Some((_, text)) = BUILT_IN.iter().find(|(known, _)| *known == name) {
            return Experiment::from_toml(text, &format!("built-in `{name}`"));
        }
        let path = Path::new(name);
        if !path.exists() {
            let known = BUILT_IN.iter().map(|(known, _)| *known).collect::<Vec<_>>().join(", ");
            return Err(LabError::UnknownExperiment { name: name.to_owned(), known });
        }
        let text = std::fs::read_to_string(path).map_err(|e| LabError::read(path, e))?;
        Experiment::from_toml(&text, name)
    }

    /// Reads and checks the text of an experiment file; `place` names it in errors.
    ///
    /// # Errors
    /// [`LabError::BadExperiment`].
    pub fn from_toml(text: &str, place: &str) -> Result<Experiment, LabError> {
        let experiment: Experiment =
            toml::from_str(text).map_err(|error| LabError::BadExperiment {
                place: match error.span() {
                    Some(span) => format!("{place}:{}", line_of(text, span.start)),
                    None => place.to_owned(),
                },
                problem: error.message().to_owned(),
                expected: "the fields that `twinring lab show quick` prints".to_owned(),
            })?;
        experiment.check(place)?;
        Ok(experiment)
    }

    /// This experiment with the command line's changes.
    ///
    /// # Errors
    /// [`LabError::BadExperiment`] when the result makes no sense.
    pub fn with(mut self, overrides: &Overrides) -> Result<Experiment, LabError> {
        self.pairs = overrides.pairs.unwrap_or(self.pairs);
        self.window_s = overrides.window_s.unwrap_or(self.window_s);
        self.warmup_s = overrides.warmup_s.unwrap_or(self.warmup_s);
        self.net = overrides.net.unwrap_or(self.net);
        self.accounting = overrides.accounting.unwrap_or(self.accounting);
        let axis = |own: &mut Vec<u32>, given: &Option<Vec<u32>>| {
            if let Some(given) = given {
                own.clone_from(given);
            }
        };
        axis(&mut self.axes.connections, &overrides.connections);
        axis(&mut self.axes.message_bytes, &overrides.message_bytes);
        axis(&mut self.axes.depth, &overrides.depth);
        if !overrides.subjects.is_empty() {
            self.subjects.clone_from(&overrides.subjects);
        }
        self.check("the options")?;
        Ok(self)
    }

    /// Every cell of the grid on the given networks, in the order of the report.
    pub fn cells(&self, nets: &[NetKind]) -> Vec<Cell> {
        let mut cells = Vec::new();
        for &net in nets {
            for &message_bytes in &self.axes.message_bytes {
                for &depth in &self.axes.depth {
                    for &connections in &self.axes.connections {
                        cells.push(Cell { net, connections, message_bytes, depth });
                    }
                }
            }
        }
        cells
    }

    /// The name of the baseline.
    pub fn baseline(&self) -> &str {
        &self.subjects[0].name
    }

    fn check(&self, place: &str) -> Result<(), LabError> {
        let unless = |right: bool, problem: String, expected: &str| {
            if right {
                return Ok(());
            }
            let (place, expected) = (place.to_owned(), expected.to_owned());
            Err(LabError::BadExperiment { place, problem, expected })
        };
        unless(
            self.schema == EXPERIMENT_SCHEMA,
            format!("schema = \"{}\"", self.schema),
            EXPERIMENT_SCHEMA,
        )?;
        unless(
            is_name(&self.name),
            format!("name = \"{}\"", self.name),
            "1-40 letters, digits, `-`, `_`, `.`",
        )?;
        unless(
            (1..=MAX_PAIRS).contains(&self.pairs) && self.spare_pairs <= MAX_PAIRS,
            format!("pairs = {}, spare_pairs = {}", self.pairs, self.spare_pairs),
            "1 to 1000 pairs (8 or more for a verdict) and at most 1000 to spare",
        )?;
        unless(
            self.window_s >= 0.05 && self.window_s <= MAX_SECONDS,
            format!("window_s = {}", self.window_s),
            "0.05 to 300 seconds",
        )?;
        unless(
            self.warmup_s >= 0.0 && self.warmup_s <= MAX_SECONDS,
            format!("warmup_s = {}", self.warmup_s),
            "0 to 300 seconds",
        )?;
        for (axis, points, most) in [
            ("connections", &self.axes.connections, 1_000_000),
            ("message_bytes", &self.axes.message_bytes, 64 << 20),
            ("depth", &self.axes.depth, 100_000),
        ] {
            unless(
                (1..=MAX_POINTS).contains(&points.len())
                    && points.iter().all(|point| (1..=most).contains(point)),
                format!("{axis} = {points:?}"),
                &format!("1 to {MAX_POINTS} numbers from 1 to {most}"),
            )?;
        }
        unless(
            self.load.command.iter().any(|word| word.contains("{addr}")),
            "the load's command has no {addr}".to_owned(),
            "a program and arguments, with {addr} where the server's address goes",
        )?;
        self.check_subjects(unless)
    }

    fn check_subjects(
        &self,
        unless: impl Fn(bool, String, &str) -> Result<(), LabError>,
    ) -> Result<(), LabError> {
        unless(
            (1..=MAX_SUBJECTS).contains(&self.subjects.len()),
            format!("{} subjects", self.subjects.len()),
            "1 to 64 subjects, the first of them the baseline",
        )?;
        for (index, subject) in self.subjects.iter().enumerate() {
            let Subject { name, engine, command, features, .. } = subject;
            let known = self.subjects[..index].iter().any(|other| other.name == *name);
            unless(!known, format!("two subjects named `{name}`"), "a name of its own for each")?;
            unless(
                is_name(name),
                format!("subject name \"{name}\""),
                "1-40 letters, digits, `-`, `_`, `.`",
            )?;
            let engine_known = engine.as_deref().is_none_or(|e| matches!(e, "io_uring" | "epoll"));
            unless(engine_known, format!("engine = {engine:?}"), "io_uring or epoll")?;
            unless(
                engine.is_some() != command.is_some() && (command.is_none() || features.is_none()),
                format!("subject `{name}` has engine {engine:?} and command {command:?}"),
                "either an engine (with features) or a command",
            )?;
            let listens = |word: &String| word.contains("{addr}") || word.contains("{port}");
            unless(
                subject.command_template().iter().any(listens),
                format!("the command of `{name}` has no {{addr}}"),
                "{addr}, or {ip} and {port}, where the listen address goes",
            )?;
        }
        Ok(())
    }
}

/// Whether a name can be used in file names, tables and HTML without surprises.
fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=40).contains(&name.chars().count()) && name.chars().all(plain) && !name.starts_with('.')
}

fn line_of(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_experiments_are_valid_and_quick_has_two_cells() {
        for (name, _) in BUILT_IN {
            Experiment::find(name).unwrap();
        }
        let quick = Experiment::find("quick").unwrap();
        assert_eq!(quick.baseline(), "epoll");
        assert!(quick.pairs >= MIN_PAIRS);
        let cells = quick.cells(&[NetKind::Veth]);
        let names: Vec<_> = cells.iter().map(Cell::to_string).collect();
        assert_eq!(names, ["100 x 128 B on veth", "100 x 16 KB on veth"]);
    }

    #[test]
    fn an_error_names_file_line_and_expectation() {
        let text = BUILT_IN[0].1.replace("pairs = 8", "pairs = \"many\"");
        let error = Experiment::from_toml(&text, "mine.toml").unwrap_err().to_string();
        assert!(error.starts_with("mine.toml:8: "), "{error}");
        let text = BUILT_IN[0].1.replace("pairs = 8", "pears = 8");
        let error = Experiment::from_toml(&text, "mine.toml").unwrap_err().to_string();
        assert!(error.contains("mine.toml:8") && error.contains("pears"), "{error}");
    }

    #[test]
    fn nonsense_is_refused_with_exit_code_2() {
        let quick = || Experiment::find("quick").unwrap();
        let none = Overrides::default();
        for overrides in [
            Overrides { pairs: Some(0), ..none.clone() },
            Overrides { window_s: Some(f64::NAN), ..none.clone() },
            Overrides { warmup_s: Some(-1.0), ..none.clone() },
            Overrides { connections: Some(vec![]), ..none.clone() },
            Overrides { message_bytes: Some(vec![0]), ..none.clone() },
            Overrides { subjects: vec![Subject::parse("a=cat").unwrap()], ..none.clone() },
            Overrides { subjects: vec![Subject::parse("../a=cat {addr}").unwrap()], ..none },
        ] {
            let error = quick().with(&overrides).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{overrides:?}: {error}");
        }
        assert_eq!(Experiment::find("nothing-like-it").unwrap_err().exit_code(), 2);
    }

    #[test]
    fn subjects_are_read_from_options() {
        let plain = Subject::parse("plain=io_uring:multishot=off,buffers=none").unwrap();
        let command = plain.command_template();
        assert_eq!(command[command.len() - 2..], ["--uring", "multishot=off,buffers=none"]);
        assert_eq!(plain.ready_check(), Ready::Json);
        let peer = Subject::parse("tokio='./my echo' --on {addr}").unwrap();
        assert_eq!(peer.command.as_deref().unwrap(), ["./my echo", "--on", "{addr}"]);
        assert_eq!(peer.ready_check(), Ready::Tcp);
        assert!(Subject::parse("nothing").is_err());
        assert!(Subject::parse("a='open {addr}").is_err());
    }
}
