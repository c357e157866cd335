//! Whether an experiment makes sense. Each message names the key, and the line that it is in.

use super::source::{Check, Source};
use super::{
    EXPERIMENT_SCHEMA, Experiment, MAX_PAIRS, NetKind, Protocol, Published, PublishedDatagrams,
    PublishedEcho, PublishedEchoRate, PublishedRequests, Subject,
};
use crate::error::LabError;
use crate::peers::KNOWN;
use crate::site::h2o;
use crate::statistics::MIN_PAIRS;
use crate::workload::Points;

/// The most subjects, published figures and points of an axis that are accepted.
const MAX_SUBJECTS: usize = 64;
const MAX_PUBLISHED: usize = 64;
const MAX_POINTS: usize = 64;

/// The longest window and warm-up, which with the limits above bounds every run.
const MAX_SECONDS: f64 = 300.0;

impl Check<'_> {
    fn name(&self, key: &str, name: &str) -> Result<(), LabError> {
        let expected = "1-40 letters, digits, `-`, `_`, `.`";
        self.unless(is_name(name), key, format!("name = \"{name}\""), expected)
    }

    fn seconds(&self, key: &str, seconds: f64, least: f64) -> Result<(), LabError> {
        let name = key.rsplit('.').next().unwrap_or(key);
        self.unless(
            (least..=MAX_SECONDS).contains(&seconds),
            key,
            format!("{name} = {seconds}"),
            &format!("{least} to {MAX_SECONDS} seconds"),
        )
    }

    fn axis(&self, section: Protocol, axis: &Points<'_>) -> Result<(), LabError> {
        let Points { key, points, bounds: [least, most], .. } = axis;
        self.unless(
            (1..=MAX_POINTS).contains(&points.len())
                && points.iter().all(|point| (least..=most).contains(&point)),
            &format!("{section}.{key}"),
            format!("{key} = {points:?}"),
            &format!("1 to {MAX_POINTS} numbers from {least} to {most}"),
        )
    }
}

impl Experiment {
    /// # Errors
    /// [`LabError::BadExperiment`] for the first thing that is wrong.
    pub(super) fn check(&self, source: &Source<'_>) -> Result<(), LabError> {
        let check = Check::of(source);
        let found = format!("schema = \"{}\"", self.schema);
        check.unless(self.schema == EXPERIMENT_SCHEMA, "schema", found, EXPERIMENT_SCHEMA)?;
        check.name("name", &self.name)?;
        self.check_pairs(&check)?;
        check.unless(
            self.protocols().next().is_some(),
            "",
            "no cells are left",
            "[tcp], [udp] or [http] with its axes, and subjects that all speak it",
        )?;
        for protocol in self.protocols() {
            let (warmup_s, window_s) = self.pace_s(protocol);
            let own = |key: &str| {
                let own = format!("{protocol}.{key}");
                if self.has_own_pace(protocol, key) { own } else { key.to_owned() }
            };
            check.seconds(&own("warmup_s"), warmup_s, 0.0)?;
            check.seconds(&own("window_s"), window_s, 0.05)?;
        }
        let subjects_change_load =
            self.subjects.iter().any(|subject| !subject.load_arguments.is_empty());
        // Nothing is changed: what sets the points of an axis is what lists them.
        for (protocol, grid) in self.clone().grids_mut() {
            grid.axes().iter().try_for_each(|axis| check.axis(protocol, axis))?;
            grid.check(&check, subjects_change_load)?;
        }
        check.unless(
            self.workers_most() == 1 || !self.net.kinds().contains(&NetKind::Napi),
            "net",
            "cells with several workers on napi, where one thread of the kernel receives",
            "net = \"lo\" or \"rps\", or workers = [1]",
        )?;
        self.check_subjects(&check)?;
        self.check_published(&check)
    }

    fn has_own_pace(&self, protocol: Protocol, key: &str) -> bool {
        let [warmup_s, window_s] = self.grid(protocol).map(|grid| grid.pace()).unwrap_or_default();
        if key == "warmup_s" { warmup_s } else { window_s }.is_some()
    }

    fn check_pairs(&self, check: &Check<'_>) -> Result<(), LabError> {
        check.unless(
            (1..=MAX_PAIRS).contains(&self.pairs),
            "pairs",
            format!("pairs = {}", self.pairs),
            "1 to 1000 pairs (8 or more for a verdict)",
        )?;
        check.unless(
            self.spare_pairs <= MAX_PAIRS,
            "spare_pairs",
            format!("spare_pairs = {}", self.spare_pairs),
            "at most 1000 to spare",
        )?;
        check.unless(
            (0.1..=50.0).contains(&self.equivalence_percent),
            "equivalence_percent",
            format!("equivalence_percent = {}", self.equivalence_percent),
            "0.1 to 50 percent",
        )?;
        let Some(until) = self.until else { return Ok(()) };
        check.unless(
            (0.1..=1000.0).contains(&until.interval_percent),
            "until.interval_percent",
            format!("interval_percent = {}", until.interval_percent),
            "0.1 to 1000 percent",
        )?;
        check.unless(
            (self.pairs..=MAX_PAIRS).contains(&until.max_pairs),
            "until.max_pairs",
            format!("max_pairs = {}", until.max_pairs),
            &format!("{} (pairs) to {MAX_PAIRS}", self.pairs),
        )?;
        check.unless(
            self.pairs >= MIN_PAIRS,
            "pairs",
            format!("pairs = {} with [until]", self.pairs),
            "8 or more: an interval of fewer pairs may be narrow by accident",
        )
    }

    /// Whether each subject that is `from` another can be: before anything is taken from there.
    pub(super) fn check_origins(&self, source: &Source<'_>) -> Result<(), LabError> {
        let check = Check::of(source);
        for (index, subject) in self.subjects.iter().enumerate() {
            let key = |field: &str| format!("subjects.{index}.{field}");
            let name = &subject.name;
            let Some(from) = &subject.from else {
                let found = format!("subject `{name}` has a change, but nothing to change");
                let expected = "from = the subject that it is like";
                check.unless(subject.change.is_none(), &key("change"), found, expected)?;
                continue;
            };
            let origin = self.subjects.iter().find(|it| it.name == *from && it.name != *name);
            let usable = origin.is_some_and(|it| it.engine.is_some() && it.from.is_none());
            let found = format!("subject `{name}` is from `{from}`");
            let expected = "the name of a subject that has an engine of its own";
            check.unless(usable, &key("from"), found, expected)?;
            let same = |engine: &String| {
                origin.is_some_and(|origin| origin.engine.as_ref() == Some(engine))
            };
            check.unless(
                subject.engine.as_ref().is_none_or(same) && subject.command.is_none(),
                &key("engine"),
                format!("subject `{name}` has an engine or a command of its own"),
                "neither: it has the engine of the subject that it is from",
            )?;
        }
        Ok(())
    }

    fn check_subjects(&self, check: &Check<'_>) -> Result<(), LabError> {
        for protocol in self.protocols() {
            let speakers = self.subjects_of(protocol).len();
            check.unless(
                (1..=MAX_SUBJECTS).contains(&speakers),
                "subjects",
                format!("{speakers} subjects that speak {protocol}"),
                "1 to 64 subjects, the first of them the baseline",
            )?;
        }
        for index in 0..self.subjects.len() {
            self.check_subject(check, index)?;
        }
        Ok(())
    }

    fn check_subject(&self, check: &Check<'_>, index: usize) -> Result<(), LabError> {
        let subject = &self.subjects[index];
        let key = |field: &str| format!("subjects.{index}.{field}");
        let Subject { name, engine, command, features, server_arguments, .. } = subject;
        let known = self.subjects[..index].iter().any(|other| other.name == *name);
        let found = format!("two subjects named `{name}`");
        check.unless(!known, &key("name"), found, "a name of its own for each")?;
        check.name(&key("name"), name)?;
        let engine_known = engine.as_deref().is_none_or(|e| matches!(e, "io_uring" | "epoll"));
        let found = format!("engine = {engine:?}");
        check.unless(engine_known, &key("engine"), found, "io_uring or epoll")?;
        let only_for_engines = features.is_some() || !server_arguments.is_empty();
        let is_peer = subject.peer.is_some();
        let ways = [engine.is_some(), command.is_some(), subject.nginx.is_some(), is_peer];
        check.unless(
            ways.iter().filter(|given| **given).count() == 1
                && (engine.is_some() || !only_for_engines),
            &key("name"),
            format!("subject `{name}` has engine {engine:?} and command {command:?}"),
            "one of engine (with features and server_arguments), command, nginx and peer",
        )?;
        check_peer(check, subject, index)?;
        let has_one_thread = subject.known_peer().is_some_and(|it| it.name != h2o::PEER);
        check.unless(
            self.workers_most() == 1 || !has_one_thread,
            &key("peer"),
            format!("subject `{name}` has one thread, and there are cells with several workers"),
            "an engine, nginx, h2o, or a command with {workers} and {server_cpus}",
        )?;
        check_listening(check, subject, index)?;
        for other in &subject.against {
            let is_other = self.subjects.iter().any(|it| it.name == *other && other != name);
            let found = format!("subject `{name}` is to be compared with `{other}`");
            check.unless(is_other, &key("against"), found, "the name of another subject")?;
        }
        Ok(())
    }

    fn check_published(&self, check: &Check<'_>) -> Result<(), LabError> {
        check.unless(
            self.published.len() <= MAX_PUBLISHED,
            "published",
            format!("{} published figures", self.published.len()),
            "at most 64",
        )?;
        for (index, published) in self.published.iter().enumerate() {
            let positive = match published {
                Published::Datagrams(PublishedDatagrams { cpu_percent, calls, .. }) => {
                    let counted = |call: &super::PublishedCall| {
                        call.time_s > 0.0
                            && call.count > 0
                            && call.run_percent > 0.0
                            && call.max_ms >= 0.0
                    };
                    *cpu_percent > 0.0 && calls.iter().all(counted)
                }
                Published::Requests(PublishedRequests { measured, .. }) => {
                    measured.iter().all(|it| it.requests_per_s > 0.0 && it.mean_ms > 0.0)
                }
                Published::Echo(PublishedEcho { measured, .. }) => {
                    // Where there is no number, there is a word about it.
                    let told = |it: &PublishedEchoRate| match it.requests_per_s {
                        Some(requests_per_s) => requests_per_s > 0.0,
                        None => !it.note.is_empty(),
                    };
                    measured.iter().all(told)
                }
            };
            let key = format!("published.{index}");
            let found = format!("a figure of {} is not positive", published.source());
            check.unless(positive, &key, found, "figures above 0, or a note instead of one")?;
            let Some(against) = published.against() else { continue };
            let is_other = |other: &Published| {
                other.source() == published.source() && other.program() == against.program
            };
            let found = format!("{} is published against {}", published.program(), against.program);
            check.unless(
                self.published.iter().any(is_other) && against.program != published.program(),
                &key,
                found,
                "the program of another entry of the same source",
            )?;
        }
        Ok(())
    }
}

/// Whether a peer is known, and only a peer has arguments.
fn check_peer(check: &Check<'_>, subject: &Subject, index: usize) -> Result<(), LabError> {
    let key = |field: &str| format!("subjects.{index}.{field}");
    let Subject { name, peer, arguments, protocol, .. } = subject;
    let Some(peer) = peer else {
        let found = format!("subject `{name}` has arguments and is no peer");
        let expected = "them in its command, or server_arguments for an engine";
        return check.unless(arguments.is_empty(), &key("arguments"), found, expected);
    };
    let known: Vec<&str> = KNOWN.iter().map(|peer| peer.name).collect();
    let expected = format!("one of {}", known.join(", "));
    let found = format!("peer = \"{peer}\"");
    check.unless(subject.known_peer().is_some(), &key("peer"), found, &expected)?;
    let own = subject.own_protocol();
    let right = protocol.is_none() || *protocol == own;
    let found = format!("peer `{peer}` is to speak another protocol than its own");
    check.unless(right, &key("protocol"), found, "no protocol: it speaks one only")
}

/// Whether its command says where to listen, and nginx only what nginx can do.
fn check_listening(check: &Check<'_>, subject: &Subject, index: usize) -> Result<(), LabError> {
    let name = &subject.name;
    let key = |field: &str| format!("subjects.{index}.{field}");
    if let Some(nginx) = &subject.nginx {
        check.unless(
            subject.protocol.is_none_or(|only| only == Protocol::Http),
            &key("protocol"),
            format!("subject `{name}` is nginx and is to speak another protocol than HTTP"),
            "no protocol, or \"http\"",
        )?;
        for directive in &nginx.directives {
            let ends = directive.trim_end().ends_with([';', '}']);
            let found = format!("directive `{directive}`");
            check.unless(ends, &key("nginx"), found, "a semicolon at its end")?;
        }
        return Ok(());
    }
    if subject.peer.is_some() {
        // The lab knows how to pass it, or that it has a port of its own.
        return Ok(());
    }
    let listens = |word: &String| word.contains("{addr}") || word.contains("{port}");
    check.unless(
        subject.command_template(Protocol::Tcp).iter().any(listens),
        &key("command"),
        format!("the command of `{name}` has no {{addr}}"),
        "{addr}, or {ip} and {port}, where the listen address goes",
    )
}

/// Whether a name can be used in file names, tables and HTML without surprises.
fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=40).contains(&name.chars().count()) && name.chars().all(plain) && !name.starts_with('.')
}
