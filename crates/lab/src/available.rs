//! Which subjects and cells of an experiment can run on this machine: looked at before anything starts.

use std::cell::LazyCell;
use std::collections::BTreeSet;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::cpus::{CpuList, Cpus};
use crate::error::{LabError, shortened};
use crate::experiment::{Axis, Experiment, Subject};
use crate::lab::RunOptions;
use crate::namespace::Place;
use crate::peers::{PeerPrograms, Places};
use crate::process::{self, Event, Role};
use crate::result::NotRun;

/// How long our server may take to say that it can run on an engine.
const ENGINE_PATIENCE: Duration = Duration::from_secs(10);

/// The most that is kept of what it says.
const SAID_CHARS_MAX: usize = 600;

pub(crate) struct Available {
    pub(crate) experiment: Experiment,
    pub(crate) peers: PeerPrograms,
    pub(crate) load_engine: &'static str,
    pub(crate) not_run: Vec<NotRun>,
}

/// What is left of the experiment. It is an error if no subject is left for one of its protocols.
pub(crate) fn available(options: &RunOptions, cpus: &Cpus) -> Result<Available, LabError> {
    let server_cpus = cpus.server.all().len();
    let mut experiment = options.experiment.clone();
    let mut not_run = Vec::new();
    let too_many = keep_workers(&mut experiment, server_cpus);
    if !too_many.is_empty() {
        let counts: Vec<String> = too_many.iter().map(u32::to_string).collect();
        let plural = if server_cpus == 1 { "" } else { "s" };
        let why = format!(
            "the server has {server_cpus} CPU{plural} here: each worker needs a core of its own, and the \
             load generator as many"
        );
        if experiment.protocols().next().is_none() {
            return Err(LabError::machine(why));
        }
        let subject = format!("every cell with {} workers", counts.join(", "));
        not_run.push(NotRun { subject, why });
    }
    // Without a peer in the experiment their places do not matter.
    let looks = options.peers.is_some() || experiment.subjects.iter().any(|it| it.peer.is_some());
    let places = looks.then(|| Places::new(options.peers.as_deref(), &options.binary));
    let places = places.transpose()?;
    let cpu = cpus.server.first();
    let uring = LazyCell::new(|| cannot_run(options, cpu, "io_uring"));
    let epoll = LazyCell::new(|| cannot_run(options, cpu, "epoll"));
    let mut peers = PeerPrograms::new();
    let mut why_not = |subject: &Subject| -> Option<String> {
        match subject.engine.as_deref() {
            Some("io_uring") => return (*uring).clone(),
            Some(_) => return (*epoll).clone(),
            None => {}
        }
        let peer = subject.known_peer()?;
        match places.as_ref()?.find(peer) {
            Ok(program) => {
                peers.insert(peer.name.clone(), program);
                None
            }
            Err(absent) => Some(peer.why_left_out(&absent)),
        }
    };
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
            return Err(LabError::machine(reasons.join("; ")));
        }
    }
    // Load generators elsewhere may have another kernel.
    let on_uring = experiment.via.is_some() || uring.is_none();
    let load_engine = if on_uring { "io_uring" } else { "epoll" };
    Ok(Available { experiment, peers, load_engine, not_run })
}

/// Starts our server on an engine, and ends it. What it says if it cannot run names the layer that refuses, and what
/// to do.
fn cannot_run(options: &RunOptions, cpu: usize, engine: &str) -> Option<String> {
    let words = ["serve", "echo", "--listen", "127.0.0.1:0", "--engine", engine, "--json"];
    let words = words.map(str::to_owned);
    let command = [&[options.binary.to_string_lossy().into_owned()], &words[..]].concat();
    let (cpus, (sender, events)) = (CpuList::one(cpu), channel());
    let started =
        process::start(&options.helper, &Place::Here, &cpus, &command, Role::Server, sender);
    let mut server = match started {
        Ok(server) => server,
        Err(error) => return Some(error.to_string()),
    };
    if let Ok(Event::Line(..)) = events.recv_timeout(ENGINE_PATIENCE) {
        return None;
    }
    server.finish(Duration::ZERO, true);
    let why = server.stderr().split_whitespace().collect::<Vec<_>>().join(" ");
    Some(match why.is_empty() {
        true => format!("`twinring {}` does not start", words.join(" ")),
        false => shortened(&why, SAID_CHARS_MAX),
    })
}

/// Leaves out the cells with more workers than this; returns how many workers those have.
fn keep_workers(experiment: &mut Experiment, most: usize) -> BTreeSet<u32> {
    let mut left_out = BTreeSet::new();
    let mut empty = Vec::new();
    for (protocol, grid) in experiment.grids_mut() {
        let Some(spec) = Axis::of_key(protocol, "workers") else { continue };
        let (kept, more): (Vec<u32>, Vec<u32>) =
            grid.values(spec).into_iter().partition(|it| *it as usize <= most);
        if more.is_empty() {
            continue;
        }
        if kept.is_empty() {
            empty.push(protocol);
        }
        left_out.extend(more);
        grid.set(spec, &kept);
    }
    experiment.keep_protocols(|protocol| !empty.contains(&protocol));
    left_out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ninety lines of dashes, and the reason in the sixtieth, where io_uring is refused.
    #[test]
    fn what_a_server_says_that_cannot_run_is_the_reason() {
        // In place of the program stands a script, behind what the lab's helper is called with.
        let script = |text: &str| {
            let options = RunOptions {
                experiment: Experiment::find("quick").unwrap(),
                out: "bundles".into(),
                seed: None,
                binary: "twinring".into(),
                helper: ["sh", "-c", text].map(Into::into).into(),
                peers: None,
                prices: false,
                busy: false,
                command: Vec::new(),
            };
            cannot_run(&options, 0, "io_uring")
        };
        assert_eq!(script("echo '{\"event\":\"ready\"}'; exec sleep 60"), None);
        let why =
            script("echo 'no io_uring: seccomp refuses it;' >&2; echo '  do this' >&2; exit 1");
        assert_eq!(why.unwrap(), "no io_uring: seccomp refuses it; do this");
        assert!(script("exit 1").unwrap().contains("does not start"));
    }
}
