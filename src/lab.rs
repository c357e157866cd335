//! `twinring lab`: experiments, their bundles and reports.

mod hosts;

use crate::output::{self, complain};
use crate::values;
use clap::{Args, Subcommand};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use twinring_lab::compare::{self, Gate};
use twinring_lab::peers::{self, Places};
use twinring_lab::{
    ALIASES, Accounting, BUILT_IN, CpuList, EXPERIMENT_BYTES_MAX, Estimate, Experiment, LabError,
    NetChoice, OtherPrices, Overrides, Protocol, RunOptions, Stop, Style, Subject, Wanted,
};

/// The hidden subcommand through which the lab starts its children.
pub(crate) const HELPER: &str = "lab-helper";

/// The subcommands of the lab.
#[derive(Debug, Subcommand)]
pub(crate) enum Lab {
    /// Run an experiment: a built-in one by name, or a TOML file.
    Run(Box<Run>),
    /// List the built-in experiments.
    List,
    /// Print an experiment as TOML, to start your own from; or explain the differences in a bundle.
    Show {
        /// A built-in experiment, a file, or the directory of a bundle.
        name: String,
        /// Predict the ratios of the bundle on a machine with other prices, such as
        /// `syscall=80ns,interrupt=0.5us`. Names are syscall, interrupt, wakeup and copy (of 1 KB), the units
        /// ns, us and ms. `twinring probe --measure` prints the prices of a machine.
        #[arg(long, value_name = "PRICES")]
        price: Option<OtherPrices>,
    },
    /// Render the reports of a bundle again, and print its table.
    Report {
        /// The directory of the bundle.
        bundle: PathBuf,
    },
    /// Join bundles of one experiment, from several occasions or machines, into a new one.
    Merge {
        /// The directory of the new bundle; there must be none yet.
        out: PathBuf,
        /// The directories of the bundles.
        #[arg(required = true, num_args = 2..)]
        bundles: Vec<PathBuf>,
    },
    /// Compare two bundles, cell by cell and subject by subject, and judge gates on the changes.
    Compare(Compare),
    /// List other people's programs: which are installed, and how to get the others.
    Peers(Peers),
    /// Write the reports of bundles and an index of them as static pages.
    Gallery {
        /// The directory for the pages; created if it does not exist.
        out: PathBuf,
        /// The directories of the bundles, in the order of the index.
        #[arg(required = true)]
        bundles: Vec<PathBuf>,
    },
    /// Recompute every figure of a bundle from its raw data, and detect edits.
    Verify {
        /// The directory of the bundle.
        bundle: PathBuf,
    },
}

/// Options of `lab peers`.
#[derive(Debug, Args)]
pub(crate) struct Peers {
    /// Directory in which peers are looked for first.
    #[arg(long, value_name = "DIR")]
    peers: Option<PathBuf>,
    /// Build those whose source is in `peers/` of the current checkout: with cargo and go, into
    /// peers/target. Takes minutes and all CPUs.
    #[arg(long)]
    build: bool,
    /// Print the list as one JSON line.
    #[arg(long)]
    json: bool,
}

/// What changes an experiment: one that is continued stays as it is.
const EXPERIMENT_OPTIONS: [&str; 22] = [
    "name",
    "pairs",
    "spares",
    "window",
    "warmup",
    "protocol",
    "connections",
    "sizes",
    "depth",
    "rates",
    "load_percent",
    "churn",
    "workers",
    "until",
    "streams",
    "pps",
    "net",
    "accounting",
    "placement",
    "subject",
    "server_cpu",
    "client_cpu",
];

/// The same, and what else stays: of an experiment that is resumed only its hosts may be others.
const RESUMED_OPTIONS: [&str; 3] = ["add", "seed", "out"];

/// Options of `lab run`; options left out keep the experiment's own values.
#[derive(Clone, Debug, Args)]
pub(crate) struct Run {
    /// A built-in experiment (see `lab list`), a TOML file, or `disputes`: all that are disputed.
    #[arg(required_unless_present_any = ["add", "resume"])]
    name: Option<String>,
    /// Run the experiment of this bundle once more and add the runs to it as a further occasion, hours
    /// later on the same machine. Three occasions or more give an interval that holds the spread
    /// between them.
    #[arg(long, value_name = "BUNDLE", conflicts_with_all = EXPERIMENT_OPTIONS, conflicts_with = "server_host")]
    add: Option<PathBuf>,
    /// Go on with the experiment of this bundle after its lab was stopped, killed or lost a host: the same
    /// plan and seed, the runs that it has stay, and the missing ones are added to it. An experiment between hosts
    /// needs --server-host and --client-host again; they may be others of the same kind.
    #[arg(long, value_name = "BUNDLE", conflicts_with_all = EXPERIMENT_OPTIONS, conflicts_with_all = RESUMED_OPTIONS)]
    resume: Option<PathBuf>,
    /// Pairs per cell; a verdict needs at least 8.
    #[arg(long)]
    pairs: Option<usize>,
    /// Replacement blocks: how many disturbed blocks may be run again.
    #[arg(long, value_name = "N")]
    spares: Option<usize>,
    /// Seconds of each measured window.
    #[arg(long, value_name = "SECONDS")]
    window: Option<f64>,
    /// Seconds of load before each window.
    #[arg(long, value_name = "SECONDS")]
    warmup: Option<f64>,
    /// Only the cells of this protocol: tcp, udp or http.
    #[arg(long)]
    protocol: Option<Protocol>,
    /// TCP and HTTP: connection counts, for example 1,10,100.
    #[arg(long, value_delimiter = ',')]
    connections: Option<Vec<u32>>,
    /// Sizes of messages or files, for example 128,1K,16K.
    #[arg(long, value_delimiter = ',', value_parser = values::size)]
    sizes: Option<Vec<u32>>,
    /// TCP and HTTP: requests in flight per connection.
    #[arg(long, value_delimiter = ',')]
    depth: Option<Vec<u32>>,
    /// TCP and HTTP: requests per second on a schedule, for example 50000,100000; 0 is a closed loop. Replaces
    /// the --load-percent of the experiment.
    #[arg(long, value_delimiter = ',', value_name = "R")]
    rates: Option<Vec<u32>>,
    /// TCP and HTTP: the rate as a percentage of what the slowest subject can serve, which is found
    /// out first; 0 is a closed loop. For example 50,0.
    #[arg(long, value_delimiter = ',', value_name = "PERCENT", conflicts_with = "rates")]
    load_percent: Option<Vec<u32>>,
    /// TCP: requests after which a connection is replaced by a new one; 0 keeps it.
    #[arg(long, value_delimiter = ',', value_name = "N")]
    churn: Option<Vec<u32>>,
    /// Add pairs until the interval of each ratio is at most this wide, in percent.
    #[arg(long, value_name = "PERCENT")]
    until: Option<f64>,
    /// UDP: stream counts, for example 1000,4000,8000.
    #[arg(long, value_delimiter = ',')]
    streams: Option<Vec<u32>>,
    /// UDP: packets per second of each stream.
    #[arg(long, value_delimiter = ',')]
    pps: Option<Vec<u32>>,
    /// Workers of the server, each on a core of its own; the load generator gets as many.
    #[arg(long, value_delimiter = ',')]
    workers: Option<Vec<u32>>,
    /// Network on this host: lo (the sender's CPU receives), rps (the receiver's CPU is
    /// interrupted), napi (it polls), all three, or auto: rps if rights allow, otherwise lo.
    #[arg(long, conflicts_with_all = ["server_host", "client_host"])]
    net: Option<NetChoice>,
    /// How CPU time is measured: idle_clock, or idle_clock_only without threads, children and memory.
    #[arg(long)]
    accounting: Option<Accounting>,
    /// Required cache relation of the two CPUs: close (shared last-level cache), apart or any. A
    /// hypervisor moves virtual CPUs, and that changes the figures more than the engine does. Each
    /// block waits for the placement, at most a minute.
    #[arg(long)]
    placement: Option<Wanted>,
    /// Compare these instead; the first is the baseline. NAME=epoll[:k=v,…], NAME=io_uring[:k=v,…],
    /// NAME=nginx (HTTP only), NAME=peer:PEER (see `lab peers`), or NAME=PROGRAM ARGUMENTS with
    /// {addr} among them. A program speaks the first protocol of the experiment; cells of other
    /// protocols are then left out. Repeatable.
    #[arg(long, value_parser = Subject::parse, value_name = "SUBJECT")]
    subject: Vec<Subject>,
    /// Directory in which peers are looked for first; then $TWINRING_PEERS, the directory of this
    /// binary, peers/target/release here, and PATH.
    #[arg(long, value_name = "DIR")]
    peers: Option<PathBuf>,
    /// CPUs of the server, such as `0,2-3`: one for each worker.
    #[arg(long, value_name = "CPUS")]
    server_cpu: Option<CpuList>,
    /// CPUs of the load generator, on each client host.
    #[arg(long, value_name = "CPUS")]
    client_cpu: Option<CpuList>,
    /// Do not measure the machine's prices first, which takes 3 to 5 seconds. The report then does not
    /// explain the differences.
    #[arg(long)]
    no_prices: bool,
    /// Profile with perf where the time goes, function by function, and count system calls, in two
    /// more runs of each subject in each cell. These runs enter no figure.
    #[arg(long)]
    profile: bool,
    /// Seed of the order and of the resampling; from the clock by default, recorded either way.
    #[arg(long)]
    seed: Option<u64>,
    /// Directory for bundles.
    #[arg(long, default_value = "bundles", value_name = "DIR")]
    out: PathBuf,
    /// Print the summary as one JSON line instead of the table.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    hosts: hosts::Hosts,
}

/// Options of `lab compare`.
#[derive(Debug, Args)]
pub(crate) struct Compare {
    /// The bundle to compare with: before.
    a: PathBuf,
    /// The bundle to judge: after.
    b: PathBuf,
    /// A gate that fails the comparison: `[possibly] [relative] FIGURE > N%` or `< -N%`, or
    /// `verdict changed`, followed by `of SUBJECT` and `in CELL` to limit it. FIGURE is server_cpu,
    /// both_cpus, server_process, throughput, p50, p99, p99.9, syscalls, memory, or another field of
    /// `figures`, such as notifications or server.user_ns. The gate is breached if the whole interval is
    /// beyond the limit; with `possibly`, if one end is; `relative` means the ratio to the baseline.
    /// Exit code 3 if breached, 1 if it cannot be judged. Repeatable.
    #[arg(long, value_name = "EXPR")]
    fail_if: Vec<Gate>,
    /// Also compare bundles that fail verification.
    #[arg(long)]
    unverified: bool,
    /// Print it as one JSON line.
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
    /// Print it as Markdown, for a pull request.
    #[arg(long)]
    markdown: bool,
}

impl Lab {
    /// True if it ends on SIGTERM in its own way, with what was measured so far.
    pub(crate) fn handles_term(&self) -> bool {
        matches!(self, Lab::Run(_) | Lab::Peers(_))
    }
}

pub(crate) fn run(lab: Lab) -> ExitCode {
    let done = match lab {
        Lab::Run(options) => measure(&options),
        Lab::List => Ok(tell(&list(), 0)),
        Lab::Show { name, price } => show(&name, price.as_ref()),
        Lab::Report { bundle } => twinring_lab::rerender(&bundle)
            .map(|summary| tell(&twinring_lab::table(&summary, Style::for_stdout()), 0)),
        Lab::Merge { out, bundles } => twinring_lab::merge(&out, &bundles)
            .map(|bundle| tell(&twinring_lab::table(&bundle, Style::for_stdout()), 0)),
        Lab::Compare(options) => compare(options),
        Lab::Peers(options) => list_peers(&options),
        Lab::Gallery { out, bundles } => twinring_lab::gallery(&bundles, &out)
            .map(|index| tell(&format!("{}\n", index.display()), 0)),
        Lab::Verify { bundle } => twinring_lab::verify(&bundle)
            .map(|verification| tell(&format!("{verification}\n"), verification.exit_code())),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            complain(&format!("twinring lab: {error}"));
            ExitCode::from(error.exit_code())
        }
    }
}

/// Prints a result. Returns its exit code, or 1 if it could not be printed.
pub(crate) fn tell(result: &str, code: u8) -> u8 {
    match output::print(result) {
        Ok(()) => code,
        Err(problem) => {
            complain(&format!("twinring lab: {problem}"));
            1
        }
    }
}

/// The name of all disputed questions together.
const DISPUTES: &str = "disputes";

/// Runs one experiment, or all that are disputed one after the other; then the exit code is the
/// largest value of the options.
fn measure(options: &Run) -> Result<u8, LabError> {
    let stop = Stop::on_signals().map_err(LabError::signals)?;
    let name = options.name.as_deref().unwrap_or_default();
    if name != DISPUTES {
        return measure_one(name, options, &stop);
    }
    let mut code = 0;
    for name in twinring_lab::DISPUTES {
        if stop.signal().is_none() {
            code = measure_one(name, options, &stop)?.max(code);
        }
    }
    Ok(code)
}

fn measure_one(name: &str, options: &Run, stop: &Stop) -> Result<u8, LabError> {
    let options = options.clone();
    let overrides = Overrides {
        pairs: options.pairs,
        spare_pairs: options.spares,
        window_s: options.window,
        warmup_s: options.warmup,
        protocol: options.protocol,
        connections: options.connections,
        message_bytes: options.sizes,
        depth: options.depth,
        rate_per_s: options.rates,
        load_percent: options.load_percent,
        churn: options.churn,
        workers: options.workers,
        until_percent: options.until,
        streams: options.streams,
        packets_per_s: options.pps,
        net: options.net,
        accounting: options.accounting,
        placement: options.placement,
        server_cpu: options.server_cpu,
        client_cpu: options.client_cpu,
        subjects: options.subject,
    };
    let binary = std::env::current_exe().map_err(|e| LabError::read("the running binary", e))?;
    let experiment = match options.add.as_ref().or(options.resume.as_ref()) {
        Some(bundle) => twinring_lab::add_to(bundle)?,
        None => Experiment::find(name)?.with(&overrides)?,
    };
    let mut outcome = twinring_lab::run(
        &RunOptions {
            experiment,
            out: options.out,
            seed: options.seed,
            helper: vec![OsString::from(&binary), HELPER.into()],
            binary,
            peers: options.peers,
            prices: !options.no_prices,
            profile: options.profile,
            resume: options.resume,
            hosts: options.hosts.options()?,
            command: std::env::args().collect(),
        },
        stop,
    )?;
    if let Some(directory) = options.add.filter(|_| outcome.exit_code() == 0) {
        outcome.bundle = twinring_lab::add(&directory, &outcome.directory)?;
        outcome.directory = directory;
    }
    let result = if options.json {
        format!("{}\n", twinring_lab::json_line(&outcome))
    } else {
        let table = twinring_lab::table(&outcome.bundle, Style::for_stdout());
        format!("{table}\nBundle: {0}\nReport: {0}/report.html\n", outcome.directory.display())
    };
    Ok(tell(&result, outcome.exit_code()))
}

/// Lists the peers, after building them if requested. The exit code is 1 if a build failed.
fn list_peers(options: &Peers) -> Result<u8, LabError> {
    let binary = std::env::current_exe().map_err(|e| LabError::read("the running binary", e))?;
    let places = Places::new(options.peers.as_deref(), &binary)?;
    let mut code = 0;
    if options.build {
        let here = std::env::current_dir().map_err(|e| LabError::read(".", e))?;
        let stop = Stop::on_signals().map_err(LabError::signals)?;
        for built in peers::build(&here, &stop)? {
            let Some(failure) = &built.failure else { continue };
            complain(&format!("not built: {}: {failure}", built.peers.join(", ")));
            code = 1;
        }
        if let Some(signal) = stop.signal() {
            return Ok(128 + signal as u8);
        }
    }
    let list = peers::list(&places);
    let result = match options.json {
        true => format!("{}\n", peers::json(&list, &places)),
        false => peers::table(&list),
    };
    Ok(tell(&result, code))
}

fn compare(options: Compare) -> Result<u8, LabError> {
    let Compare { a, b, fail_if, unverified, json, markdown } = options;
    let options = compare::Options { gates: fail_if, unverified };
    let comparison = compare::bundles(&a, &b, &options)?;
    let result = if json {
        format!("{}\n", comparison.json_line()?)
    } else if markdown {
        comparison.markdown()
    } else {
        comparison.table(Style::for_stdout())
    };
    Ok(tell(&result, comparison.exit_code()))
}

fn list() -> String {
    let width = BUILT_IN.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines = BUILT_IN.iter().filter_map(|(name, _)| {
        let experiment = Experiment::find(name).ok()?;
        let alias = ALIASES.iter().find(|(_, known)| known == name);
        let also = alias.map_or(String::new(), |(alias, _)| format!("; also known as {alias}"));
        let (about, estimate) = (&experiment.about, Estimate::of(&experiment).words());
        Some(format!("{name:<width$}  {about}\n{:<width$}  {estimate}{also}\n", ""))
    });
    lines.collect()
}

fn show(name: &str, price: Option<&OtherPrices>) -> Result<u8, LabError> {
    let directory = Path::new(name);
    if twinring_lab::built_in(name).is_none() && twinring_lab::is_bundle(directory) {
        let bundle = twinring_lab::recomputed(directory)?;
        let text = twinring_lab::explain(&bundle, price, Style::for_stdout())?;
        return Ok(tell(&text, 0));
    }
    if price.is_some() {
        return Err(LabError::BadExperiment {
            place: "--price".to_owned(),
            problem: format!("`{name}` is not a bundle"),
            expected: "the directory of a bundle".to_owned(),
        });
    }
    match twinring_lab::built_in(name) {
        Some(text) => Ok(tell(text, 0)),
        None => {
            Experiment::find(name)?;
            let text = twinring_input::read_to_string(name.as_ref(), EXPERIMENT_BYTES_MAX)
                .map_err(|error| LabError::read(name, error))?;
            Ok(tell(&text, 0))
        }
    }
}
