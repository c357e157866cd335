//! `twinring probe`: what can run here, what blocks it, and the fix.

use crate::output::complain;
use clap::Args;
use console::{Style, Term, style};
use serde::Serialize;
use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;
use twinring::probe::{Capabilities, Environment, FeatureReport, Limit, hazards::HAZARDS};
use twinring::{Buffers, TaskRun, UringFeatures};

/// Widest table; a wider terminal is not filled.
const COLUMNS_MAX: usize = 100;
/// Narrowest: below, a terminal wraps by itself.
const COLUMNS_MIN: usize = 60;
/// Columns before the text of a row.
const LABEL_COLUMNS: usize = 24;

#[derive(Debug, Args)]
pub(crate) struct Probe {
    /// Print one JSON line instead of the table.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(probe: &Probe) -> ExitCode {
    let found = Capabilities::detect();
    let printed = if probe.json { print_json(&found) } else { print_table(&found) };
    match printed {
        Ok(()) => ExitCode::SUCCESS,
        // `twinring probe | head` has seen what it wanted.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("twinring probe: cannot write to standard output: {error}"));
            ExitCode::FAILURE
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Best,
    Degraded,
    Refused,
}

#[derive(Serialize)]
struct Verdict {
    state: State,
    text: String,
}

impl Verdict {
    fn of(found: &Capabilities) -> Verdict {
        let missing = found.missing();
        let (state, text) = match &found.refusal {
            Some(refusal) => {
                (State::Refused, format!("io_uring: refused by {}: {}", refusal.layer, refusal.fix))
            }
            None if missing.is_empty() => (State::Best, String::from("io_uring: usable, best set")),
            None => {
                let names: Vec<_> = missing.iter().map(|feature| feature.kernel_name).collect();
                (State::Degraded, format!("io_uring: usable, without {}", names.join(", ")))
            }
        };
        Verdict { state, text }
    }
}

fn print_json(found: &Capabilities) -> io::Result<()> {
    #[derive(Serialize)]
    struct Line<'a> {
        event: &'static str,
        schema: &'static str,
        verdict: Verdict,
        #[serde(flatten)]
        found: &'a Capabilities,
    }
    let verdict = Verdict::of(found);
    let line = Line { event: "probe", schema: "twinring.probe/1", verdict, found };
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, &line)?;
    writeln!(out)
}

fn print_table(found: &Capabilities) -> io::Result<()> {
    let term = Term::stdout();
    let columns = term.size_checked().map_or(COLUMNS_MAX, |(_, columns)| usize::from(columns));
    let mut table = Table { text: String::new(), columns: columns.clamp(COLUMNS_MIN, COLUMNS_MAX) };
    let verdict = Verdict::of(found);
    let colour = match verdict.state {
        State::Best => Style::new().green(),
        State::Degraded => Style::new().yellow(),
        State::Refused => Style::new().red(),
    };
    table.paragraph("", &verdict.text, &colour.bold());
    if let Some(refusal) = &found.refusal {
        table.paragraph("  ", &refusal.what, &Style::new());
    }
    engines(&mut table, found);
    features(&mut table, found);
    operations(&mut table, found);
    limits(&mut table, found);
    hazards(&mut table, found);
    // Colours are decided by console: a terminal, and not NO_COLOR.
    io::stdout().write_all(table.text.as_bytes())
}

/// Lines of text that fit the terminal.
struct Table {
    text: String,
    columns: usize,
}

impl Table {
    fn line(&mut self, line: impl Display) {
        self.text.push_str(line.to_string().trim_end());
        self.text.push('\n');
    }

    fn section(&mut self, name: &str) {
        self.line("");
        self.line(style(name).bold());
    }

    /// Text broken into lines, all indented.
    fn paragraph(&mut self, indent: &str, text: &str, look: &Style) {
        let room = self.columns - indent.len();
        for line in textwrap::wrap(text, room) {
            self.line(format_args!("{indent}{}", look.apply_to(line)));
        }
    }

    /// A label and, beside it, text broken into lines.
    fn row(&mut self, label: &str, text: &str) {
        let room = self.columns - LABEL_COLUMNS - 3;
        let mut label = label;
        for line in textwrap::wrap(text, room) {
            self.line(format_args!("  {label:LABEL_COLUMNS$} {line}"));
            label = "";
        }
    }
}

/// `yes` or `no`, three columns wide.
fn mark(yes: bool) -> String {
    if yes { style("yes").green().to_string() } else { style("no ").red().to_string() }
}

fn engines(table: &mut Table, found: &Capabilities) {
    table.section("engines");
    let io_uring = match &found.chosen {
        Some(features) => describe(features),
        None => String::from("cannot run here: see above"),
    };
    table.line(format_args!("  {}  io_uring", mark(found.chosen.is_some())));
    table.paragraph("       ", &io_uring, &Style::new());
    let epoll = if found.epoll_pwait2 {
        "edge-triggered, timeouts in nanoseconds (epoll_pwait2)"
    } else {
        "edge-triggered, timeouts in milliseconds (no epoll_pwait2: Linux 5.11, or seccomp)"
    };
    table.line(format_args!("  {}  epoll", mark(true)));
    table.paragraph("       ", epoll, &Style::new());
}

fn describe(features: &UringFeatures) -> String {
    let buffers = match features.buffers {
        Buffers::Ring => "in a ring",
        Buffers::Incremental => "in an incremental ring",
        Buffers::Legacy => "given one by one",
    };
    let mut words = vec![
        String::from(if features.multishot { "multishot" } else { "single shot" }),
        format!("{} buffers of {} bytes {buffers}", features.buffer_count, features.buffer_bytes),
        String::from(match features.taskrun {
            TaskRun::Defer => "task work deferred",
            TaskRun::Coop => "task work at the next system call",
            TaskRun::None => "task work by interruption",
        }),
    ];
    for (on, word) in [
        (features.single_issuer, "single issuer"),
        (features.registered_ring, "registered ring"),
        (features.no_sqarray, "no index array"),
        (features.skip_success, "silent sends"),
        (features.no_iowait, "waits count as idle"),
    ] {
        words.extend(on.then(|| word.to_owned()));
    }
    words.push(format!("queues of {} and {}", features.sq_entries, features.cq_entries));
    words.join(", ")
}

fn features(table: &mut Table, found: &Capabilities) {
    let Some(uring) = &found.uring else { return };
    table.section("io_uring features");
    for report in &uring.features {
        let FeatureReport { kernel_name, since, option, default, refusal, .. } = report;
        let taken = match option {
            _ if *default => "default",
            Some(_) => "option",
            None => "not used",
        };
        table.line(format_args!(
            "  {}  {kernel_name:28}  Linux {since:5}  {:19}  {}",
            mark(refusal.is_none()),
            option.unwrap_or_default(),
            style(taken).dim(),
        ));
        if let Some(refusal) = refusal {
            table.paragraph("       ", &refusal.to_string(), &Style::new());
        }
    }
}

fn operations(table: &mut Table, found: &Capabilities) {
    let Some(uring) = &found.uring else { return };
    table.section("opcodes used");
    let (there, lacking): (Vec<_>, Vec<_>) =
        uring.operations.iter().partition(|operation| operation.allowed);
    for (yes, operations) in [(true, there), (false, lacking)] {
        if operations.is_empty() {
            continue;
        }
        let names: Vec<_> = operations.iter().map(|operation| operation.name).collect();
        let mut label = mark(yes);
        for line in textwrap::wrap(&names.join(" "), table.columns - 7) {
            table.line(format_args!("  {label}  {line}"));
            label = "   ".into();
        }
    }
}

fn limits(table: &mut Table, found: &Capabilities) {
    let env = &found.environment;
    table.section("limits");
    table.row("kernel", &env.kernel);
    let disabled = match env.io_uring_disabled {
        None => "not there: the kernel is older than 6.6, or has no io_uring".into(),
        Some(0) => "0: everybody may".into(),
        Some(1) => format!(
            "1: CAP_SYS_ADMIN ({}) or group {} ({})",
            if env.cap_sys_admin { "held" } else { "not held" },
            env.io_uring_group.unwrap_or(-1),
            if env.in_io_uring_group { "a member" } else { "not a member" },
        ),
        Some(value) => format!("{value}: nobody may"),
    };
    table.row("kernel.io_uring_disabled", &disabled);
    let seccomp = match env.seccomp_filter {
        Some(true) => "a filter is on this process",
        Some(false) => "no filter",
        None => "not known: /proc cannot be read",
    };
    table.row("seccomp", seccomp);
    let container = env.container.map_or("none found".into(), |kind| format!("{kind:?}"));
    table.row("container", &container.to_lowercase());
    let modules = match env.security_modules.as_slice() {
        [] => "none listed".into(),
        modules => modules.join(", "),
    };
    table.row("security modules", &modules);
    table.row("memlock (ulimit -l)", &memlock(env, found));
    table.row("nofile (ulimit -n)", &limit(env.nofile, |number| number.to_string()));
}

fn memlock(env: &Environment, found: &Capabilities) -> String {
    let amount = limit(env.memlock_bytes, |bytes| format!("{} KiB", bytes / 1024));
    let charged = match &found.uring {
        None => return amount,
        Some(uring) if !uring.memlock_charged => "rings are not charged to it",
        Some(_) if env.cap_ipc_lock => "rings are not charged to it thanks to CAP_IPC_LOCK",
        Some(_) => "rings of all processes of this user are charged to it",
    };
    format!("{amount}; {charged}")
}

fn limit(limit: Limit, amount: impl Fn(u64) -> String) -> String {
    let amount = |limit: Option<u64>| limit.map_or("unlimited".into(), &amount);
    if limit.soft == limit.hard {
        amount(limit.soft)
    } else {
        format!("{}, can be raised to {}", amount(limit.soft), amount(limit.hard))
    }
}

fn hazards(table: &mut Table, found: &Capabilities) {
    table.section("hazards");
    let summary = format!(
        "{} of {} known faults match kernel {}",
        found.hazards.len(),
        HAZARDS.len(),
        found.environment.kernel
    );
    table.paragraph("  ", &summary, &Style::new());
    for hazard in &found.hazards {
        let name = style(hazard.name);
        let name = if hazard.concerns.is_some() { name.yellow() } else { name };
        table.line(format_args!("  {name} ({})", hazard.affected));
        table.paragraph("     ", &format!("{} [{}]", hazard.symptom, hazard.source), &Style::new());
        let concerns = match hazard.concerns {
            Some(what) => format!("concerns {what}"),
            None => "concerns nothing that twinring uses".into(),
        };
        table.paragraph("     ", &concerns, &Style::new().dim());
    }
}
