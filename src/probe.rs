//! `twinring probe`: what this system allows, what it refuses, and the fix.

use crate::output::{self, complain};
use clap::Args;
use console::{Style, Term, style};
use serde::Serialize;
use std::fmt::Display;
use std::process::ExitCode;
use twinring::config::UringFeatures;
use twinring::probe::prices::{Price, Prices};
use twinring::probe::{Capabilities, Environment, FeatureReport, Layer, Limit};
use twinring_input::cgroup::CpuQuota;

/// Widest table; a wider terminal is not filled.
const COLUMNS_MAX: usize = 100;
/// Narrowest table; a narrower terminal wraps by itself.
const COLUMNS_MIN: usize = 60;
const USAGE: u8 = 2;
/// Columns before the text of a row.
const LABEL_COLUMNS: usize = 24;

#[derive(Debug, Args)]
pub(crate) struct Probe {
    /// Print one JSON line instead of the table.
    #[arg(long)]
    json: bool,
    /// Also measure this machine's prices of system calls, notifications, wake-ups and copies, in at
    /// most 5 seconds.
    #[arg(long)]
    measure: bool,
    /// The CPU that calls and the CPU that is notified, such as `0,1` [default: the first two cores].
    #[arg(long, value_name = "A,B", requires = "measure", value_parser = two_cpus)]
    cpus: Option<[usize; 2]>,
}

fn two_cpus(text: &str) -> Result<[usize; 2], String> {
    /// The kernel's own limit (CONFIG_NR_CPUS).
    const CPU_MAX: usize = 8192;
    let number = |text: &str| text.trim().parse().ok().filter(|cpu| *cpu < CPU_MAX);
    match text.split_once(',').map(|(one, other)| (number(one), number(other))) {
        Some((Some(one), Some(other))) => Ok([one, other]),
        _ => Err("expected two CPUs, such as 0,1: the first notifies the second".to_owned()),
    }
}

pub(crate) fn run(probe: &Probe) -> ExitCode {
    let found = Capabilities::detect();
    let prices = match probe.measure.then(|| Prices::measure(probe.cpus)) {
        Some(Err(refusal)) => {
            complain(&format!("twinring probe: {refusal}"));
            let asked = refusal.layer == Layer::Options;
            return if asked { ExitCode::from(USAGE) } else { ExitCode::FAILURE };
        }
        Some(Ok(prices)) => Some(prices),
        None => None,
    };
    let printed = match probe.json {
        true => json_line(&found, prices),
        false => Ok(page(&found, prices.as_ref())),
    };
    match printed.and_then(|text| output::print(&text)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            complain(&format!("twinring probe: {problem}"));
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

fn json_line(found: &Capabilities, prices: Option<Prices>) -> Result<String, String> {
    #[derive(Serialize)]
    struct Line<'a> {
        event: &'static str,
        schema: &'static str,
        verdict: Verdict,
        #[serde(flatten)]
        found: &'a Capabilities,
        /// In CPUs.
        cpu_quota: Option<f64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        prices: Option<Prices>,
    }
    let verdict = Verdict::of(found);
    let cpu_quota = CpuQuota::read().cpus;
    let line =
        Line { event: "probe", schema: "twinring.probe/1", verdict, found, cpu_quota, prices };
    let line = serde_json::to_string(&line).map_err(|error| error.to_string())?;
    Ok(line + "\n")
}

fn page(found: &Capabilities, prices: Option<&Prices>) -> String {
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
    if let Some(prices) = prices {
        price_list(&mut table, prices);
    }
    // Colours are decided by console: a terminal, and not NO_COLOR.
    table.text
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

pub(crate) fn describe(features: &UringFeatures) -> String {
    let UringFeatures { buffer_count, buffer_bytes, sq_entries, cq_entries, .. } = features;
    let mut words = vec![
        String::from(if features.multishot { "multishot" } else { "single shot" }),
        format!("{buffer_count} buffers of {buffer_bytes} bytes"),
        format!("queues of {sq_entries} and {cq_entries}"),
    ];
    if features.sqpoll_idle_ms > 0 {
        words.push(String::from("a submission thread"));
    }
    if features.no_iowait {
        words.push(String::from("waits count as idle"));
    }
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
    table.paragraph("  ", &uring.operations.join(" "), &Style::new());
}

fn limits(table: &mut Table, found: &Capabilities) {
    let env = &found.environment;
    table.section("limits");
    table.row("kernel", &env.kernel);
    let disabled = match env.io_uring_disabled {
        None => "absent: the kernel is older than 6.6, or has no io_uring".into(),
        Some(0) => "0: all processes may".into(),
        Some(1) => format!(
            "1: CAP_SYS_ADMIN ({}) or group {} ({})",
            if env.cap_sys_admin { "held" } else { "not held" },
            env.io_uring_group.unwrap_or(-1),
            if env.in_io_uring_group { "a member" } else { "not a member" },
        ),
        Some(value) => format!("{value}: no process may"),
    };
    table.row("kernel.io_uring_disabled", &disabled);
    let seccomp = match env.seccomp_filter {
        Some(true) => "this process has a filter",
        Some(false) => "no filter",
        None => "unknown: /proc cannot be read",
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
    let quota = CpuQuota::read().cpus.map_or("none".into(), |cpus| {
        format!(
            "{cpus:.2} CPUs: all threads wait once they have used them up, which shows as latency"
        )
    });
    table.row("CPU quota", &quota);
    table.row("nofile (ulimit -n)", &limit(env.nofile, |number| number.to_string()));
}

fn memlock(env: &Environment, found: &Capabilities) -> String {
    let amount = limit(env.memlock_bytes, |bytes| format!("{} KiB", bytes / 1024));
    let charged = match &found.uring {
        None => return amount,
        Some(uring) if !uring.memlock_charged => "rings are not charged to it",
        Some(_) if env.cap_ipc_lock => "rings are not charged to it because of CAP_IPC_LOCK",
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

/// Columns of a price's name, and of its median and interval.
const NAME_COLUMNS: usize = 29;
const PRICE_COLUMNS: usize = 8;
const INTERVAL_COLUMNS: usize = 16;

fn price_list(table: &mut Table, prices: &Prices) {
    table.section("prices in ns: median, 95 % interval");
    let room = table.columns.saturating_sub(NAME_COLUMNS + PRICE_COLUMNS + INTERVAL_COLUMNS + 6);
    for (name, meaning, price) in prices.list() {
        match price {
            Price::Measured { median, low, high } => {
                let interval = format!("[{}, {}]", nanoseconds(*low), nanoseconds(*high));
                let figures = format!(
                    "  {name:NAME_COLUMNS$} {:>PRICE_COLUMNS$} {interval:>INTERVAL_COLUMNS$}",
                    nanoseconds(*median)
                );
                match meaning.len() <= room {
                    true => table.line(format_args!("{figures}  {meaning}")),
                    false => {
                        table.line(figures);
                        table.paragraph("     ", meaning, &Style::new().dim());
                    }
                }
            }
            Price::Unavailable { why } => {
                table.line(format_args!("  {name:NAME_COLUMNS$} {:>PRICE_COLUMNS$}", "-"));
                table.paragraph("     ", why, &Style::new());
            }
        }
    }
    table.paragraph("  ", &conditions(prices), &Style::new().dim());
}

/// With a decimal digit if the number is small.
fn nanoseconds(ns: f64) -> String {
    if ns < 100.0 { format!("{ns:.1}") } else { format!("{ns:.0}") }
}

fn conditions(prices: &Prices) -> String {
    let Prices { cpus, rounds, seconds, .. } = prices;
    let cpus = match cpus[..] {
        [here, there] => format!("CPU {here} calls, CPU {there} is notified"),
        _ => format!("CPU {} only", cpus.first().copied().unwrap_or_default()),
    };
    format!("{cpus}; {rounds} rounds in {seconds:.1} s")
}
