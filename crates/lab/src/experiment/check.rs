//! Whether an experiment makes sense. Each message names the key, and the line that it is in.

use super::source::Source;
use super::{EXPERIMENT_SCHEMA, Experiment, MAX_PAIRS, NetKind, Subject, UnderTest};
use crate::error::LabError;
use crate::peers::Peer;

/// The most subjects that are accepted.
const MAX_SUBJECTS: usize = 64;
const MAX_GENERATORS: u32 = 1024;

/// The longest window and warm-up, which with the limits above bounds every run.
const MAX_SECONDS: f64 = 300.0;

impl Source<'_> {
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
}

impl Experiment {
    pub(super) fn check(&self, source: &Source<'_>) -> Result<(), LabError> {
        let found = format!("schema = \"{}\"", self.schema);
        source.unless(self.schema == EXPERIMENT_SCHEMA, "schema", found, EXPERIMENT_SCHEMA)?;
        source.name("name", &self.name)?;
        for (key, pairs, least, expected) in [
            ("pairs", self.pairs, 1, "1 to 1000 pairs"),
            ("spare_pairs", self.spare_pairs, 0, "at most 1000 to spare"),
        ] {
            let right = (least..=MAX_PAIRS).contains(&pairs);
            source.unless(right, key, format!("{key} = {pairs}"), expected)?;
        }
        source.unless(
            self.protocols().next().is_some(),
            "",
            "no cells are left",
            "[tcp], [udp] or [http] with its axes, and subjects that all speak it",
        )?;
        for protocol in self.protocols() {
            let (warmup_s, window_s) = self.pace_s(protocol);
            let grid = self.grid(protocol);
            let own = |key: &str, own: Option<f64>| match own {
                Some(_) => format!("{protocol}.{key}"),
                None => key.to_owned(),
            };
            source.seconds(&own("warmup_s", grid.and_then(|it| it.warmup_s)), warmup_s, 0.0)?;
            source.seconds(&own("window_s", grid.and_then(|it| it.window_s)), window_s, 0.05)?;
            if let Some(grid) = grid {
                grid.check(protocol, source)?;
            }
            let changed = self.subjects.iter().any(|subject| !subject.load_arguments.is_empty());
            source.unless(
                self.under_test(protocol) == UnderTest::Both || !changed,
                &format!("{protocol}.under_test"),
                format!("a subject has load_arguments, and [{protocol}] tests the server only"),
                "under_test = \"both\", or no load_arguments",
            )?;
        }
        self.check_via(source)?;
        source.unless(
            self.workers_most() == 1 || !self.net.kinds().contains(&NetKind::Napi),
            "net",
            "cells with several workers on napi, where one thread of the kernel receives",
            "net = \"lo\" or \"rps\", or workers = [1]",
        )?;
        self.check_subjects(source)
    }

    /// Load generators on other machines: whether the load can be divided among them, and nothing is
    /// asked for that is measured on this machine only.
    fn check_via(&self, source: &Source<'_>) -> Result<(), LabError> {
        let Some(via) = &self.via else { return Ok(()) };
        source.unless(
            !via.command.is_empty() && (1..=MAX_GENERATORS).contains(&via.generators),
            "via",
            format!("{:?} with {} load generators", via.command, via.generators),
            "a command, and 1 to 1024 load generators",
        )?;
        source.unless(
            (0.5..=60.0).contains(&via.lead_s),
            "via.lead_s",
            format!("lead_s = {}", via.lead_s),
            "0.5 to 60 seconds",
        )?;
        for cell in self.cells(&[NetKind::Hosts]) {
            let divided = cell.point.divided(via.generators);
            let expected = "a number that each load generator gets an equal part of";
            source.unless(
                divided.is_ok(),
                "via.generators",
                divided.err().unwrap_or_default(),
                expected,
            )?;
        }
        let both = self.protocols().any(|it| self.under_test(it) == UnderTest::Both);
        let found = "under_test = \"both\" with load generators on other machines, whose CPU is not measured";
        source.unless(!both, "via", found, "under_test = \"server\", or --protocol")
    }

    fn check_subjects(&self, source: &Source<'_>) -> Result<(), LabError> {
        for protocol in self.protocols() {
            let speakers = self.subjects_of(protocol).len();
            source.unless(
                (1..=MAX_SUBJECTS).contains(&speakers),
                "subjects",
                format!("{speakers} subjects that speak {protocol}"),
                "1 to 64 subjects, the first of them the baseline",
            )?;
        }
        (0..self.subjects.len()).try_for_each(|index| self.check_subject(source, index))
    }

    fn check_subject(&self, source: &Source<'_>, index: usize) -> Result<(), LabError> {
        let subject = &self.subjects[index];
        let key = |field: &str| format!("subjects.{index}.{field}");
        let Subject { name, engine, command, features, arguments, peer, protocol, .. } = subject;
        let known = self.subjects[..index].iter().any(|other| other.name == *name);
        let found = format!("two subjects named `{name}`");
        source.unless(!known, &key("name"), found, "a name of its own for each")?;
        source.name(&key("name"), name)?;
        let engine_known = engine.as_deref().is_none_or(|e| matches!(e, "io_uring" | "epoll"));
        let found = format!("engine = {engine:?}");
        source.unless(engine_known, &key("engine"), found, "io_uring or epoll")?;
        let ways = [engine.is_some(), command.is_some(), peer.is_some()];
        source.unless(
            ways.iter().filter(|given| **given).count() == 1
                && (engine.is_some() || features.is_none())
                && (command.is_none() || arguments.is_empty()),
            &key("name"),
            format!(
                "subject `{name}` has engine {engine:?}, peer {peer:?} and command {command:?}"
            ),
            "one of engine (with features and arguments), peer (with arguments) and command",
        )?;
        if let Some(peer) = peer {
            let (found, known) =
                (format!("peer = \"{peer}\""), format!("one of {}", Peer::names()));
            source.unless(subject.known_peer().is_some(), &key("peer"), found, &known)?;
            let right = protocol.is_none() || *protocol == subject.own_protocol();
            let found = format!("peer `{peer}` does not speak it");
            let expected = "no protocol: a peer speaks one only";
            source.unless(right, &key("protocol"), found, expected)?;
        }
        source.unless(
            self.workers_most() == 1 || subject.known_peer().is_none_or(|it| it.has_workers),
            &key("peer"),
            format!("subject `{name}` has one thread, and there are cells with several workers"),
            "an engine, nginx, h2o, or a command with {workers} and {server_cpus}",
        )?;
        let listens = |word: &String| word.contains("{addr}") || word.contains("{port}");
        source.unless(
            command.as_ref().is_none_or(|words| words.iter().any(listens)),
            &key("command"),
            format!("the command of `{name}` has no {{addr}}"),
            "{addr}, or {ip} and {port}, where the listen address goes",
        )?;
        for other in &subject.against {
            let is_other = self.subjects.iter().any(|it| it.name == *other && other != name);
            let found = format!("subject `{name}` is to be compared with `{other}`");
            source.unless(is_other, &key("against"), found, "the name of another subject")?;
        }
        Ok(())
    }
}

/// Whether a name can be used in file names, tables and HTML without surprises.
fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=40).contains(&name.chars().count()) && name.chars().all(plain) && !name.starts_with('.')
}
