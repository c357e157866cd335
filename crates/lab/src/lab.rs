//! An experiment from its first process to its report.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Instant;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::audit::{Severity, audit_in_block};
use crate::bundle::{self, Writer};
use crate::error::LabError;
use crate::experiment::{Cell, Experiment, NetKind, Subject};
use crate::host::{self, Between, Host, HostOptions, HostRecord, Wishes, local, make_sites};
use crate::machine::{Cpus, Fingerprint};
use crate::net::{self, Network, Networks};
use crate::outlook::too_few_pairs;
use crate::paths::{Paths, for_anywhere};
use crate::peers::find::Found;
use crate::peers::{Peer, Places, SECOND_LOADS};
use crate::plan::{Block, Group, groups, plan, two_more};
use crate::prices::{self, PriceRecord};
use crate::profile;
use crate::progress::{Progress, say};
use crate::rates::Rates;
use crate::result::{BUNDLE_SCHEMA, Bundle, NotRun, Program, RunRecord, State};
use crate::runner::{self, Bench, Slot};
use crate::site::{self, Certificate, Made, nginx};
use crate::stop::Stop;
use crate::summary::{Summary, Verdict, is_narrow, summarise, warnings};

/// What to run and where to put it.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// The experiment, options applied: see [`Experiment::with`].
    pub experiment: Experiment,
    /// The directory that gets a directory for this bundle.
    pub out: PathBuf,
    /// Seed of the order and the resampling; from the clock if not given.
    pub seed: Option<u64>,
    /// The `twinring` binary: `{twinring}` in commands.
    pub binary: PathBuf,
    /// Program and first arguments that lead to [`crate::helper()`].
    pub helper: Vec<OsString>,
    /// The directory in which peers are looked for first.
    pub peers: Option<PathBuf>,
    /// Measure the machine's prices first, which takes seconds; without them, reports do not say what they
    /// explain.
    pub prices: bool,
    /// Look with perf, in further runs, where the time goes: see [`crate::profile`].
    pub profile: bool,
    /// Measures between these hosts instead of on this one.
    pub hosts: Option<HostOptions>,
    /// Arguments that led here, recorded so that the experiment can be repeated.
    pub command: Vec<String>,
}

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
    let Scene { mut networks, cpus, machine, hosts, prices, quiet } = Scene::set(options, stop)?;
    let server = &networks.list[0].server.host;
    let Possible { experiment, nginx, peers, not_run } = possible(options, server)?;
    let experiment = &experiment;
    let seed = options.seed.unwrap_or(started.as_nanosecond() as u64);
    let mut bundle = Bundle {
        schema: BUNDLE_SCHEMA.to_owned(),
        lab_version: env!("CARGO_PKG_VERSION").to_owned(),
        started: started.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        state: State::Running,
        experiment: experiment.clone(),
        command: for_anywhere(options.command.clone()),
        seed,
        programs: programs(options, experiment, &peers, &networks.list, &hosts)?,
        networks: networks.list.iter().map(|network| network.record.clone()).collect(),
        network_fallback: networks.fallback.take(),
        not_run,
        machine,
        cpus,
        occasions: Vec::new(),
        hosts,
        summary: None,
        warnings: Vec::new(),
        prices: Some(prices),
        profile: None,
    };
    let directory = bundle::fresh_directory(&options.out, &experiment.name, started);
    let own = || peers.values().map(|path| &**path).chain([&*options.binary]);
    let names = Paths::of(own(), &directory);
    bundle.programs.iter_mut().for_each(|it| it.path = names.hidden(&it.path));
    let mut writer = Writer::create(&directory, &bundle)?;
    // Now that there is a directory, it has a canonical path.
    let paths = Paths::of(own(), &directory);
    let mut runs = Vec::new();
    let mut profiled = None;
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
            began: Instant::now(),
        };
        let ended = measure(&bench, &mut networks.list, seed, &mut writer, &mut runs)?;
        if options.profile && matches!(ended, Ended::Done) {
            let list = &mut networks.list;
            profiled = Some(profile::profile(&bench, list, &runs, &directory));
        }
        Ok(if stop.signal().is_some() { Ended::Stopped } else { ended })
    });
    drop(networks);
    drop(quiet);
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

/// Where an experiment takes place.
struct Scene {
    networks: Networks,
    cpus: Cpus,
    machine: Fingerprint,
    /// Between hosts, all of them.
    hosts: Vec<HostRecord>,
    prices: PriceRecord,
    quiet: Quiet,
}

impl Scene {
    fn set(options: &RunOptions, stop: &Stop) -> Result<Scene, LabError> {
        let Some(between) = &options.hosts else {
            let pin = options.experiment.pin;
            let cpus = Cpus::choose(pin.server_cpu, pin.client_cpu)?;
            // Measuring prices uses both CPUs, so it comes before the lab leaves them.
            let prices = match options.prices {
                true => prices::measure(&options.binary, &cpus, stop),
                false => PriceRecord::none("they were not to be measured"),
            };
            let quiet = Quiet::keep_to(&cpus.others);
            let networks = net::set_up(options.experiment.net, &cpus)?;
            let machine = Fingerprint::read(&cpus);
            let hosts = Vec::new();
            return Ok(Scene { networks, cpus, machine, hosts, prices, quiet });
        };
        if options.profile {
            return Err(LabError::BadExperiment {
                place: "--profile".to_owned(),
                problem: "perf looks at programs of the lab's own host".to_owned(),
                expected: "neither --server-host nor --client-host".to_owned(),
            });
        }
        let words = options.helper.iter().skip(1).map(|word| word.to_string_lossy().into_owned());
        let wishes = Wishes {
            pin: options.experiment.pin,
            binary: &options.binary,
            helper: &words.collect::<Vec<_>>(),
        };
        let Between { network, cpus, records, others } =
            host::set_up(between, &options.experiment, &wishes)?;
        let networks = Networks { list: vec![network], fallback: None };
        let machine = records.first().map(|host| host.machine.clone()).unwrap_or_default();
        let quiet = Quiet::keep_to(&others);
        let prices = PriceRecord::none("they are measured on the lab's own host only");
        Ok(Scene { networks, cpus, machine, hosts: records, prices, quiet })
    }
}

/// An experiment without the subjects that cannot run on this machine.
struct Possible {
    experiment: Experiment,
    nginx: Option<nginx::Installed>,
    peers: Found,
    not_run: Vec<NotRun>,
}

/// # Errors
/// When no subject is left for a protocol of the experiment, or a place for peers is no directory.
fn possible(options: &RunOptions, server: &Host) -> Result<Possible, LabError> {
    let mut experiment = options.experiment.clone();
    // Without a peer in the experiment their places do not matter.
    let commands: Vec<Vec<String>> =
        experiment.grids_mut().map(|(_, it)| it.second_load().to_vec()).collect();
    let asks = |load: &&Peer| commands.iter().flatten().any(|word| *word == load.word());
    let asking: Vec<&Peer> = SECOND_LOADS.iter().filter(asks).collect();
    let is_peer = |subject: &Subject| subject.peer.is_some();
    let looks =
        options.peers.is_some() || !asking.is_empty() || experiment.subjects.iter().any(is_peer);
    let places = looks.then(|| Places::new(options.peers.as_deref(), &options.binary));
    let places = places.transpose()?;
    let asked_for = experiment.subjects.iter().any(|subject| subject.nginx.is_some());
    let installed = match experiment.http.is_some() && asked_for {
        true => server.find_nginx()?.map(Some),
        false => Ok(None),
    };
    let mut peers = Found::new();
    for (load, places) in asking.into_iter().zip(places.iter().cycle()) {
        let program = places
            .find(load)
            .map_err(|absent| LabError::Machine { why: load.why_left_out(&absent) })?;
        peers.insert(load.name.to_owned(), program);
    }
    let mut why_not = |subject: &Subject| -> Option<String> {
        if subject.nginx.is_some() {
            return installed.as_ref().err().cloned();
        }
        let peer = subject.known_peer()?;
        if let Host::There(_) = server {
            return Some(format!(
                "peers are looked for on the host of the lab only, and the server's is {}; give it \
                 as a command, with its path there",
                server.name()
            ));
        }
        match places.as_ref()?.find(peer) {
            Ok(program) => {
                peers.insert(peer.name.to_owned(), program);
                None
            }
            Err(absent) => Some(peer.why_left_out(&absent)),
        }
    };
    let mut not_run = Vec::new();
    experiment.subjects.retain(|subject| match why_not(subject) {
        None => true,
        Some(why) => {
            not_run.push(NotRun { subject: subject.name.clone(), why });
            false
        }
    });
    for subject in &mut experiment.subjects {
        subject.against.retain(|other| not_run.iter().all(|gone| gone.subject != *other));
    }
    for protocol in experiment.protocols() {
        if experiment.subjects_of(protocol).is_empty() {
            let reasons = not_run.iter().map(|NotRun { subject, why }| format!("{subject}: {why}"));
            let reasons: Vec<String> = reasons.collect();
            return Err(LabError::Machine { why: reasons.join("; ") });
        }
    }
    Ok(Possible { experiment, nginx: installed.ok().flatten(), peers, not_run })
}

/// The files of the cells of HTTP, if there are any.
fn site(
    experiment: &Experiment,
    bundle: &Path,
    seed: u64,
    networks: &[Network],
) -> Result<Option<Made>, LabError> {
    let Some(grid) = &experiment.http else { return Ok(None) };
    let servers: Vec<_> = networks.iter().map(|network| network.record.server_ip).collect();
    let certificate = grid.tls.contains(&true).then(|| Certificate::make(&servers)).transpose()?;
    // All networks of this host share its files.
    let ends =
        networks.iter().take(1).flat_map(|it| std::iter::once(&it.server).chain(&it.clients));
    let hosts = ends.map(|end| &end.host);
    make_sites(hosts, site::directory_in(bundle)?, grid, seed, certificate)
}

/// How the measuring ended.
enum Ended {
    Done,
    Stopped,
}

fn measure(
    bench: &Bench<'_>,
    networks: &mut [Network],
    seed: u64,
    writer: &mut Writer,
    runs: &mut Vec<RunRecord>,
) -> Result<Ended, LabError> {
    let experiment = bench.experiment;
    let wanted = experiment.placement;
    let kinds: Vec<NetKind> = networks.iter().map(|network| network.record.kind).collect();
    let cells = experiment.cells(&kinds);
    let groups: Vec<Group> = cells
        .iter()
        .enumerate()
        .flat_map(|(number, cell)| {
            let protocol = cell.protocol();
            groups(number, &experiment.subjects_of(protocol), &experiment.contests(protocol))
        })
        .collect();
    let mut blocks = plan(seed, &groups, experiment.pairs);
    let mut given_up = GivenUp::default();
    let mut next_block: HashMap<usize, usize> = HashMap::new();
    let mut spare = vec![experiment.spare_pairs; groups.len()];
    let mut blocks_run = vec![0; groups.len()];
    let runs_of = |block: &Block| (block.order.len(), cells[groups[block.group].cell].protocol());
    let mut progress = Progress::start(experiment, blocks.iter().map(runs_of));
    let comparisons = cells.iter().map(|cell| experiment.contests(cell.protocol()).len()).sum();
    if let Some(warning) = too_few_pairs(experiment, comparisons) {
        say(&warning);
    }
    let rates = Rates::find(bench, networks, &cells, &groups, &mut progress)?;
    let Some(rates) = rates else { return Ok(Ended::Stopped) };
    while let Some(block) = blocks.pop_front() {
        let group = &groups[block.group];
        let cell = cells[group.cell];
        let order = given_up.still_in(experiment, cell, &block.order);
        if order.is_empty() {
            progress.skip(block.order.len());
            continue;
        }
        let number = next_block.entry(group.cell).or_default();
        let mut noisy = false;
        let first = runs.len();
        bench.wait_for_placement();
        for &subject in &order {
            let subject = &experiment.subjects[subject];
            progress.next(&cell, &subject.name);
            let network = networks.iter_mut().find(|network| network.record.kind == cell.net);
            // The cells were made from these networks.
            let Some(network) = network else { continue };
            let rate_per_s = rates.of(&cell);
            let slot = Slot { index: runs.len(), cell, block: *number, subject, rate_per_s };
            let Some(run) = runner::run(bench, network, &slot)? else { return Ok(Ended::Stopped) };
            let run = bench.paths.hidden_in(run);
            writer.append(&run)?;
            let first = runs.get(first).unwrap_or(&run);
            for finding in audit_in_block(wanted, first, &run) {
                noisy |= finding.severity == Severity::Noise;
                if finding.severity == Severity::Void {
                    progress.say(&format!(
                        "{cell}, {}: {}: {}",
                        subject.name,
                        finding.kind.title(),
                        finding.what
                    ));
                    given_up.add(cell, &subject.name);
                }
            }
            runs.push(run);
        }
        *number += 1;
        blocks_run[block.group] += 1;
        progress.skip(block.order.len() - order.len());
        if noisy && spare[block.group] > 0 {
            spare[block.group] -= 1;
            let order: Vec<usize> = block.order.iter().rev().copied().collect();
            progress.more(order.len());
            blocks.push_back(Block { group: block.group, order });
        }
        let before = blocks_run[block.group];
        let is_last = blocks.iter().all(|other| other.group != block.group);
        let most = experiment.until.map_or(0, |until| until.max_pairs + experiment.spare_pairs);
        if is_last && before < most && !is_narrow(experiment, seed, cell, &group.subjects, runs) {
            let more = two_more(seed, block.group, before, &groups);
            progress.more(more.iter().map(|block| block.order.len()).sum());
            blocks.extend(more);
        }
        if bench.stop.signal().is_some() {
            return Ok(Ended::Stopped);
        }
    }
    Ok(Ended::Done)
}

/// Subjects that an audit has taken out of a cell. Running them again would cost time and could
/// change nothing.
#[derive(Default)]
struct GivenUp(HashSet<(Cell, String)>);

impl GivenUp {
    fn add(&mut self, cell: Cell, subject: &str) {
        self.0.insert((cell, subject.to_owned()));
    }

    /// Who of a block is still worth running: those who are in and have somebody to be compared
    /// with.
    fn still_in(&self, experiment: &Experiment, cell: Cell, order: &[usize]) -> Vec<usize> {
        let is_in =
            |subject: &usize| !self.0.contains(&(cell, experiment.subjects[*subject].name.clone()));
        let left: Vec<usize> = order.iter().copied().filter(is_in).collect();
        if order.len() == 1 {
            return left;
        }
        let contests = experiment.contests(cell.protocol());
        let has_opponent = |subject: &usize| {
            contests.iter().any(|(a, b)| {
                (a == subject && left.contains(b)) || (b == subject && left.contains(a))
            })
        };
        left.iter().copied().filter(has_opponent).collect()
    }
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
    let ends = std::iter::once(&network.server).chain(&network.clients);
    for (position, end) in ends.enumerate() {
        let mut paths = Vec::new();
        for protocol in experiment.protocols() {
            for index in experiment.subjects_of(protocol) {
                let subject = &experiment.subjects[index];
                let commands = match position {
                    0 => vec![subject.command_template(protocol)],
                    _ => experiment.load_templates(protocol, subject),
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

/// Keeps the lab's own thread, and the threads it starts, off the measured CPUs while there are
/// others. Children are pinned one by one and are not affected.
struct Quiet {
    before: Option<CpuSet>,
}

impl Quiet {
    fn keep_to(cpus: &[usize]) -> Quiet {
        let mut others = CpuSet::new();
        let usable = !cpus.is_empty() && cpus.iter().all(|cpu| others.set(*cpu).is_ok());
        let this = Pid::from_raw(0);
        let before = usable.then(|| sched_getaffinity(this).ok()).flatten();
        // Without it the measurement is a little noisier, no more.
        let moved = before.is_some() && sched_setaffinity(this, &others).is_ok();
        Quiet { before: before.filter(|_| moved) }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // It was allowed before, so it is now.
            let _ = sched_setaffinity(Pid::from_raw(0), before);
        }
    }
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
