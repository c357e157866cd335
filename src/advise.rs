//! `twinring advise`: the page for the one who decides. It is `compare` with what the probe says of this machine.

use crate::compare::{Load, Workload, measure, service};
use crate::lab::{finish, tell};
use clap::Args;
use std::process::ExitCode;
use twinring::probe::Capabilities;
use twinring_lab::{Experiment, LabError, Outcome, Protocol};

/// Options of `advise`.
#[derive(Debug, Args)]
pub(crate) struct Advise {
    /// What your server is most like: echo, http or udp.
    #[arg(default_value = "echo", value_parser = ["echo", "http", "udp"])]
    service: String,
    #[command(flatten)]
    workload: Workload,
    /// Requests per second of one worker; by default a quarter of what it can answer, and as many as it can.
    #[arg(short, long, value_name = "R", value_parser = crate::values::count)]
    rate: Option<u32>,
}

pub(crate) fn run(options: &Advise) -> ExitCode {
    finish("advise", advise(options))
}

fn advise(options: &Advise) -> Result<u8, LabError> {
    let protocol = service(&options.service).unwrap_or(Protocol::Tcp);
    // Wrong words are refused first, wherever this runs.
    let experiment = experiment(options, protocol)?;
    let found = Capabilities::detect();
    if let Some(refusal) = &found.refusal {
        let page = match options.workload.run.json {
            true => format!(
                "{}\n",
                serde_json::json!({"event": "result", "use": "epoll", "refused": refusal.what})
            ),
            false => format!(
                "io_uring cannot run here: {}.\nTRY    {}\nUSE    epoll\n",
                refusal.what, refusal.fix
            ),
        };
        return Ok(tell(&page, 0));
    }
    let outcome = measure(experiment, &options.workload)?;
    let page = match options.workload.run.json {
        true => format!("{}\n", twinring_lab::json_line(&outcome)),
        false => page(&outcome, protocol, &found),
    };
    Ok(tell(&page, outcome.exit_code()))
}

fn experiment(options: &Advise, protocol: Protocol) -> Result<Experiment, LabError> {
    // Most programs use epoll without gathering their sends. Datagrams are never gathered.
    let mut subjects =
        ["io_uring", "epoll", "at-once=epoll:gather=off"].map(str::to_owned).to_vec();
    subjects.truncate(if protocol == Protocol::Udp { 2 } else { 3 });
    let loads = match (options.rate, protocol) {
        (Some(rate), _) => vec![Load::Rate(rate)],
        (None, Protocol::Udp) => Vec::new(),
        (None, _) => vec![Load::Percent(25), Load::Max],
    };
    options.workload.experiment("advise", protocol, &subjects, &loads, None)
}

/// The page of the comparison, with what the probe says before its answer.
fn page(outcome: &Outcome, protocol: Protocol, found: &Capabilities) -> String {
    let page = outcome.page();
    let at = page.find("LIMITS").or_else(|| page.find("NEXT")).unwrap_or(0);
    let (chart, rest) = page.split_at(at);
    let service = match protocol {
        Protocol::Tcp => "echo",
        Protocol::Udp => "udp",
        Protocol::Http => "http --root DIR",
    };
    let mut facts = prices(outcome);
    facts.extend(before(found).into_iter().map(|fact| format!("BEFORE {fact}\n")));
    facts.push(format!("TRY    twinring serve {service} --listen ADDRESS --engine both\n"));
    let words = outcome.bundle.command.iter().skip(1).map(String::as_str);
    if let Ok(words) = shlex::try_join(words) {
        facts.push(format!("COPY   twinring {words}\n"));
    }
    format!("{chart}{}{rest}", facts.concat())
}

/// What each server costs in cores, and how long a request takes: a line for each cell, three at most.
fn prices(outcome: &Outcome) -> Vec<String> {
    let mut lines = Vec::new();
    let cells = outcome.bundle.summary.iter().flat_map(|summary| &summary.cells);
    for cell in cells.take(3) {
        let each = cell.subjects.iter().filter_map(|subject| {
            let figures = subject.figures.as_ref()?;
            let (cpu_ns, p99_us) = (figures.get("server_cpu_ns")?, figures.get("p99_us")?);
            let (cores, p99_ms) = (cpu_ns * 1e5 / 1e9, p99_us / 1e3);
            Some(format!("{} {cores:.2}, {p99_ms:.2}", subject.name))
        });
        let each: Vec<String> = each.collect();
        let load = if cell.is_saturated() { "full" } else { "part" };
        if !each.is_empty() {
            lines.push(format!("       {load} {}: {}\n", cell.cell.net, each.join("; ")));
        }
    }
    if !lines.is_empty() {
        lines.insert(0, "CORES  for 100,000/s, and p99 in ms\n".to_owned());
    }
    lines
}

/// What has to be done before io_uring can be used where it is deployed: the words of `twinring probe`, by which it
/// can be checked.
fn before(found: &Capabilities) -> Vec<String> {
    let mut facts = Vec::new();
    if found.environment.container.is_none() {
        facts.push("Docker forbids io_uring by default: twinring seccomp oci".to_owned());
    }
    let missing: Vec<&str> = found.missing().iter().map(|feature| feature.kernel_name).collect();
    if !missing.is_empty() {
        facts.push(format!("this kernel lacks {}: twinring probe", missing.join(", ")));
    }
    facts
}
