//! `twinring compare`: which of two or more servers needs less CPU for one workload. `twinring advise`, the page for the
//! one who decides, is that with what the probe says of this machine.

use crate::lab::{HELPER, tell};
use crate::output::complain;
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use twinring::probe::Capabilities;
use twinring_input::quantity::{self, count_u32, size_u32};
use twinring_lab::analysis::FIGURES;
use twinring_lab::statistics::{family_level, least_pairs};
use twinring_lab::{
    Experiment, Gate, LabError, NetChoice, Outcome, Protocol, RunOptions, Stop, Subject, UnderTest,
};

#[derive(Debug, Args)]
pub(crate) struct Compare {
    /// echo, http or udp (echo by default), and then the servers, of which the first is compared with each of the others:
    /// io_uring or epoll, perhaps with options (`epoll:gather=off`), nginx or another of `twinring lab peers`, or
    /// 'NAME=COMMAND' with {addr} for the address and {root} for the directory of files [default: epoll io_uring].
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

/// A workload, and how it is measured.
#[derive(Debug, Clone, Args)]
struct Workload {
    /// Connections, or streams of UDP, at once.
    #[arg(short, long, value_name = "N", default_value = "100", value_parser = count_u32)]
    connections: u32,
    /// Size of a message, a file or a datagram, such as 128 or 16K [default: 128; http: 1K; udp: 172].
    #[arg(short, long, value_name = "BYTES", value_parser = size_u32)]
    size: Option<u32>,
    /// HTTP over TLS.
    #[arg(long)]
    tls: bool,
    /// Network: lo (the sender's CPU receives), rps (the receiver's CPU is interrupted) or napi (it polls); several as
    /// `lo,rps`, or all; or auto: rps if rights allow, otherwise lo.
    #[arg(long, default_value = "auto")]
    net: NetChoice,
    #[command(flatten)]
    run: RunArgs,
}

/// How an experiment is run, and where its result goes.
#[derive(Debug, Clone, Args)]
pub(crate) struct RunArgs {
    /// Continue although a busy process disturbs the runs: by default the experiment stops after six excluded blocks in a
    /// row.
    #[arg(long)]
    busy: bool,
    /// Directory in which peers are looked for first; then $TWINRING_PEERS, the directory of this
    /// binary, peers/target/release here, and PATH.
    #[arg(long, value_name = "DIR")]
    peers: Option<PathBuf>,
    /// Directory for bundles, which hold the raw data.
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
enum Load {
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
        let rate = || u32::try_from(quantity::rate(text).ok()?).ok().filter(|it| *it > 0);
        let load = match text.strip_suffix('%') {
            Some(percent) => {
                let percent = percent.trim().parse().ok().filter(|it| (1..=95).contains(it));
                percent.map(Load::Percent)
            }
            None if text == "max" => Some(Load::Max),
            None => rate().map(Load::Rate),
        };
        load.ok_or_else(|| {
            format!("`{text}`: expected a share such as 25%, max, or a rate such as 5000")
        })
    }
}

impl Workload {
    /// The experiment: that of `quick` for this protocol, with what is asked for. UDP always has a schedule. By default
    /// there are as many pairs as show a difference, and two to spare.
    fn experiment(
        &self,
        name: &str,
        protocol: Protocol,
        subjects: &[String],
        loads: &[Load],
        pairs: Option<usize>,
    ) -> Result<Experiment, LabError> {
        let usual = match protocol {
            // A telephone call is 50 packets per second.
            Protocol::Udp => vec![Load::Rate(self.connections.saturating_mul(50))],
            _ => vec![Load::Percent(25), Load::Max],
        };
        let loads = if loads.is_empty() { &usual[..] } else { loads };
        let comparisons = subjects.len().saturating_sub(1) * loads.len();
        let enough = (least_pairs(family_level(comparisons)) + 2).max(8);
        let pairs = pairs.unwrap_or(enough);
        let subjects = subjects.iter().map(|it| Subject::parse(it)).collect::<Result<_, _>>()?;
        let mut experiment = Experiment::find("quick")?;
        experiment.keep_protocols(|it| it == protocol);
        experiment.name = name.to_owned();
        experiment.about = "which server needs less CPU for one workload".to_owned();
        if let Some(udp) = &mut experiment.udp {
            udp.under_test = UnderTest::Server;
        }
        (experiment.pairs, experiment.spare_pairs) = (pairs, pairs);
        experiment.net = self.net.clone();
        experiment.set_pace(Some(0.25), None);
        experiment.set_subjects(subjects);
        if experiment.protocols().next().is_none() {
            let found = format!("not all of them speak {protocol}");
            let expected = "echo, http or udp first, as in `compare http epoll nginx`";
            return Err(LabError::request("the servers", found, expected));
        }
        for (key, values) in self.axes(protocol, loads)? {
            experiment.set_axis(key, &values)?;
        }
        experiment.checked()
    }

    fn axes(
        &self,
        protocol: Protocol,
        loads: &[Load],
    ) -> Result<Vec<(&'static str, Vec<u32>)>, LabError> {
        let usual_bytes = match protocol {
            Protocol::Tcp => 128,
            Protocol::Http => 1024,
            Protocol::Udp => 172,
        };
        let is_rate = loads.iter().any(|it| matches!(it, Load::Rate(_)));
        let value = |load: &Load| match (*load, protocol, is_rate) {
            (Load::Rate(rate), Protocol::Udp, _) if rate % self.connections.max(1) == 0 => {
                Ok(rate / self.connections.max(1))
            }
            (Load::Rate(_), Protocol::Udp, _) => {
                Err(("a rate that the streams cannot share", "a multiple of -c"))
            }
            (_, Protocol::Udp, _) => Err(("a share", "a rate: datagrams always have a schedule")),
            (Load::Max, ..) => Ok(0),
            (Load::Percent(value), _, false) | (Load::Rate(value), _, true) => Ok(value),
            _ => Err(("shares and rates together", "either of them, and max")),
        };
        let wrong = |(found, expected)| LabError::request("the load", found, expected);
        let values = loads.iter().map(value).collect::<Result<_, _>>().map_err(wrong)?;
        let (load, connections) = match (protocol, is_rate) {
            (Protocol::Udp, _) => ("packets_per_s", "streams"),
            (_, true) => ("rate_per_s", "connections"),
            (_, false) => ("load_percent", "connections"),
        };
        let mut axes = vec![
            ("bytes", vec![self.size.unwrap_or(usual_bytes)]),
            (connections, vec![self.connections]),
            (load, values),
        ];
        if protocol == Protocol::Http {
            axes.push(("tls", vec![u32::from(self.tls)]));
        }
        Ok(axes)
    }
}

const SERVICES: [(&str, Protocol); 3] =
    [("echo", Protocol::Tcp), ("http", Protocol::Http), ("udp", Protocol::Udp)];

fn service(word: &str) -> Option<Protocol> {
    SERVICES.into_iter().find(|(name, _)| *name == word).map(|(_, protocol)| protocol)
}

pub(crate) fn compare(options: &Compare) -> Result<u8, LabError> {
    let compared = || FIGURES.iter().filter(|it| it.is_compared).map(|it| it.name);
    let not_compared = |gate: &&Gate| compared().all(|name| name != gate.figure);
    if let Some(gate) = options.fail_if.iter().find(not_compared) {
        let expected = format!("one of {}", compared().collect::<Vec<_>>().join(", "));
        return Err(LabError::request("--fail-if", &gate.figure, expected));
    }
    let outcome = measure(experiment(options)?, &options.workload)?;
    let verdicts = outcome.judged(&options.fail_if);
    let gates: String = verdicts.iter().map(|it| format!("{it}\n")).collect();
    let page = if options.workload.run.json {
        if !gates.is_empty() {
            complain(gates.trim_end());
        }
        twinring_lab::json_line(&outcome) + "\n"
    } else if options.full {
        let directory = outcome.directory.display().to_string();
        twinring_lab::full(&outcome.bundle, &directory) + &gates
    } else {
        outcome.page() + &gates
    };
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
    options.workload.experiment("compare", protocol, &subjects, &options.load, options.pairs)
}

/// Runs an experiment, after saying how long it takes.
fn measure(experiment: Experiment, workload: &Workload) -> Result<Outcome, LabError> {
    complain(&format!("measuring, {}", twinring_lab::how_long(&experiment)));
    let options = workload.run.options(experiment)?;
    twinring_lab::run(&options, &Stop::on_signals().map_err(LabError::signals)?)
}

#[derive(Debug, Args)]
pub(crate) struct Advise {
    /// What your server is most like: echo, http or udp.
    #[arg(default_value = "echo", value_parser = ["echo", "http", "udp"])]
    service: String,
    #[command(flatten)]
    workload: Workload,
    /// Requests per second of all connections; by default a quarter of what the slowest server can answer, and as many as
    /// each can.
    #[arg(short, long, value_name = "R", value_parser = count_u32)]
    rate: Option<u32>,
}

pub(crate) fn advise(options: &Advise) -> Result<u8, LabError> {
    let protocol = service(&options.service).unwrap_or(Protocol::Tcp);
    // Most programs use epoll without gathering their sends. Datagrams are never gathered.
    let subjects = ["epoll-at-once=epoll:gather=off", "epoll", "io_uring"].map(str::to_owned);
    let subjects = &subjects[usize::from(protocol == Protocol::Udp)..];
    let rate = options.rate.map(Load::Rate);
    // Wrong words are refused first, wherever this runs.
    let mut experiment =
        options.workload.experiment("advise", protocol, subjects, rate.as_slice(), None)?;
    if let [_, _, io_uring] = &mut experiment.subjects[..] {
        io_uring.against = vec!["epoll".to_owned()];
    }
    let found = Capabilities::detect();
    if let Some(refusal) = &found.refusal {
        let page = match options.workload.run.json {
            true => format!(
                "{}\n",
                serde_json::json!({"event": "result", "use": "epoll", "refused": refusal.what})
            ),
            false => format!(
                "io_uring cannot run here: {}.\nTRY    {}\nUSE    epoll\n",
                refusal.what, refusal.fix
            ),
        };
        return Ok(tell(&page, 0));
    }
    let outcome = measure(experiment, &options.workload)?;
    let page = match options.workload.run.json {
        true => twinring_lab::json_line(&outcome) + "\n",
        false => page(&outcome, protocol, &found),
    };
    Ok(tell(&page, outcome.exit_code()))
}

/// The page of the comparison, with what the probe says before its answer.
fn page(outcome: &Outcome, protocol: Protocol, found: &Capabilities) -> String {
    let page = outcome.page();
    let at = page.find("LIMITS").or_else(|| page.find("NEXT")).unwrap_or(0);
    let (chart, rest) = page.split_at(at);
    let service = match protocol {
        Protocol::Tcp => "echo",
        Protocol::Udp => "udp",
        Protocol::Http => "http --root DIR",
    };
    let mut facts = prices(outcome);
    if protocol != Protocol::Udp {
        let note = "NOTE   epoll gathers its sends; epoll-at-once sends each at once, as most do\n";
        facts.push(note.to_owned());
    }
    // In the words of `twinring probe`, by which it can be checked.
    if found.environment.container.is_none() {
        let forbidden = "BEFORE Docker forbids io_uring by default: twinring seccomp oci\n";
        facts.push(forbidden.to_owned());
    }
    let missing: Vec<&str> = found.missing().iter().map(|feature| feature.kernel_name).collect();
    if !missing.is_empty() {
        facts.push(format!("BEFORE this kernel lacks {}: twinring probe\n", missing.join(", ")));
    }
    facts.push(format!("TRY    twinring serve {service} --listen ADDRESS --engine both\n"));
    let words = outcome.bundle.command.iter().skip(1).map(String::as_str);
    if let Ok(words) = shlex::try_join(words) {
        facts.push(format!("COPY   twinring {words}\n"));
    }
    format!("{chart}{}{rest}", facts.concat())
}

/// What each server costs in cores, and how long a request takes: a line for each cell, three at most.
fn prices(outcome: &Outcome) -> Vec<String> {
    let mut lines = Vec::new();
    let cells = outcome.bundle.summary.iter().flat_map(|summary| &summary.cells);
    for cell in cells.take(3) {
        let void = || cell.comparisons.iter().filter_map(|it| it.void.as_deref());
        let each = cell.subjects.iter().filter_map(|subject| {
            // Wrong answers may cost little.
            let is_void = void().any(|why| why.starts_with(&format!("{}: ", subject.name)));
            let figures = subject.figures.as_ref().filter(|_| !is_void)?;
            let (cpu_ns, p99_us) = (figures.get("server_cpu_ns")?, figures.get("p99_us")?);
            let (cores, p99_ms) = (cpu_ns * 1e5 / 1e9, p99_us / 1e3);
            Some(format!("{} {cores:.2}, {p99_ms:.2}", subject.name))
        });
        let each: Vec<String> = each.collect();
        let load = if cell.is_saturated() { "full" } else { "part" };
        if !each.is_empty() {
            lines.push(format!("       {load} {}: {}\n", cell.cell.net, each.join("; ")));
        }
    }
    if !lines.is_empty() {
        lines.insert(0, "CORES  for 100,000/s, and p99 in ms\n".to_owned());
    }
    lines
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
        // A share of what UDP can serve was taken for no load at all, and 50 per second were measured.
        // Of 70 packets/s for 100 streams, 100/s were measured.
        for wrong in ["echo --load 25% --load 5000", "udp --load 25%", "udp --load 70"] {
            assert!(asked(wrong).is_err(), "{wrong}");
        }
    }
}
