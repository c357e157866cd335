//! An experiment from its first process to its report.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::available::{Available, available};
use crate::bench::{Bench, Slot};
use crate::bundle::{self, Writer};
use crate::environment::Environment;
use crate::error::LabError;
use crate::experiment::{Experiment, NetKind};
use crate::host::{Host, HostRecord, local, make_sites};
use crate::machine::Program;
use crate::net::Network;
use crate::options::RunOptions;
use crate::paths::{Paths, for_anywhere};
use crate::peers::SECOND_LOADS;
use crate::peers::find::Found;
use crate::placement::Placement;
use crate::profile;
use crate::progress::say;
use crate::quorum::{Fleet, LostHost};
use crate::record::RunRecord;
use crate::result::{BUNDLE_SCHEMA, Bundle, NotRun, State};
use crate::resume::{self, Opened};
use crate::runner;
use crate::schedule::machine::{Attempt, Machine};
use crate::schedule::{Ended, measure};
use crate::site::{self, Certificate, Made};
use crate::stop::Stop;
use crate::summary::{Summary, Verdict, summarise};
use crate::warnings::warnings;

/// What came out of an experiment.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Where the bundle is.
    pub directory: PathBuf,
    /// What is in it.
    pub bundle: Bundle,
}

impl Outcome {
    /// The exit code of the command: 128 + the signal for an interrupted experiment; 1 when every
    /// comparison is void, so that nothing could be measured; else 0, for any verdicts.
    pub fn exit_code(&self) -> u8 {
        if let State::Interrupted { signal } = self.bundle.state {
            return (128 + signal) as u8;
        }
        let cells = self.bundle.summary.iter().flat_map(|summary| &summary.cells);
        let mut comparisons = cells.flat_map(|cell| &cell.comparisons).peekable();
        let any = comparisons.peek().is_some();
        u8::from(any && comparisons.all(|it| matches!(it.verdict, Verdict::Void { .. })))
    }
}

/// Runs an experiment and writes its bundle.
///
/// Progress goes to standard error. On return, also with an error, every process the lab started has
/// ended, and its namespaces with them.
///
/// # Errors
/// [`LabError`], when the experiment could not be carried out. The bundle then holds what was
/// measured before, if its directory could be made at all.
pub fn run(options: &RunOptions, stop: &Stop) -> Result<Outcome, LabError> {
    let started = jiff::Timestamp::now();
    let Environment { mut networks, cpus, machine, hosts, lost_hosts, least, prices, affinity } =
        Environment::set_up(options, stop)?;
    let servers = &networks.list[0].servers;
    let Available { experiment, nginx, peers, not_run } = available(options, servers)?;
    let experiment = &experiment;
    let began = Bundle {
        schema: BUNDLE_SCHEMA.to_owned(),
        lab_version: env!("CARGO_PKG_VERSION").to_owned(),
        started: started.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        state: State::Running,
        experiment: experiment.clone(),
        command: for_anywhere(options.command.clone()),
        seed: options.seed.unwrap_or(started.as_nanosecond() as u64),
        programs: programs(options, experiment, &peers, &networks.list, &hosts)?,
        networks: networks.list.iter().map(|network| network.record.clone()).collect(),
        network_fallback: networks.fallback.take(),
        not_run,
        machine,
        cpus,
        occasions: Vec::new(),
        hosts,
        lost_hosts,
        resumed: Vec::new(),
        summary: None,
        warnings: Vec::new(),
        prices: Some(prices),
        profile: None,
    };
    let directory = match &options.resume {
        Some(directory) => directory.clone(),
        None => bundle::fresh_directory(&options.out, &experiment.name, started),
    };
    let own = || peers.values().map(|path| &**path).chain([&*options.binary]);
    let Opened { mut bundle, mut writer, mut runs } =
        open(options, &directory, began, &Paths::of(own(), &directory))?;
    let seed = bundle.seed;
    // Now that there is a directory, it has a canonical path.
    let paths = Paths::of(own(), &directory);
    let mut profiled = None;
    let mut fleet = Fleet { least, lost: Vec::new() };
    for NotRun { subject, why } in &bundle.not_run {
        say(&format!("{subject} is left out: {why}"));
    }
    let files = site(experiment, &directory, seed, &networks.list);
    let measured = files.and_then(|site| {
        let bench = Bench {
            experiment,
            cpus: &bundle.cpus,
            helper: &options.helper,
            binary: &options.binary.to_string_lossy(),
            stop,
            site: site.as_ref().map(Made::site),
            nginx: nginx.as_ref(),
            peers: &peers,
            paths: &paths,
            began: began_at(&bundle, started),
        };
        let kinds: Vec<NetKind> = networks.list.iter().map(|it| it.record.kind).collect();
        let mut lab = Lab {
            bench: &bench,
            networks: &mut networks.list,
            writer: &mut writer,
            fleet: &mut fleet,
            stored: runs.len(),
        };
        let ended = measure(experiment, &kinds, seed, &mut lab, &mut runs)?;
        if options.profile && matches!(ended, Ended::Done) {
            let list = &mut networks.list;
            profiled = Some(profile::profile(&bench, list, &runs, &directory));
        }
        Ok(if stop.signal().is_some() { Ended::Stopped } else { ended })
    });
    drop(networks);
    drop(affinity);
    bundle.lost_hosts.append(&mut fleet.lost);
    bundle.state = match (&measured, stop.signal()) {
        (Err(error), _) => State::Failed { error: error.to_string() },
        (Ok(Ended::Stopped), Some(signal)) => State::Interrupted { signal },
        _ => State::Complete,
    };
    bundle.summary = Some(summarise(experiment, seed, &runs));
    bundle.warnings = warnings(&bundle);
    bundle.profile = profiled;
    let finished = bundle::finish(&directory, &bundle, &runs);
    if let Err(error) = &finished {
        // Where even that cannot be written, `twinring lab verify` names all that may have happened.
        let _ = bundle::give_up(&directory, &bundle, measured.as_ref().err().unwrap_or(error));
    }
    // The first error is the cause, a second one most often its consequence.
    measured?;
    finished?;
    Ok(Outcome { directory, bundle })
}

/// Begins a bundle, or goes on with one. `names` hide paths of this machine.
fn open(
    options: &RunOptions,
    directory: &Path,
    mut began: Bundle,
    names: &Paths,
) -> Result<Opened, LabError> {
    began.programs.iter_mut().for_each(|it| it.path = names.hidden(&it.path));
    if options.resume.is_some() {
        return resume::open(directory, &began);
    }
    let writer = Writer::create(directory, &began)?;
    Ok(Opened { bundle: began, writer, runs: Vec::new() })
}

/// When an experiment began whose lab was started now; one that is resumed began before.
fn began_at(bundle: &Bundle, started: jiff::Timestamp) -> Instant {
    let first: Option<jiff::Timestamp> = bundle.started.parse().ok();
    let before = first.filter(|_| !bundle.resumed.is_empty());
    let before = before.map_or(Duration::ZERO, |first| {
        Duration::try_from(started.duration_since(first)).unwrap_or_default()
    });
    Instant::now().checked_sub(before).unwrap_or_else(Instant::now)
}

/// This machine, or the hosts that the experiment is measured between.
struct Lab<'a> {
    bench: &'a Bench<'a>,
    networks: &'a mut [Network],
    writer: &'a mut Writer,
    fleet: &'a mut Fleet,
    /// How many runs are stored.
    stored: usize,
}

impl Machine for Lab<'_> {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn sleep(&self, duration: Duration) {
        std::thread::sleep(duration);
    }

    fn placement(&self) -> Option<Placement> {
        self.bench.round_trip_ns().map(Placement::of)
    }

    fn is_stopped(&self) -> bool {
        self.bench.stop.signal().is_some()
    }

    fn run(&mut self, slot: &Slot<'_>) -> Result<Attempt, LabError> {
        let network = self.networks.iter_mut().find(|it| it.record.kind == slot.cell.net);
        let network = network.ok_or_else(|| LabError::Machine {
            why: format!("it has no network for the cell {}", slot.cell),
        })?;
        match runner::run(self.bench, network, slot) {
            Ok(Some(run)) => Ok(Attempt::Made(Box::new(self.bench.paths.hidden_in(run)))),
            Ok(None) => Ok(Attempt::Stopped),
            Err(error) => {
                let before = self.fleet.lost.len();
                self.fleet.degrade(network, error, self.stored)?;
                let left = network.clients.len();
                for LostHost { host, why, .. } in &self.fleet.lost[before..] {
                    say(&format!("lost {host}: {why}"));
                }
                say(&format!("the block is run again with {left} load generators"));
                Ok(Attempt::Void)
            }
        }
    }

    fn store(&mut self, run: &RunRecord) -> Result<(), LabError> {
        self.stored += 1;
        self.writer.append(run)
    }
}

/// The files of the cells of HTTP, if there are any.
fn site(
    experiment: &Experiment,
    bundle: &Path,
    seed: u64,
    networks: &[Network],
) -> Result<Option<Made>, LabError> {
    let Some(grid) = &experiment.http else { return Ok(None) };
    let servers: Vec<_> = networks.iter().flat_map(Network::server_ips).copied().collect();
    let certificate = grid.tls.contains(&true).then(|| Certificate::make(&servers)).transpose()?;
    // All networks of this host share its files.
    let ends = networks.iter().take(1).flat_map(|it| it.servers.iter().chain(&it.clients));
    let hosts = ends.map(|end| &end.host);
    make_sites(hosts, site::directory_in(bundle)?, grid, seed, certificate)
}

/// Files whose hashes tell what was measured: our binary, and the programs of all commands, each
/// on the hosts where it runs.
fn programs(
    options: &RunOptions,
    experiment: &Experiment,
    peers: &Found,
    networks: &[Network],
    hosts: &[HostRecord],
) -> Result<Vec<Program>, LabError> {
    let binary = options.binary.to_string_lossy().into_owned();
    let Some(network) = networks.first() else { return Ok(Vec::new()) };
    let program = |host: &Host, command: &[String]| {
        command.first().map(|word| word.replace("{twinring}", host.binary(&binary)))
    };
    let mut programs = Vec::new();
    let ends = network.servers.iter().chain(&network.clients);
    for (position, end) in ends.enumerate() {
        let mut paths = Vec::new();
        for protocol in experiment.protocols() {
            for index in experiment.subjects_of(protocol) {
                let subject = &experiment.subjects[index];
                let commands = match position < network.servers.len() {
                    true => vec![subject.command_template(protocol)],
                    false => experiment.load_templates(protocol, subject),
                };
                paths.extend(commands.iter().filter_map(|it| program(&end.host, it)));
            }
        }
        paths.retain(|path| {
            path != "{peer}" && SECOND_LOADS.iter().all(|load| *path != load.word())
        });
        paths.sort_unstable();
        paths.dedup();
        // The hash of our own program is recorded already.
        let known = hosts.get(position).map(|host| &host.binary);
        paths.retain(|path| known.is_none_or(|known| known.path != *path));
        programs.extend(known.cloned());
        programs.extend(end.host.hash(paths)?);
    }
    for (peer, path) in peers {
        let mut found = local::hash(vec![path.display().to_string()]);
        found.iter_mut().for_each(|program| program.peer = Some(peer.clone()));
        programs.extend(found);
    }
    programs.sort_by(|a, b| (&a.host, &a.path).cmp(&(&b.host, &b.path)));
    programs.dedup();
    Ok(programs)
}

/// The summary of a bundle as one JSON line, for `--json`.
pub fn json_line(outcome: &Outcome) -> String {
    let summary: &Option<Summary> = &outcome.bundle.summary;
    serde_json::json!({
        "event": "result",
        "schema": BUNDLE_SCHEMA,
        "bundle": outcome.directory,
        "state": outcome.bundle.state,
        "summary": summary,
    })
    .to_string()
}
