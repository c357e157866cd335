//! Whether the runs of a bundle can have come from its experiment: of its cells and subjects, by
//! its commands, on its CPUs, and as many as it asks for.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::Path;

use crate::audit::Severity;
use crate::experiment::{Cell, NetKind, Subject};
use crate::host::share::share;
use crate::result::{Bundle, RunRecord, State};
use crate::summary::Summary;

/// Everything that does not fit.
pub(crate) fn problems(bundle: &Bundle, runs: &[RunRecord], computed: &Summary) -> Vec<String> {
    let nets: Vec<NetKind> = bundle.networks.iter().map(|network| network.kind).collect();
    let cells: BTreeSet<Cell> = bundle.experiment.cells(&nets).into_iter().collect();
    let mut problems = Vec::new();
    for (position, run) in runs.iter().enumerate() {
        if run.index != position {
            problems.push(format!("run {} stands where run {position} should", run.index));
        }
        let problem = problem(bundle, &cells, run);
        problems.extend(problem.map(|what| format!("run {}: {what}", run.index)));
    }
    // What is asked of a run depends on its schema, and one lab writes only one.
    let schemas: BTreeSet<&str> = runs.iter().map(|run| run.schema.as_str()).collect();
    if schemas.len() > 1 {
        problems.push(format!("runs of several schemas: {schemas:?}"));
    }
    for cell in cells {
        problems.extend(missing(bundle, cell, runs, computed));
    }
    problems
}

fn problem(bundle: &Bundle, cells: &BTreeSet<Cell>, run: &RunRecord) -> Option<String> {
    let experiment = &bundle.experiment;
    if !cells.contains(&run.cell) {
        return Some(format!("the experiment has no cell {}", run.cell));
    }
    let protocol = run.cell.protocol();
    let speakers = experiment.subjects_of(protocol);
    let mut subjects = speakers.iter().map(|position| &experiment.subjects[*position]);
    let Some(subject) = subjects.find(|subject| subject.name == run.subject) else {
        return Some(format!("the experiment has no subject {} of {protocol}", run.subject));
    };
    let client_cpu = bundle.cpus.client;
    let whole = known(bundle, run.cell, subject, client_cpu);
    let of_server = subject.command_template(protocol);
    let of_client = experiment.load_template(protocol, subject);
    let mut commands = Vec::new();
    // How our own server and nginx are started is part of the schema, and not of the experiment.
    if subject.command.is_some() || run.version() >= 3 {
        commands.push(("server", &of_server, &run.server_command, whole));
    }
    let several = run.clients.len().max(1);
    for index in 0..several {
        let command = run.clients.get(index).map_or(&run.client_command, |it| &it.command);
        let cpu = bundle.hosts.get(index + 1).map_or(client_cpu, |host| host.cpu);
        let point = share(run.cell.point, several, index);
        let part = known(bundle, Cell { point, ..run.cell }, subject, cpu);
        commands.push(("load generator", &of_client, command, part));
    }
    for (whose, template, command, known) in commands {
        let template = &without_directory_as(command, template.clone());
        // A run may end before its command is known.
        if !command.is_empty() && !is_filled_in(template, command, &known) {
            return Some(format!("the command of the {whose} is not that of the experiment"));
        }
    }
    if let Some(what) = other_hosts(bundle, run) {
        return Some(what.to_owned());
    }
    let cpus = run.cpu.as_ref().map(|cpu| (cpu.server_cpu.cpu, cpu.client_cpu.cpu));
    if cpus.is_some_and(|cpus| cpus != (bundle.cpus.server, bundle.cpus.client)) {
        return Some("it was measured on other CPUs".to_owned());
    }
    None
}

/// Whether a run was on other hosts than the experiment, or without one of its load generators.
fn other_hosts(bundle: &Bundle, run: &RunRecord) -> Option<&'static str> {
    let names: Vec<&str> = bundle.hosts.iter().map(|host| host.name.as_str()).collect();
    let (clients, of_run) = (names.get(1..).unwrap_or_default(), &run.clients);
    let wanted = if clients.len() > 1 { clients } else { &[] };
    if !of_run.iter().map(|client| client.host.as_str()).eq(wanted.iter().copied()) {
        return Some("its load generators are not those of the experiment");
    }
    // A run whose server was not ready looked at no host.
    let looked_at = !run.hosts.is_empty();
    (looked_at && !run.hosts.iter().map(|host| host.host.as_str()).eq(names))
        .then_some("it was measured on other hosts")
}

/// What is missing of a cell: numbers of blocks are without gaps, and a complete experiment has
/// all runs of subjects that nothing took out.
fn missing(bundle: &Bundle, cell: Cell, runs: &[RunRecord], computed: &Summary) -> Vec<String> {
    let experiment = &bundle.experiment;
    let of_cell: Vec<&RunRecord> = runs.iter().filter(|run| run.cell == cell).collect();
    let blocks: BTreeSet<usize> = of_cell.iter().map(|run| run.block).collect();
    let mut problems = Vec::new();
    if blocks.iter().copied().ne(0..blocks.len()) {
        problems.push(format!("{cell}: blocks are missing"));
    }
    let summary = computed.cells.iter().find(|summary| summary.cell == cell);
    let mut findings = summary.iter().flat_map(|summary| &summary.findings);
    let is_complete = bundle.state == State::Complete
        && !findings.any(|finding| finding.severity == Severity::Void);
    for position in experiment.subjects_of(cell.protocol()) {
        let name = &experiment.subjects[position].name;
        let of_subject = || of_cell.iter().filter(|run| run.subject == *name);
        let distinct: BTreeSet<usize> = of_subject().map(|run| run.block).collect();
        let count = of_subject().count();
        if distinct.len() != count {
            problems.push(format!("{cell}: {name} ran twice in a block"));
        }
        if is_complete && count < experiment.pairs {
            let pairs = experiment.pairs;
            problems.push(format!("{cell}: {name} has {count} runs of the {pairs} it should have"));
        }
    }
    problems
}

/// Placeholders whose values follow from the experiment; the others stand for anything.
fn known(
    bundle: &Bundle,
    cell: Cell,
    subject: &Subject,
    client_cpu: usize,
) -> BTreeMap<&'static str, String> {
    let millis = |seconds: f64| format!("{}", (seconds * 1e3).round());
    let (warmup_s, window_s) = bundle.experiment.pace_s(cell.protocol());
    let mut known = BTreeMap::from([
        ("warmup_ms", millis(warmup_s)),
        ("window_ms", millis(window_s)),
        ("server_cpu", bundle.cpus.server.to_string()),
        ("client_cpu", client_cpu.to_string()),
        ("engine", subject.load_engine().to_owned()),
    ]);
    for (_, name, value) in cell.point.load().axes() {
        known.insert(name, value.to_string());
    }
    known
}

/// Placeholders that, as a word, stand for any number of words.
const LISTS: &[&str] = &["{listen}", "{urls}", "{options}", "{peer_options}"];

/// Whether a command is this template with its placeholders filled in.
fn is_filled_in(
    template: &[String],
    command: &[String],
    known: &BTreeMap<&'static str, String>,
) -> bool {
    let is_list = |word: &String| LISTS.contains(&word.as_str());
    matches(template, command, is_list, |word, filled| {
        let pieces = pieces(word, known);
        let characters: Vec<char> = filled.chars().collect();
        matches(&pieces, &characters, Option::is_none, |piece, c| *piece == Some(*c))
    })
}

/// The characters of a word of a template; `None` stands for any text.
fn pieces(word: &str, known: &BTreeMap<&'static str, String>) -> Vec<Option<char>> {
    let mut pieces = Vec::new();
    let mut rest = word;
    while let Some((before, inside)) = rest.split_once('{') {
        let Some((name, after)) = inside.split_once('}') else { break };
        pieces.extend(before.chars().map(Some));
        match known.get(name) {
            Some(value) => pieces.extend(value.chars().map(Some)),
            None => pieces.push(None),
        }
        rest = after;
    }
    pieces.extend(rest.chars().map(Some));
    pieces
}

/// Whether a pattern, some pieces of which stand for any number of items, fits all items. A piece
/// that fits too little is widened by one item at a time, the last one only, so this takes no more
/// steps than pieces times items.
fn matches<P, T>(
    pattern: &[P],
    items: &[T],
    is_any: impl Fn(&P) -> bool,
    fits: impl Fn(&P, &T) -> bool,
) -> bool {
    let (mut piece, mut item) = (0, 0);
    let mut widen: Option<(usize, usize)> = None;
    while item < items.len() {
        match pattern.get(piece) {
            Some(any) if is_any(any) => {
                widen = Some((piece, item));
                piece += 1;
            }
            Some(one) if fits(one, &items[item]) => {
                piece += 1;
                item += 1;
            }
            _ => {
                let Some((any, from)) = widen else { return false };
                widen = Some((any, from + 1));
                (piece, item) = (any + 1, from + 1);
            }
        }
    }
    pattern[piece..].iter().all(is_any)
}

/// A template whose program is without its directory if that of the recorded command is.
fn without_directory_as(command: &[String], mut template: Vec<String>) -> Vec<String> {
    if let (Some(program), Some(recorded)) = (template.first_mut(), command.first())
        && Path::new(program.as_str()).file_name() == Some(OsStr::new(recorded))
    {
        program.clone_from(recorded);
    }
    template
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn commands_are_recognised_by_their_template() {
        let known = BTreeMap::from([("connections", "100".to_owned())]);
        let template = words("{twinring} load http {urls} {options} -c {connections} -p{port}");
        for (command, expected) in [
            ("./twinring load http http://x/1 --verify=a -c 100 -p1", true),
            ("./twinring load http --urls list -c 100 -p1", true),
            ("./twinring load http -c 100 -p1", true),
            ("./twinring load http http://x/1 -c 10 -p1", false),
            ("./twinring load http http://x/1 -c 100 -q1", false),
            ("./twinring load http http://x/1 -c 100 -p1 --threads 4", false),
            ("./twinring load tcp http://x/1 -c 100 -p1", false),
            ("./twinring", false),
        ] {
            assert_eq!(is_filled_in(&template, &words(command), &known), expected, "{command}");
        }
        assert!(is_filled_in(&words("a {x}{y}b{"), &words("a 12b{"), &known));
        assert!(is_filled_in(&words("{options}"), &[], &known));
    }

    #[test]
    fn a_pattern_that_stands_for_much_does_not_take_for_ever() {
        let template = vec!["{options}".to_owned(); 2_000];
        let mut command = vec!["x".to_owned(); 2_000];
        assert!(is_filled_in(&template, &command, &BTreeMap::new()));
        command.push("y".to_owned());
        let template = [template, words("z")].concat();
        assert!(!is_filled_in(&template, &command, &BTreeMap::new()));
    }
}
