//! `twinring compare`: which of two or more servers needs less CPU for one workload.

use crate::lab::{HELPER, finish, tell};
use crate::output::complain;
use crate::values;
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use twinring_input::quantity;
use twinring_lab::statistics::{family_level, least_pairs};
use twinring_lab::{
    Experiment, Gate, LabError, NetChoice, Outcome, Overrides, Protocol, RunOptions, Stop, Subject,
    UnderTest,
};

/// Options of `compare`.
#[derive(Debug, Args)]
pub(crate) struct Compare {
    /// echo, http or udp (echo by default), and then what is compared, the first with each of the others: io_uring,
    /// epoll, each with options (`epoll:gather=off`), nginx or another of `twinring lab peers`, or 'NAME=COMMAND'
    /// with {addr} where the address goes, and {root} where the files are [default: epoll io_uring].
    #[arg(value_name = "WORKLOAD|SERVER")]
    words: Vec<String>,
    #[command(flatten)]
    workload: Workload,
    /// Load: a share of what the slowest server can serve (25%), max, or requests per second of all connections.
    /// Repeatable [default: 25% and max].
    #[arg(long, value_name = "25%|max|RATE")]
    load: Vec<Load>,
    /// Pairs per load: by default as many as show a difference, and two to spare.
    #[arg(long, value_name = "N")]
    pairs: Option<usize>,
    /// A gate: `FIGURE > N%` or `FIGURE < -N%`, such as `server_cpu > 3%`, of each server against the first. It is
    /// breached if the whole interval is beyond the limit; then the exit code is 3, or 1 if it cannot be judged.
    /// Repeatable.
    #[arg(long, value_name = "EXPR")]
    fail_if: Vec<Gate>,
    /// Print all tables before the page.
    #[arg(long, conflicts_with = "json")]
    full: bool,
}

/// What every question says of its workload.
#[derive(Debug, Clone, Args)]
pub(crate) struct Workload {
    /// Connections, or streams of UDP, at once.
    #[arg(short, long, value_name = "N", default_value = "100", value_parser = values::count)]
    pub(crate) connections: u32,
    /// Size of a message, a file or a datagram, such as 128 or 16K [default: 128; http: 1K; udp: 172].
    #[arg(short, long, value_name = "BYTES", value_parser = values::size)]
    pub(crate) size: Option<u32>,
    /// HTTP over TLS.
    #[arg(long)]
    pub(crate) tls: bool,
    /// Network: lo (the sender's CPU receives), rps (the receiver's CPU is interrupted), napi (it polls), several as
    /// `lo,rps`, all, or auto: rps if rights allow, otherwise lo.
    #[arg(long, default_value = "auto")]
    pub(crate) net: NetChoice,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

/// How an experiment is run, and where its result goes.
#[derive(Debug, Clone, Args)]
pub(crate) struct RunArgs {
    /// Go on beside a busy process: by default the experiment stops after six excluded blocks in a row.
    #[arg(long)]
    busy: bool,
    /// Directory in which peers are looked for first; then $TWINRING_PEERS, the directory of this
    /// binary, peers/target/release here, and PATH.
    #[arg(long, value_name = "DIR")]
    peers: Option<PathBuf>,
    /// Directory for bundles, which have the raw data.
    #[arg(long, default_value = "bundles", value_name = "DIR")]
    out: PathBuf,
    /// Print the result as one JSON line.
    #[arg(long)]
    pub(crate) json: bool,
}

impl RunArgs {
    pub(crate) fn options(&self, experiment: Experiment) -> Result<RunOptions, LabError> {
        let binary =
            std::env::current_exe().map_err(|e| LabError::read("the running binary", e))?;
        Ok(RunOptions {
            experiment,
            out: self.out.clone(),
            seed: None,
            helper: vec![OsString::from(&binary), HELPER.into()],
            binary,
            peers: self.peers.clone(),
            prices: true,
            busy: self.busy,
            command: std::env::args().collect(),
        })
    }
}

/// How much a server has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    /// A share, in percent, of what the slowest can serve.
    Percent(u32),
    /// As much as each can serve: a closed loop.
    Max,
    /// Requests or packets per second of all connections.
    Rate(u32),
}

impl FromStr for Load {
    type Err = String;

    fn from_str(text: &str) -> Result<Load, String> {
        let load = match (text, text.strip_suffix('%')) {
            ("max", _) => Some(Load::Max),
            (_, Some(percent)) => {
                let percent = percent.trim().parse().ok().filter(|it| (1..=95).contains(it));
                percent.map(Load::Percent)
            }
            (_, None) => {
                let rate = quantity::rate(text).ok().and_then(|it| u32::try_from(it).ok());
                rate.filter(|it| *it > 0).map(Load::Rate)
            }
        };
        load.ok_or_else(|| {
            format!("`{text}`: expected a share such as 25%, max, or a rate such as 5000")
        })
    }
}

const PAIRS_MIN: usize = 8;

/// Packets per second of one stream of UDP; 50 is a telephone call.
const PACKETS_PER_S: u32 = 50;

impl Workload {
    /// The experiment: that of `quick` for this protocol, with what is asked for. UDP always has a schedule. By default
    /// there are as many pairs as show a difference, and two to spare.
    pub(crate) fn experiment(
        &self,
        name: &str,
        protocol: Protocol,
        subjects: &[String],
        loads: &[Load],
        pairs: Option<usize>,
    ) -> Result<Experiment, LabError> {
        let comparisons = subjects.len().saturating_sub(1) * loads.len().max(1);
        let enough = (least_pairs(family_level(comparisons)) + 2).max(PAIRS_MIN);
        let pairs = Some(pairs.unwrap_or(enough));
        let only = Overrides { protocol: Some(protocol), ..Overrides::default() };
        let mut experiment = Experiment::find("quick")?.with(&only)?;
        experiment.name = name.to_owned();
        experiment.about = "which server needs less CPU for one workload".to_owned();
        if let Some(udp) = &mut experiment.udp {
            udp.under_test = UnderTest::Server;
        }
        experiment.with(&Overrides {
            pairs,
            spare_pairs: pairs,
            warmup_s: Some(0.25),
            axes: self.axes(protocol, loads)?,
            net: Some(self.net.clone()),
            subjects: subjects.iter().map(|it| Subject::parse(it)).collect::<Result<_, _>>()?,
            ..Overrides::default()
        })
    }

    fn axes(&self, protocol: Protocol, loads: &[Load]) -> Result<Axes, LabError> {
        let usual_bytes = match protocol {
            Protocol::Tcp => 128,
            Protocol::Http => 1024,
            Protocol::Udp => 172,
        };
        let mut axes = vec![("bytes", vec![self.size.unwrap_or(usual_bytes)])];
        let rates =
            || loads.iter().filter_map(|it| if let Load::Rate(it) = it { Some(*it) } else { None });
        if protocol == Protocol::Udp {
            let mut each: Vec<u32> =
                rates().map(|it| (it / self.connections.max(1)).max(1)).collect();
            if each.is_empty() {
                each.push(PACKETS_PER_S);
            }
            axes.extend([("streams", vec![self.connections]), ("packets_per_s", each)]);
        } else {
            let is_rate = rates().next().is_some();
            let value = |load: &Load| match (*load, is_rate) {
                (Load::Max, _) => Ok(0),
                (Load::Percent(value), false) | (Load::Rate(value), true) => Ok(value),
                _ => {
                    let found = "shares and rates together";
                    Err(LabError::request("--load", found, "either of them, and max"))
                }
            };
            let values = loads.iter().map(value).collect::<Result<_, _>>()?;
            axes.push((if is_rate { "rate_per_s" } else { "load_percent" }, values));
            axes.push(("connections", vec![self.connections]));
        }
        if protocol == Protocol::Http {
            axes.push(("tls", vec![u32::from(self.tls)]));
        }
        Ok(axes.into_iter().map(|(key, values)| (key.to_owned(), values)).collect())
    }
}

type Axes = Vec<(String, Vec<u32>)>;

pub(crate) fn service(word: &str) -> Option<Protocol> {
    match word {
        "echo" => Some(Protocol::Tcp),
        "http" => Some(Protocol::Http),
        "udp" => Some(Protocol::Udp),
        _ => None,
    }
}

pub(crate) fn run(options: &Compare) -> ExitCode {
    finish("compare", compare(options))
}

fn compare(options: &Compare) -> Result<u8, LabError> {
    let outcome = measure(experiment(options)?, &options.workload)?;
    let verdicts = outcome.judged(&options.fail_if);
    let gates: String = verdicts.iter().map(|it| format!("{it}\n")).collect();
    let page = if options.workload.run.json {
        format!("{}\n", twinring_lab::json_line(&outcome))
    } else if options.full {
        let directory = outcome.directory.display().to_string();
        twinring_lab::full(&outcome.bundle, &directory) + &gates
    } else {
        outcome.page() + &gates
    };
    if options.workload.run.json && !gates.is_empty() {
        complain(gates.trim_end());
    }
    let code = match outcome.exit_code() {
        0 => twinring_lab::gates_exit_code(&verdicts),
        code => code,
    };
    Ok(tell(&page, code))
}

fn experiment(options: &Compare) -> Result<Experiment, LabError> {
    let protocol = options.words.first().and_then(|word| service(word));
    let servers = &options.words[usize::from(protocol.is_some())..];
    let protocol = protocol.unwrap_or(Protocol::Tcp);
    let subjects = match servers {
        [] => ["epoll", "io_uring"].map(str::to_owned).to_vec(),
        // One server is compared with ours.
        [one] if one != "epoll" => vec!["epoll".to_owned(), one.clone()],
        [one] => vec![one.clone(), "io_uring".to_owned()],
        several => several.to_vec(),
    };
    let usual = if protocol == Protocol::Udp { vec![] } else { vec![Load::Percent(25), Load::Max] };
    let loads = if options.load.is_empty() { &usual } else { &options.load };
    options.workload.experiment("compare", protocol, &subjects, loads, options.pairs)
}

/// Runs an experiment, after saying how long it takes.
pub(crate) fn measure(experiment: Experiment, workload: &Workload) -> Result<Outcome, LabError> {
    complain(&format!("measuring, {}", twinring_lab::how_long(&experiment)));
    let options = workload.run.options(experiment)?;
    twinring_lab::run(&options, &Stop::on_signals().map_err(LabError::signals)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use twinring_lab::{Axis, NetKind};

    /// The experiment that these words ask for.
    fn asked(words: &str) -> Result<Experiment, LabError> {
        let words = ["twinring", "compare", "--net", "lo"].into_iter().chain(words.split(' '));
        let crate::Command::Compare(options) = crate::Cli::parse_from(words).command else {
            panic!("another command");
        };
        experiment(&options)
    }

    #[test]
    fn a_question_is_an_experiment_with_enough_pairs() {
        let experiment = asked("echo epoll io_uring mine=./a_{addr}").unwrap();
        // Four comparisons take 8 pairs.
        assert_eq!((experiment.pairs, experiment.contests(Protocol::Tcp).len()), (10, 2));
        for (words, axis, expected) in [
            ("echo epoll", Axis::LoadPercent, &[25, 0][..]),
            ("udp epoll io_uring --load 20k", Axis::PacketsPerS, &[200]),
            ("http epoll nginx --load 5000", Axis::RatePerS, &[5000]),
            // Only the first rate was measured, and `max` beside it was not.
            ("echo --load 5000 --load max --load 20k", Axis::RatePerS, &[5000, 0, 20_000]),
        ] {
            let cells = asked(words).unwrap().cells(&[NetKind::Lo]);
            let values: Vec<_> = cells.iter().filter_map(|cell| cell.point.on(axis)).collect();
            assert_eq!(values, expected, "{words}");
        }
        assert!(asked("echo --load 25% --load 5000").is_err());
        for wrong in ["", "0%", "100%", "0", "-1", "much"] {
            assert!(wrong.parse::<Load>().is_err(), "{wrong}");
        }
    }
}
