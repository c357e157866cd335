//! `twinring compare`: which of two or more servers needs less CPU for one workload.

use crate::lab::{HELPER, finish, tell};
use crate::output::complain;
use crate::values;
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use twinring_lab::{
    Experiment, Gate, Gated, LabError, Load, NetChoice, Outcome, Protocol, Question, RunOptions,
    Stop, Style, Subject,
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
            excluded_max: if self.busy { usize::MAX } else { twinring_lab::EXCLUDED_MAX },
            command: std::env::args().collect(),
        })
    }
}

impl Workload {
    pub(crate) fn question(
        &self,
        name: &str,
        protocol: Protocol,
        subjects: Vec<Subject>,
        loads: Vec<Load>,
    ) -> Question {
        let usual_bytes = match protocol {
            Protocol::Tcp => 128,
            Protocol::Http => 1024,
            Protocol::Udp => 172,
        };
        Question {
            name: name.to_owned(),
            protocol,
            subjects,
            clients: self.connections,
            bytes: self.size.unwrap_or(usual_bytes),
            tls: self.tls,
            loads,
            net: self.net.clone(),
            pairs: None,
        }
    }
}

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
    let question = question(options)?;
    let outcome = measure(question.experiment()?, &options.workload)?;
    let (verdicts, code) = judge(&outcome, &options.fail_if);
    let page = if options.workload.run.json {
        format!("{}\n", twinring_lab::json_line(&outcome))
    } else if options.full {
        let directory = outcome.directory.display().to_string();
        twinring_lab::full(&outcome.bundle, &directory, Style::for_stdout()) + &verdicts
    } else {
        outcome.page(Style::for_stdout()) + &verdicts
    };
    if options.workload.run.json && !verdicts.is_empty() {
        complain(verdicts.trim_end());
    }
    let code = if outcome.exit_code() == 0 { code } else { outcome.exit_code() };
    Ok(tell(&page, code))
}

fn question(options: &Compare) -> Result<Question, LabError> {
    let protocol = options.words.first().and_then(|word| service(word));
    let servers = &options.words[usize::from(protocol.is_some())..];
    let protocol = protocol.unwrap_or(Protocol::Tcp);
    let usual = ["epoll", "io_uring"].map(str::to_owned);
    let words = match servers {
        [] => usual.to_vec(),
        // One server is compared with ours.
        [one] if one != "epoll" => vec!["epoll".to_owned(), one.clone()],
        [one] => vec![one.clone(), "io_uring".to_owned()],
        several => several.to_vec(),
    };
    let subjects = words.iter().map(|word| Subject::parse(word)).collect::<Result<_, _>>()?;
    let usual = if protocol == Protocol::Udp { vec![] } else { vec![Load::Percent(25), Load::Max] };
    let loads = if options.load.is_empty() { usual } else { options.load.clone() };
    Ok(Question {
        pairs: options.pairs,
        ..options.workload.question("compare", protocol, subjects, loads)
    })
}

/// Runs an experiment, after saying how long it takes.
pub(crate) fn measure(experiment: Experiment, workload: &Workload) -> Result<Outcome, LabError> {
    complain(&format!("measuring, {}", twinring_lab::how_long(&experiment)));
    let options = workload.run.options(experiment)?;
    twinring_lab::run(&options, &Stop::on_signals().map_err(LabError::signals)?)
}

/// A line for each gate, and the exit code.
fn judge(outcome: &Outcome, gates: &[Gate]) -> (String, u8) {
    let (mut lines, mut code) = (String::new(), 0);
    for gate in gates {
        let found = outcome.gated(gate);
        let breached: Vec<&str> =
            found.iter().filter(|it| it.0 == Some(Gated::Breached)).map(|it| &*it.1).collect();
        let unjudged = found.is_empty() || found.iter().any(|it| it.0.is_none());
        let is = if !breached.is_empty() {
            code = 3;
            format!("BREACHED by {}", breached.join("; "))
        } else if unjudged {
            code = code.max(1);
            "cannot be judged".to_owned()
        } else if found.iter().any(|it| it.0 == Some(Gated::Undecided)) {
            "not shown to be breached".to_owned()
        } else {
            "holds".to_owned()
        };
        lines.push_str(&format!("GATE   {gate}: {is}\n"));
    }
    (lines, code)
}
