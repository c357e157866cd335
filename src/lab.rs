//! `twinring lab`: experiments, their bundles and reports.

use crate::compare::RunArgs;
use crate::output::{self, complain};
use clap::{Args, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use twinring_input::quantity::size_u32;
use twinring_lab::peers::{self, Places};
use twinring_lab::result::Bundle;
use twinring_lab::{
    BUILT_IN, CpuList, EXPERIMENT_BYTES_MAX, Experiment, Gate, LabError, NetChoice, Protocol,
    RunOptions, Stop, Subject, Via,
};

/// The hidden subcommand through which the lab starts its children.
pub(crate) const HELPER: &str = "lab-helper";

#[derive(Debug, Subcommand)]
pub(crate) enum Lab {
    /// Run an experiment: a built-in one by name, or a TOML file.
    Run(Box<Run>),
    /// List the built-in experiments.
    List,
    /// Print an experiment as TOML, to start your own from; or all tables of a bundle.
    Show {
        /// A built-in experiment, a file, or the directory of a bundle.
        name: String,
    },
    /// Render the reports of a bundle again, and print the first page.
    Report {
        /// The directory of the bundle.
        bundle: PathBuf,
        /// Print all tables before the first page.
        #[arg(long)]
        full: bool,
    },
    /// Join bundles of one experiment, of several sessions or machines, into a new one.
    Merge {
        /// The directory of the new bundle, which must not exist yet.
        out: PathBuf,
        /// The directories of the bundles.
        #[arg(required = true, num_args = 2..)]
        bundles: Vec<PathBuf>,
    },
    /// What changed from one bundle to another, cell by cell and subject by subject, with gates.
    Diff(Diff),
    /// List other people's programs: which are installed, and how to get the others.
    Peers {
        /// Directory in which peers are looked for first.
        #[arg(long, value_name = "DIR")]
        peers: Option<PathBuf>,
        /// Print the list as one JSON line.
        #[arg(long)]
        json: bool,
    },
    /// Recompute every figure of a bundle from its raw data, and detect edits.
    Verify {
        /// The directory of the bundle.
        bundle: PathBuf,
    },
}

/// Options of `lab run`; options left out keep the experiment's own values.
#[derive(Clone, Debug, Args)]
pub(crate) struct Run {
    /// A built-in experiment (see `lab list`), or a TOML file.
    #[arg(required_unless_present = "add")]
    name: Option<String>,
    /// Run the experiment of this bundle once more and add the runs to it as a further session, hours
    /// later on the same machine.
    #[arg(long, value_name = "BUNDLE", conflicts_with_all = ["name", "Changes", "Via"])]
    add: Option<PathBuf>,
    #[command(flatten)]
    changes: Changes,
    /// Do not measure the machine's prices first, nor look for background load meanwhile, which takes 3 to 5
    /// seconds.
    #[arg(long)]
    no_prices: bool,
    /// Seed of the order of the runs; from the clock by default, recorded either way.
    #[arg(long)]
    seed: Option<u64>,
    #[command(flatten)]
    run: RunArgs,
    #[command(flatten)]
    via: Option<Via>,
}

/// What changes an experiment: one that is run once more stays as it is.
#[derive(Clone, Debug, Args)]
struct Changes {
    /// Pairs per cell: a fixed number.
    #[arg(long)]
    pairs: Option<usize>,
    /// Replacement blocks: how many excluded blocks may be run again, per cell.
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
    /// Replace the points of an axis, for example `connections=1,100`, `bytes=128,16K`, `load_percent=25,0` or
    /// `tls=true`. `lab show NAME` prints the axes of an experiment. Repeatable.
    #[arg(long, value_name = "AXIS=N,...", value_parser = axis)]
    set: Vec<(String, Vec<u32>)>,
    /// Network on this machine: lo (the sender's CPU receives), rps (the receiver's CPU is
    /// interrupted) or napi (it polls); several as `lo,rps`, or all; or auto: rps if rights allow, otherwise lo.
    #[arg(long)]
    net: Option<NetChoice>,
    /// Compare these instead; the first is the baseline: io_uring, epoll, each with options (`epoll:gather=off`), a
    /// peer such as nginx (see `lab peers`), or NAME=COMMAND with {addr} where the address goes. Repeatable.
    #[arg(long, value_parser = Subject::parse, value_name = "SUBJECT")]
    subject: Vec<Subject>,
    /// CPUs of the server, such as `0,2-3`: one for each worker.
    #[arg(long, value_name = "CPUS")]
    server_cpu: Option<CpuList>,
    /// CPUs of the load generator; with --via those of each.
    #[arg(long, value_name = "CPUS")]
    client_cpu: Option<CpuList>,
}

/// An axis and its points. Sizes have units, and flags are `true` and `false`.
fn axis(text: &str) -> Result<(String, Vec<u32>), String> {
    let (key, points) = text
        .split_once('=')
        .ok_or_else(|| format!("`{text}`: expected AXIS=N,..., such as connections=1,100"))?;
    let point = |text: &str| match text.trim() {
        "true" => Ok(1),
        "false" => Ok(0),
        number if key.ends_with("bytes") => size_u32(number),
        number => number.parse().map_err(|_| format!("`{number}` is not a number of {key}")),
    };
    let points: Result<Vec<u32>, String> = points.split(',').map(point).collect();
    Ok((key.trim().to_owned(), points?))
}

#[derive(Debug, Args)]
pub(crate) struct Diff {
    /// The bundle to compare with: before.
    a: PathBuf,
    /// The bundle to judge: after.
    b: PathBuf,
    /// A gate: `FIGURE > N%` or `FIGURE < -N%`, such as `server_cpu > 3%`. It is breached if the whole interval is beyond
    /// the limit; then the exit code is 3, or 1 if it cannot be judged. Repeatable.
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

pub(crate) fn run(lab: Lab) -> ExitCode {
    let done = match lab {
        Lab::Run(options) => measure(*options),
        Lab::List => Ok(tell(&list(), 0)),
        Lab::Show { name } => show(&name),
        Lab::Report { bundle, full } => twinring_lab::rerender(&bundle).map(|found| {
            complain(&format!("wrote report.md and report.html in {}", bundle.display()));
            report(&found, &bundle, full)
        }),
        Lab::Merge { out, bundles } => {
            twinring_lab::merge(&out, &bundles).map(|bundle| report(&bundle, &out, false))
        }
        Lab::Diff(options) => diff(&options),
        Lab::Peers { peers, json } => list_peers(peers.as_deref(), json),
        Lab::Verify { bundle } => twinring_lab::verify(&bundle)
            .map(|found| tell(&format!("{found}\n"), u8::from(!found.holds()))),
    };
    finish("lab", done)
}

/// The exit code of a command that uses the lab; complains about its error.
pub(crate) fn finish(command: &str, done: Result<u8, LabError>) -> ExitCode {
    match done {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            output::refuse(&format!("twinring {command}: {error}"));
            ExitCode::from(error.exit_code())
        }
    }
}

/// Prints a result, on a terminal with its answer in bold. Returns its exit code, or 1 if it could not be printed.
pub(crate) fn tell(result: &str, code: u8) -> u8 {
    match result.trim_end().rsplit_once("\nANSWER") {
        Some((before, answer)) if console::colors_enabled() => {
            output::show(&format!("{before}\n\x1b[1mANSWER{answer}\x1b[0m\n"), code)
        }
        _ => output::show(result, code),
    }
}

/// The experiment as the options change it.
fn changed(options: Run) -> Result<Experiment, LabError> {
    let mut it = Experiment::find(options.name.as_deref().unwrap_or_default())?;
    it.via = options.via.or(it.via);
    let options = options.changes;
    it.pairs = options.pairs.unwrap_or(it.pairs);
    it.spare_pairs = options.spares.unwrap_or(it.spare_pairs);
    it.net = options.net.unwrap_or(it.net);
    it.pin.server_cpu = options.server_cpu.or(it.pin.server_cpu);
    it.pin.client_cpu = options.client_cpu.or(it.pin.client_cpu);
    it.set_pace(options.warmup, options.window);
    if !options.subject.is_empty() {
        it.set_subjects(options.subject);
    }
    if let Some(only) = options.protocol {
        it.keep_protocols(|protocol| protocol == only);
    }
    for (key, values) in &options.set {
        it.set_axis(key, values)?;
    }
    it.checked()
}

fn measure(options: Run) -> Result<u8, LabError> {
    let stop = Stop::on_signals().map_err(LabError::signals)?;
    let experiment = match &options.add {
        Some(bundle) => twinring_lab::recomputed(bundle)?.experiment,
        None => changed(options.clone())?,
    };
    let (seed, prices) = (options.seed, !options.no_prices);
    let run = RunOptions { seed, prices, ..options.run.options(experiment)? };
    let mut outcome = twinring_lab::run(&run, &stop)?;
    let code = outcome.exit_code();
    match options.add {
        Some(directory) if code == 0 => {
            outcome.bundle = twinring_lab::add(&directory, &outcome.directory)?;
            outcome.directory = directory;
        }
        Some(directory) => {
            let what = "this session was interrupted, measured nothing, or all of it is void";
            complain(&format!("not added to {}: {what}", directory.display()));
        }
        None => {}
    }
    let page = match options.run.json {
        true => twinring_lab::json_line(&outcome) + "\n",
        false => outcome.page(),
    };
    Ok(tell(&page, code))
}

fn list_peers(first: Option<&Path>, json: bool) -> Result<u8, LabError> {
    let binary = std::env::current_exe().map_err(|e| LabError::read("the running binary", e))?;
    let places = Places::new(first, &binary)?;
    let list = peers::list(&places);
    let result = match json {
        true => format!("{}\n", peers::json(&list, &places)),
        false => peers::table(&list),
    };
    Ok(tell(&result, 0))
}

fn report(bundle: &Bundle, directory: &Path, full: bool) -> u8 {
    let directory = directory.display().to_string();
    let text = match full {
        true => twinring_lab::full(bundle, &directory),
        false => twinring_lab::first_page(bundle, &directory),
    };
    tell(&text, 0)
}

fn diff(options: &Diff) -> Result<u8, LabError> {
    let found = twinring_lab::diff(&options.a, &options.b, &options.fail_if, options.unverified)?;
    let result = match (options.json, options.markdown) {
        (true, _) => format!("{}\n", found.json_line()),
        (false, true) => found.markdown(),
        (false, false) => found.table(),
    };
    Ok(tell(&result, twinring_lab::gates_exit_code(&found.gates)))
}

fn list() -> String {
    let width = BUILT_IN.iter().map(|(name, _)| name.len()).max().unwrap_or(0) + 2;
    let lines = BUILT_IN.iter().filter_map(|(name, _)| {
        let experiment = Experiment::find(name).ok()?;
        let said = format!("{}; {}", experiment.about, twinring_lab::how_long(&experiment));
        let (first, others) = (format!("{name:<width$}"), " ".repeat(width));
        Some(twinring_lab::wrapped(&said, &first, &others).join("\n") + "\n")
    });
    lines.collect()
}

fn show(name: &str) -> Result<u8, LabError> {
    let directory = Path::new(name);
    if let Some(text) = twinring_lab::built_in(name) {
        return Ok(tell(text, 0));
    }
    if twinring_lab::is_bundle(directory) {
        return Ok(report(&twinring_lab::recomputed(directory)?, directory, true));
    }
    Experiment::find(name)?;
    let text = twinring_input::read_to_string(directory, EXPERIMENT_BYTES_MAX);
    Ok(tell(&text.map_err(|error| LabError::read(name, error))?, 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::fs;
    use twinring_lab::{NetKind, load_options};

    /// The command of a template, as the lab fills it in, has options that there are.
    fn check(template: &[String], options: &[String], of: &Path) {
        if template[0] != "{twinring}" {
            return;
        }
        let words = template.iter().flat_map(|word| match &**word {
            "{options}" => options.to_vec(),
            "{listen}" => ["--listen", "127.0.0.1:1"].map(str::to_owned).to_vec(),
            "{urls}" => vec!["http://127.0.0.1:1/a".to_owned()],
            "{addr}" => vec!["127.0.0.1:1".to_owned()],
            "{root}" => vec!["/tmp".to_owned()],
            "{engine}" => vec!["epoll".to_owned()],
            // Numbers of the cell, and CPUs.
            word if word.starts_with('{') && word.ends_with('}') => vec!["1".to_owned()],
            word => vec![word.to_owned()],
        });
        let mut words: Vec<String> = words.collect();
        // This machine may have one CPU.
        if let Some(pin) = words.iter().position(|word| word == "--pin") {
            words.drain(pin..pin + 2);
        }
        if let Err(error) = crate::Cli::try_parse_from(&words) {
            panic!("{of:?}: {words:?}: {error}");
        }
    }

    /// Options of an engine that went in 0.3.0 stood in experiments that nobody had run since.
    #[test]
    fn every_experiment_of_the_tree_uses_options_that_there_are() {
        let tree = Path::new(env!("CARGO_MANIFEST_DIR"));
        let files = |place| fs::read_dir(tree.join(place)).unwrap().map(|it| it.unwrap().path());
        let all = ["crates/lab/experiments", "docs/disputes"].into_iter().flat_map(files);
        for path in all {
            let experiment = Experiment::find(path.to_str().unwrap()).unwrap();
            for cell in experiment.cells(&[NetKind::Lo]) {
                for position in experiment.subjects_of(cell.protocol()) {
                    let subject = &experiment.subjects[position];
                    check(&subject.command_template(&cell), &[], &path);
                    let template = experiment.load_template(cell.protocol(), subject);
                    let cpus = CpuList::one(0);
                    let options = load_options(&experiment, &cell.point, None, &cpus, "epoll");
                    check(&template, &options, &path);
                }
            }
        }
    }
}
