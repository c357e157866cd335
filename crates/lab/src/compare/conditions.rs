//! Whether two bundles were measured under the same conditions. Absolute figures say something about a change only if
//! everything else stayed as it was; the ratio between two subjects of one bundle needs less.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::experiment::{Cell, NetKind, Protocol, Subject, UnderTest};
use crate::machine::Program;
use crate::net::NetRecord;
use crate::result::{Bundle, State};

/// Something that was not the same in both bundles.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// What.
    pub what: String,
    /// In A.
    pub a: String,
    /// In B.
    pub b: String,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Difference { what, a, b } = self;
        // A kernel command line can be very long; the JSON has all of it.
        let short = |text: &str| match text.char_indices().nth(SHOWN_CHARS) {
            _ if text.is_empty() => "none".to_owned(),
            Some((end, _)) => format!("`{}…`", &text[..end]),
            None => format!("`{text}`"),
        };
        write!(f, "{what}: {} in A, {} in B", short(a), short(b))
    }
}

/// Characters of a setting that are shown to people.
const SHOWN_CHARS: usize = 60;

/// What differs, collected.
#[derive(Default)]
struct Differences(Vec<Difference>);

impl Differences {
    fn look(&mut self, what: &str, a: impl ToString, b: impl ToString) {
        let (a, b) = (a.to_string(), b.to_string());
        if a != b {
            self.0.push(Difference { what: what.to_owned(), a, b });
        }
    }

    fn look_opt(&mut self, what: &str, a: Option<&String>, b: Option<&String>) {
        self.look(what, a.cloned().unwrap_or_default(), b.cloned().unwrap_or_default());
    }

    /// Settings that only one side knows are of different versions of the lab.
    fn look_at_all(&mut self, a: &BTreeMap<String, String>, b: &BTreeMap<String, String>) {
        for (name, a) in a {
            if let Some(b) = b.get(name) {
                self.look(name, a, b);
            }
        }
    }
}

/// What makes absolute figures of the two incomparable in every cell: another machine, or
/// the same one under other conditions.
pub(super) fn machine(a: &Bundle, b: &Bundle) -> Vec<Difference> {
    let mut found = Differences::default();
    let (one, other) = (&a.machine, &b.machine);
    found.look("processor", &one.cpu_model, &other.cpu_model);
    found.look("processors online", one.cpus_online, other.cpus_online);
    found.look("caches", one.caches.join(", "), other.caches.join(", "));
    found.look("kernel", &one.kernel, &other.kernel);
    found.look("kernel command line", &one.kernel_command_line, &other.kernel_command_line);
    found.look_opt("virtual machine", one.virtualisation.as_ref(), other.virtualisation.as_ref());
    found.look("clock source", &one.clocksource, &other.clocksource);
    found.look_opt("frequency governor", one.governor.as_ref(), other.governor.as_ref());
    found.look_opt("boost", one.boost.as_ref(), other.boost.as_ref());
    found.look_at_all(&one.mitigations, &other.mitigations);
    found.look_at_all(&one.sysctls, &other.sysctls);
    found.look("CPU of the server", &a.cpus.server, &b.cpus.server);
    found.look("CPU of the load generator", &a.cpus.client, &b.cpus.client);
    found.0
}

/// What makes a cell incomparable in absolute figures beyond [`machine`]: its network.
pub(super) fn network(a: &Bundle, b: &Bundle, cell: Cell) -> Vec<Difference> {
    let mut found = Differences::default();
    if let (Some(one), Some(other)) = (record(a, cell.net), record(b, cell.net)) {
        found.look("MTU", mtu(one), mtu(other));
        found.look("receive steering of the server", &one.server_rps, &other.server_rps);
        found.look("receive steering of the client", &one.client_rps, &other.client_rps);
        let polled = |record: &NetRecord| match record.napi_cpus[..] {
            [] => "no".to_owned(),
            _ => format!("on CPUs {:?}", record.napi_cpus),
        };
        found.look("polled by threads", polled(one), polled(other));
        let settings = |record: &NetRecord| record.settings.iter().cloned().collect();
        found.look_at_all(&settings(one), &settings(other));
    }
    found.0
}

fn record(bundle: &Bundle, kind: NetKind) -> Option<&NetRecord> {
    bundle.networks.iter().find(|network| network.kind == kind)
}

fn mtu(record: &NetRecord) -> String {
    record.mtu_bytes.map_or(String::new(), |bytes| bytes.to_string())
}

/// What makes a cell incomparable in every respect: the two asked for different work, or counted
/// it differently.
pub(super) fn work(a: &Bundle, b: &Bundle, cell: Cell, subjects: &[&str]) -> Vec<Difference> {
    let protocol = cell.protocol();
    let mut found = Differences::default();
    found.look("CPUs", sharing(a), sharing(b));
    for subject in subjects {
        let [one, other] = [a, b].map(|bundle| load_command(bundle, protocol, subject));
        found.look(&format!("load generator's command for {subject}"), one, other);
    }
    let under_test = |bundle: &Bundle| match bundle.experiment.under_test(protocol) {
        UnderTest::Server => "the server",
        UnderTest::Both => "both sides",
    };
    found.look("what is under test", under_test(a), under_test(b));
    found.look("limits of keeping the rate", keeps_up(a, protocol), keeps_up(b, protocol));
    found.0
}

fn keeps_up(bundle: &Bundle, protocol: Protocol) -> String {
    bundle.experiment.grid(protocol).map(|grid| format!("{:?}", grid.slo)).unwrap_or_default()
}

fn sharing(bundle: &Bundle) -> &'static str {
    match (bundle.cpus.shared, bundle.cpus.siblings) {
        (true, _) => "one for both sides",
        (false, true) => "two threads of one core",
        (false, false) => "two cores",
    }
}

fn subject<'a>(bundle: &'a Bundle, name: &str) -> Option<&'a Subject> {
    bundle.experiment.subjects.iter().find(|subject| subject.name == name)
}

fn load_command(bundle: &Bundle, protocol: Protocol, name: &str) -> String {
    let experiment = &bundle.experiment;
    let command = subject(bundle, name).map(|subject| experiment.load_template(protocol, subject));
    command.unwrap_or_default().join(" ")
}

/// What a reader has to know, though it does not prevent the comparison.
pub(super) fn notes(a: &Bundle, b: &Bundle) -> Vec<String> {
    let mut found = Differences::default();
    found.look("experiment", &a.experiment.name, &b.experiment.name);
    found.look("version of the lab", &a.lab_version, &b.lab_version);
    for protocol in a.experiment.protocols().filter(|it| b.experiment.protocols().any(|b| b == *it))
    {
        let pace = |bundle: &Bundle| {
            let (warmup_s, window_s) = bundle.experiment.pace_s(protocol);
            format!("{window_s} s after {warmup_s} s")
        };
        found.look(&format!("window of {protocol}"), pace(a), pace(b));
    }
    found.look_at_all(&a.machine.limits, &b.machine.limits);
    for subject in &a.experiment.subjects {
        if let Some(other) = self::subject(b, &subject.name) {
            let text = |it| serde_json::to_string(it).unwrap_or_default();
            found.look(&format!("what {} is", subject.name), text(subject), text(other));
        }
    }
    let mut notes: Vec<String> = found.0.iter().map(Difference::to_string).collect();
    notes.extend(programs(&a.programs, &b.programs));
    if (&a.started, a.seed) == (&b.started, b.seed) {
        notes.push("A and B have the same start and seed: they are one experiment".to_owned());
    }
    for (side, bundle) in [("A", a), ("B", b)] {
        if bundle.state != State::Complete {
            notes.push(format!("{side} is not complete: what it holds was measured before"));
        }
    }
    notes
}

/// Programs of one path whose content changed. If the load generator is among them, it may be
/// what made the difference.
fn programs(a: &[Program], b: &[Program]) -> Vec<String> {
    let name =
        |program: &Program| program.path.rsplit('/').next().unwrap_or(&program.path).to_owned();
    let changed = a.iter().filter_map(|one| {
        let other = b.iter().find(|other| name(other) == name(one))?;
        let differs = one.sha256.is_some() && other.sha256.is_some() && one.sha256 != other.sha256;
        differs.then(|| {
            format!(
                "{} is not the same program in A and B; where it is the load generator as well, \
                 that may be what made a difference (one lab that runs both as subjects has one)",
                name(one)
            )
        })
    });
    changed.collect()
}
