//! Which subjects and cells of an experiment can run on this machine.

use std::collections::BTreeSet;

use crate::error::LabError;
use crate::experiment::{Experiment, Subject};
use crate::host::{End, Host};
use crate::options::RunOptions;
use crate::peers::find::Found;
use crate::peers::{Peer, Places, SECOND_LOADS};
use crate::result::NotRun;
use crate::site::nginx;
use crate::workload::Axis;

/// An experiment without the subjects and the cells that cannot run on this machine.
pub(crate) struct Available {
    pub(crate) experiment: Experiment,
    pub(crate) nginx: Option<nginx::Installed>,
    pub(crate) peers: Found,
    pub(crate) not_run: Vec<NotRun>,
}

/// # Errors
/// When no subject is left for a protocol of the experiment, or a place for peers is no directory.
pub(crate) fn available(options: &RunOptions, servers: &[End]) -> Result<Available, LabError> {
    let server_cpus = servers.iter().map(|it| it.cpus.all().len()).min().unwrap_or(0);
    let mut experiment = options.experiment.clone();
    let mut not_run = Vec::new();
    let too_many = keep_workers(&mut experiment, server_cpus);
    if !too_many.is_empty() {
        let counts: Vec<String> = too_many.iter().map(u32::to_string).collect();
        let why = format!(
            "the server has {server_cpus} CPU{} here: each worker needs a core of its own, and the load \
             generator as many",
            if server_cpus == 1 { "" } else { "s" }
        );
        if experiment.protocols().next().is_none() {
            return Err(LabError::Machine { why });
        }
        not_run.push(NotRun {
            subject: format!("every cell with {} workers", counts.join(", ")),
            why,
        });
    }
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
        true => nginx_of(servers)?.map(Some),
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
        if let Some(server) = servers.iter().find(|it| matches!(it.host, Host::There(_))) {
            return Some(format!(
                "peers are looked for on the host of the lab only, and the server's is {}; give it \
                 as a command, with its path there",
                server.host.name()
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
    Ok(Available { experiment, nginx: installed.ok().flatten(), peers, not_run })
}

/// Leaves out the cells with more workers than this; returns how many workers those have.
fn keep_workers(experiment: &mut Experiment, most: usize) -> BTreeSet<u32> {
    let mut left_out = BTreeSet::new();
    for (_, grid) in experiment.grids_mut() {
        for axis in grid.axes().into_iter().filter(|axis| axis.key == Axis::WORKERS) {
            left_out.extend(axis.points.iter().copied().filter(|it| *it as usize > most));
            axis.points.retain(|it| *it as usize <= most);
        }
    }
    let all = experiment.clone();
    experiment
        .keep_protocols(|protocol| all.grid(protocol).is_some_and(|it| !it.points().is_empty()));
    left_out
}

/// The nginx of the servers' hosts, or why there is none: each needs the same.
fn nginx_of(servers: &[End]) -> Result<Result<nginx::Installed, String>, LabError> {
    let mut found: Option<nginx::Installed> = None;
    for server in servers {
        let name = server.host.name();
        match (server.host.find_nginx()?, &found) {
            (Err(why), _) => return Ok(Err(why)),
            (Ok(other), Some(first)) if other != *first => {
                return Ok(Err(format!("{name} has another nginx than the first server's host")));
            }
            (Ok(installed), _) => found = Some(installed),
        }
    }
    Ok(found.ok_or_else(|| "there is no server".to_owned()))
}
