//! `--profile`: where the CPUs' time goes, function by function, and how often a server calls the
//! kernel. Both are measured by perf in runs of their own behind the measured pairs, one of each
//! for every subject and cell, because looking costs time. These runs count for no figure and no
//! verdict. What perf cannot do here is reported, and does not affect the measurement.

mod classes;
mod counts;
mod perf;
mod script;

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::audit::{Severity, audit};
use crate::bench::{Bench, Slot};
use crate::error::LabError;
use crate::experiment::Cell;
use crate::net::Network;
use crate::procfs;
use crate::progress::say;
use crate::record::RunRecord;
use crate::runner::{self, Mark, Observer};
use crate::summary::Metric;

pub use classes::{Class, rules};
pub use counts::Counts;
pub use script::{Attribution, Decider};

use perf::Perf;
use script::Collector;

/// How often a CPU is looked at. No multiple of the kernel's own clocks, which would see the same
/// moments again and again.
pub const FREQUENCY_HZ: u32 = 4999;

/// What `--profile` found.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Profile {
    /// What could not be done and why, and what to do about it.
    pub problems: Vec<String>,
    /// Which perf it was.
    pub perf: Option<String>,
    /// Samples per second of each CPU.
    pub frequency_hz: u32,
    /// One entry for each subject in each cell.
    pub runs: Vec<ProfiledRun>,
}

/// A subject in a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProfiledRun {
    /// The cell.
    pub cell: Cell,
    /// The subject.
    pub subject: String,
    /// The samples of the server's CPU.
    pub server: Option<Attribution>,
    /// The samples of the client's CPU, if it is another.
    pub client: Option<Attribution>,
    /// How often the server called the kernel, in another run.
    pub counts: Option<Counts>,
}

impl Profile {
    /// What contradicts itself in it, for `twinring lab verify`.
    pub(crate) fn contradictions(&self) -> Vec<String> {
        let wrong = |side: &Attribution| {
            side.classes.values().copied().map(u128::from).sum::<u128>() != side.samples.into()
                || side.deciders.iter().any(|it| it.samples > side.of(it.class))
        };
        let of_run = |run: &ProfiledRun| {
            let sides = run.server.iter().chain(&run.client);
            let calls = run.counts.as_ref().is_some_and(|counts| {
                (counts.per_unit("all_calls") - counts.syscalls_per_unit).abs() > 1e-9
            });
            (sides.into_iter().any(wrong) || calls).then(|| {
                format!("the profile of {} in {} contradicts itself", run.subject, run.cell)
            })
        };
        self.runs.iter().filter_map(of_run).collect()
    }

    fn add_problem(&mut self, problem: String) {
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }
}

/// Profiles every subject in every cell that was measured without being voided. `directory` is
/// where perf may write meanwhile. What goes wrong is in the profile: it must not spoil what was
/// measured before.
pub(crate) fn profile(
    bench: &Bench<'_>,
    networks: &mut [Network],
    measured: &[RunRecord],
    directory: &Path,
) -> Profile {
    let mut profile = Profile { frequency_hz: FREQUENCY_HZ, ..Profile::default() };
    match perf::version() {
        Ok(version) => profile.perf = Some(version),
        Err(why) => {
            profile.add_problem(why);
            return profile;
        }
    }
    let scratch = directory.join("profile");
    let made = std::fs::create_dir_all(&scratch).map_err(|error| LabError::write(&scratch, error));
    let done = made.and_then(|()| profile_all(bench, networks, measured, &scratch, &mut profile));
    if let Err(error) = done {
        profile.add_problem(error.to_string());
    }
    // Only what perf wrote is in it.
    let _ = std::fs::remove_dir_all(&scratch);
    profile
}

fn profile_all(
    bench: &Bench<'_>,
    networks: &mut [Network],
    measured: &[RunRecord],
    scratch: &Path,
    profile: &mut Profile,
) -> Result<(), LabError> {
    let events = counts::events();
    if let Err(why) = &events {
        profile.add_problem(why.clone());
    }
    for (cell, subject, rate_per_s) in worth_profiling(measured) {
        if bench.stop.signal().is_some() {
            break;
        }
        let subjects = &bench.experiment.subjects;
        let known = subjects.iter().find(|it| it.name == subject);
        let network = networks.iter_mut().find(|network| network.record.kind == cell.net);
        let (Some(known), Some(network)) = (known, network) else { continue };
        say(&format!("profiling {subject} in {cell}"));
        let slot = Slot { index: 0, cell, block: 0, subject: known, rate_per_s };
        let (server, client) = sample(bench, network, &slot, scratch, profile)?;
        let counts = match &events {
            Ok(events) => count(bench, network, &slot, scratch, events, profile)?,
            Err(_) => None,
        };
        profile.runs.push(ProfiledRun { cell, subject, server, client, counts });
    }
    Ok(())
}

/// Who was measured in which cell, at which rate if the lab found it, and never voided.
fn worth_profiling(measured: &[RunRecord]) -> Vec<(Cell, String, Option<u32>)> {
    let mut found: Vec<(Cell, String, Option<u32>)> = Vec::new();
    let mut void = Vec::new();
    for run in measured {
        let one = (run.cell, run.subject.clone(), run.rate_per_s);
        if audit(run).iter().any(|finding| finding.severity == Severity::Void) {
            void.push(one.clone());
        }
        if !found.contains(&one) {
            found.push(one);
        }
    }
    found.retain(|one| !void.contains(one));
    found.sort();
    found
}

/// The run that is sampled: the attribution of the server's CPU and of the client's.
fn sample(
    bench: &Bench<'_>,
    network: &mut Network,
    slot: &Slot<'_>,
    scratch: &Path,
    profile: &mut Profile,
) -> Result<(Option<Attribution>, Option<Attribution>), LabError> {
    let (server, client) =
        (bench.cpus_of_server(&network.servers[0], slot), bench.cpus.client.clone());
    let data = scratch.join("perf.data");
    let cpus = if server == client { format!("{server}") } else { format!("{server},{client}") };
    let arguments = [
        "--event=cpu-clock".to_owned(),
        format!("--freq={FREQUENCY_HZ}"),
        format!("--cpu={cpus}"),
        // Of programs it is enough that it was they; their stacks need what few are built with.
        "--call-graph=fp".to_owned(),
        "--kernel-callchains".to_owned(),
        "--no-buildid".to_owned(),
        "--no-buildid-cache".to_owned(),
        format!("--output={}", data.display()),
    ];
    let mut watch = Watch::new(bench.helper, scratch, "record", |_| arguments.to_vec());
    let run = runner::run_observed(bench, network, slot, &mut watch)?;
    let trees = watch.finish(profile);
    // Interrupted, or something went wrong, which is said by now.
    let (Some(_), Some([servers, clients])) = (run, trees) else { return Ok((None, None)) };
    let is_shared = server == client;
    let mut sides = vec![Collector::new(server, servers)];
    if !is_shared {
        sides.push(Collector::new(client, clients));
    }
    let read = attribute(&data, &mut sides);
    let _ = std::fs::remove_file(&data);
    if let Err(why) = read {
        profile.add_problem(why);
        return Ok((None, None));
    }
    let mut sides = sides.into_iter().map(Collector::finish);
    let (server, client) = (sides.next(), sides.next());
    let nameless = |side: &Attribution| 2 * side.nameless > side.of_the_run().max(1);
    if server.iter().chain(&client).any(nameless) {
        profile.add_problem(
            "functions of the kernel have no names here, so that their samples are `other`: set \
             kernel.kptr_restrict to 0 or run as root"
                .to_owned(),
        );
    }
    Ok((server, client))
}

/// Gives every sample of a recording to the collectors.
fn attribute(data: &Path, sides: &mut [Collector]) -> Result<(), String> {
    let failed = |why: String| format!("the samples cannot be read: perf script: {why}");
    let mut script = Command::new("perf")
        .args(["script", "--fields=comm,pid,tid,cpu,ip,sym", "--input"])
        .arg(data)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    if let Some(stdout) = script.stdout.take() {
        let lines = BufReader::new(stdout).split(b'\n').map_while(Result::ok);
        let lines = lines.map(|line| String::from_utf8_lossy(&line).into_owned());
        script::read(lines, |sample| sides.iter_mut().for_each(|side| side.add(sample)));
    }
    match script.wait() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(failed(status.to_string())),
        Err(error) => Err(failed(error.to_string())),
    }
}

/// The run in which calls are counted.
fn count(
    bench: &Bench<'_>,
    network: &mut Network,
    slot: &Slot<'_>,
    scratch: &Path,
    events: &[&str],
    profile: &mut Profile,
) -> Result<Option<Counts>, LabError> {
    let output = scratch.join("counts.csv");
    let mut watch = Watch::new(bench.helper, scratch, "stat", |server| {
        let pids: Vec<String> = procfs::process_tree(server).iter().map(i32::to_string).collect();
        vec![
            "--field-separator=,".to_owned(),
            format!("--output={}", output.display()),
            format!("--event={}", events.join(",")),
            format!("--pid={}", pids.join(",")),
        ]
    });
    let run = runner::run_observed(bench, network, slot, &mut watch)?;
    let seconds = watch.seconds;
    let watched = watch.finish(profile);
    let (Some(run), Some(_)) = (run, watched) else { return Ok(None) };
    let counted = counts::read(&std::fs::read_to_string(&output).unwrap_or_default());
    let _ = std::fs::remove_file(&output);
    let Some(figures) = crate::summary::figures_of(&run) else { return Ok(None) };
    // A server without io_uring says 0.
    let own_completions = figures.get(Metric::CompletionsPerEnter).filter(|often| *often > 0.0);
    let own = [figures.get(Metric::ServerSyscalls), own_completions];
    Ok(Counts::of(&counted, seconds, figures[Metric::RequestsPerS], own))
}

/// A perf beside a run: started when the server is ready, and on while the window is open.
struct Watch<'a> {
    helper: &'a [OsString],
    scratch: PathBuf,
    command: &'static str,
    arguments: Box<dyn Fn(i32) -> Vec<String> + 'a>,
    state: State,
    /// The processes of the server and of the client at the end of the window.
    trees: Option<[Vec<i32>; 2]>,
    since: Option<Instant>,
    /// How long it looked.
    seconds: f64,
}

enum State {
    NotStarted,
    Running(Perf),
    Failed(String),
}

impl<'a> Watch<'a> {
    fn new(
        helper: &'a [OsString],
        scratch: &Path,
        command: &'static str,
        arguments: impl Fn(i32) -> Vec<String> + 'a,
    ) -> Watch<'a> {
        let (scratch, arguments) = (scratch.to_owned(), Box::new(arguments));
        Watch {
            helper,
            scratch,
            command,
            arguments,
            state: State::NotStarted,
            trees: None,
            since: None,
            seconds: 0.0,
        }
    }

    fn order(&mut self, order: fn(&mut Perf) -> Result<(), String>) {
        if let State::Running(perf) = &mut self.state
            && let Err(why) = order(perf)
        {
            self.state = State::Failed(why);
        }
    }

    /// Ends perf. Nothing if it has not watched the whole window; why is added to the profile.
    fn finish(self, profile: &mut Profile) -> Option<[Vec<i32>; 2]> {
        let ended = match self.state {
            State::Running(perf) => perf.finish(),
            State::Failed(why) => Err(why),
            // The server was never ready; that is a matter of its measured runs.
            State::NotStarted => return None,
        };
        for suffix in ["control", "answers", "errors"] {
            // They are there if perf was started at all.
            let _ = std::fs::remove_file(self.scratch.join(format!("{}.{suffix}", self.command)));
        }
        match ended {
            Ok(()) => self.trees,
            Err(why) => {
                profile.add_problem(why);
                None
            }
        }
    }
}

impl Observer for Watch<'_> {
    fn ready(&mut self, server: i32) {
        let arguments = (self.arguments)(server);
        let started = Perf::start(self.helper, &self.scratch, self.command, &arguments);
        self.state = started.map_or_else(State::Failed, State::Running);
    }

    fn at(&mut self, mark: Mark, server: i32, client: i32) {
        match mark {
            Mark::WindowStart => {
                self.order(Perf::enable);
                self.since = Some(Instant::now());
            }
            Mark::WindowEnd => {
                self.order(Perf::disable);
                self.seconds = self.since.map_or(0.0, |since| since.elapsed().as_secs_f64());
                self.trees = Some([server, client].map(procfs::process_tree));
            }
        }
    }
}
