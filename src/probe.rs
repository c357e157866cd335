//! `twinring probe`: what this system allows, what it refuses, and the fix.

use crate::output::{self, complain};
use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};
use std::process::ExitCode;
use twinring::config::UringOptions;
use twinring::probe::prices::{PRICES, Price, Prices};
use twinring::probe::{Capabilities, Environment, FeatureReport, Layer, Limit};
use twinring_input::cgroup::CpuQuota;
use twinring_lab::CpuList;

#[derive(Debug, Args)]
pub(crate) struct Probe {
    /// Print one JSON line instead of the table.
    #[arg(long)]
    json: bool,
    /// Also measure this machine's prices of system calls, notifications and wake-ups, in at most 5
    /// seconds.
    #[arg(long)]
    measure: bool,
    /// The CPU that calls and the CPU that is notified, such as `0,1` [default: the first two cores].
    #[arg(long, value_name = "A,B", requires = "measure", value_parser = two_cpus)]
    cpus: Option<[usize; 2]>,
}

fn two_cpus(text: &str) -> Result<[usize; 2], String> {
    let list: CpuList = text.parse()?;
    let wrong = "expected two CPUs, such as 0,1: the first notifies the second";
    list.all().try_into().map_err(|_| wrong.to_owned())
}

pub(crate) fn run(probe: &Probe) -> ExitCode {
    let found = Capabilities::detect();
    let prices = match probe.measure.then(|| Prices::measure(probe.cpus)).transpose() {
        Ok(prices) => prices,
        Err(refusal) => {
            complain(&format!("twinring probe: {refusal}"));
            // The CPUs that were asked for.
            return ExitCode::from(if refusal.layer == Layer::Options { 2 } else { 1 });
        }
    };
    let text = match probe.json {
        true => json_line(&found, prices),
        false => page(&found, prices.as_ref()),
    };
    ExitCode::from(output::show(&text, 0))
}

/// Whether io_uring can be used, as a word and as a sentence.
fn verdict(found: &Capabilities) -> (&'static str, String) {
    let missing: Vec<_> = found.missing().iter().map(|feature| feature.kernel_name).collect();
    match &found.refusal {
        Some(refusal) => {
            ("refused", format!("io_uring: refused by {}: {}", refusal.layer, refusal.fix))
        }
        None if missing.is_empty() => ("best", String::from("io_uring: usable, best set")),
        None => ("degraded", format!("io_uring: usable, without {}", missing.join(", "))),
    }
}

fn json_line(found: &Capabilities, prices: Option<Prices>) -> String {
    #[derive(Serialize)]
    struct Line<'a> {
        event: &'static str,
        schema: &'static str,
        verdict: Value,
        #[serde(flatten)]
        found: &'a Capabilities,
        /// In CPUs.
        cpu_quota: Option<f64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        prices: Option<Prices>,
    }
    let (state, text) = verdict(found);
    let (verdict, cpu_quota) = (json!({"state": state, "text": text}), CpuQuota::read().cpus);
    let line =
        Line { event: "probe", schema: "twinring.probe/1", verdict, found, cpu_quota, prices };
    // Numbers and texts serialise without fail.
    serde_json::to_string(&line).unwrap_or_default() + "\n"
}

fn page(found: &Capabilities, prices: Option<&Prices>) -> String {
    let mut page = Page(String::new());
    page.lines("", &verdict(found).1);
    if let Some(refusal) = &found.refusal {
        page.lines("  ", &refusal.what);
    }
    page.section("engines");
    let io_uring = found.chosen.as_ref().map(describe);
    page.row("io_uring", io_uring.as_deref().unwrap_or("cannot run here: see above"));
    let timeouts = match found.epoll_pwait2 {
        true => "timeouts in nanoseconds (epoll_pwait2)",
        false => "timeouts in milliseconds (no epoll_pwait2: Linux 5.11, or seccomp)",
    };
    page.row("epoll", &format!("edge-triggered, {timeouts}"));
    if let Some(uring) = &found.uring {
        page.section("io_uring features");
        for FeatureReport { kernel_name, since, option, refusal } in &uring.features {
            let option = option.map_or(String::new(), |option| format!(", for --uring {option}"));
            let (mark, why) = match refusal {
                None => ("  yes  ", String::new()),
                Some(refusal) => ("  no   ", format!(": {refusal}")),
            };
            page.lines(mark, &format!("{kernel_name} (Linux {since}{option}){why}"));
        }
    }
    limits(&mut page, found);
    if let Some(prices) = prices {
        price_list(&mut page, prices);
    }
    page.0
}

/// Text of 80 columns.
struct Page(String);

impl Page {
    fn section(&mut self, name: &str) {
        self.0 += &format!("\n{name}\n");
    }

    /// Text broken into lines, the first behind `label` and the others below it.
    fn lines(&mut self, label: &str, text: &str) {
        let lines = twinring_lab::wrapped(text, label, &" ".repeat(label.len()));
        self.0 += &(lines.join("\n") + "\n");
    }

    fn row(&mut self, label: &str, text: &str) {
        self.lines(&format!("  {label:24} "), text);
    }
}

fn describe(features: &UringOptions) -> String {
    let UringOptions { buffer_count, buffer_bytes, sq_entries, cq_entries, .. } = features;
    let mut words = vec![
        String::from(if features.multishot { "multishot" } else { "single shot" }),
        format!("{buffer_count} buffers of {buffer_bytes} bytes"),
        format!("queues of {sq_entries} and {cq_entries}"),
    ];
    words.extend((features.sqpoll_idle_ms > 0).then(|| String::from("a submission thread")));
    words.extend(features.no_iowait.then(|| String::from("waits count as idle")));
    words.join(", ")
}

fn limits(page: &mut Page, found: &Capabilities) {
    let env = &found.environment;
    page.section("limits");
    page.row("kernel", &env.kernel);
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
    page.row("kernel.io_uring_disabled", &disabled);
    let seccomp = match env.seccomp_filter {
        Some(true) => "this process has a filter",
        Some(false) => "no filter",
        None => "unknown: /proc cannot be read",
    };
    page.row("seccomp", seccomp);
    let container = env.container.map_or("none found".into(), |kind| format!("{kind:?}"));
    page.row("container", &container.to_lowercase());
    let modules = match env.security_modules.as_slice() {
        [] => "none listed".into(),
        modules => modules.join(", "),
    };
    page.row("security modules", &modules);
    page.row("memlock (ulimit -l)", &memlock(env, found));
    let quota = CpuQuota::read().cpus.map_or("none".into(), |cpus| {
        format!(
            "{cpus:.2} CPUs: all threads wait once they have used them up, which shows as latency"
        )
    });
    page.row("CPU quota", &quota);
    page.row("nofile (ulimit -n)", &limit(env.nofile, |number| number.to_string()));
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

fn price_list(page: &mut Page, prices: &Prices) {
    page.section("prices in ns: median, 95 % interval");
    // With a decimal digit if the number is small.
    let text = |ns: &f64| if *ns < 100.0 { format!("{ns:.1}") } else { format!("{ns:.0}") };
    for (name, meaning) in PRICES {
        let price = match &prices.list[name] {
            Price::Measured { median, low, high } => {
                format!("{} [{}, {}], {meaning}", text(median), text(low), text(high))
            }
            Price::Unavailable { why } => format!("- ({why})"),
        };
        page.row(name, &price);
    }
    let Prices { cpus, rounds, seconds, .. } = prices;
    let cpus = match cpus[..] {
        [here, there] => format!("CPU {here} calls, CPU {there} is notified"),
        _ => format!("CPU {} only", cpus.first().copied().unwrap_or_default()),
    };
    page.lines("  ", &format!("{cpus}; {rounds} rounds in {seconds:.1} s"));
}
