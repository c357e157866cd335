//! The counters as Prometheus reads them: its text format, version 0.0.4.
//!
//! Counters are per worker; durations are summed over the workers, by host.

use super::counters::{BOUNDS_US, METRICS, SHOWN, WorkerDurations};
use super::worker::Http;
use crate::server::{Server, Service, ServiceCounters, Stage, difference, sum};
use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};
use nix::sys::time::TimeValLike;
use serde::Serialize;
use serde_json::Value;
use std::fmt::{Display, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use std::time::{SystemTime, UNIX_EPOCH};
use twinring::Handle;

pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A text of metrics.
#[derive(Debug, Default)]
pub struct Exposition(String);

impl Exposition {
    fn family(&mut self, name: &str, help: &str, kind: &str) {
        // Writing into memory does not fail; the same holds below.
        let _written = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    /// Adds a sample to the family of that name. The labels contain no characters that need
    /// escaping.
    fn sample(&mut self, name: &str, labels: &[&str], value: impl Display) {
        let labels: Vec<&str> = labels.iter().copied().filter(|label| !label.is_empty()).collect();
        let _written = match labels.is_empty() {
            true => writeln!(self.0, "{name} {value}"),
            false => writeln!(self.0, "{name}{{{}}} {value}", labels.join(",")),
        };
    }

    fn single(&mut self, name: &str, help: &str, kind: &str, value: impl Display) {
        self.family(name, help, kind);
        self.sample(name, &[], value);
    }
}

/// Shows the metrics and the stage of a service, and outlives it.
#[derive(Clone)]
pub struct Observer {
    append: Arc<dyn Fn(&mut Exposition) + Send + Sync>,
    name: &'static str,
    engine: String,
    handle: Handle,
    stage: Arc<Stage>,
    started: SystemTime,
}

impl<S: Service> Server<S> {
    /// Shows the metrics of the service, of the runtime and of the process; `engine` is that of the service.
    pub fn observer(&self, engine: impl Display) -> Observer {
        let service = self.service.clone();
        Observer {
            append: Arc::new(move |text: &mut Exposition| service.append_metrics(text)),
            name: S::NAME,
            engine: engine.to_string(),
            handle: self.handle.clone(),
            stage: Arc::clone(&self.stage),
            started: SystemTime::now(),
        }
    }
}

impl Observer {
    pub(super) fn is_ready(&self) -> bool {
        self.stage.is_ready.load(Acquire) && !self.is_draining()
    }

    pub(super) fn is_draining(&self) -> bool {
        self.stage.is_draining.load(Acquire)
    }

    pub(super) fn metrics(&self) -> String {
        let mut text = Exposition::default();
        text.family("twinring_build_info", "The version that runs, and its engine.", "gauge");
        let version = format!("version=\"{}\"", env!("CARGO_PKG_VERSION"));
        let engine = format!("engine=\"{}\"", self.engine);
        text.sample("twinring_build_info", &[&version, &engine], 1);
        let ready = u8::from(self.is_ready());
        let help = "1 while new connections are wanted.";
        text.single(&format!("twinring_{}_ready", self.name), help, "gauge", ready);
        (self.append)(&mut text);
        append_plain(&mut text, "runtime", &self.handle.counters());
        append_process(&mut text, self.started);
        text.0
    }
}

pub(super) fn append_http(text: &mut Exposition, http: &Http) {
    append_counters(text, http.counters());
    let name = "twinring_http_reloads_total";
    text.family(name, "Reloads of the configuration, by outcome.", "counter");
    for (result, count) in ["done", "refused"].into_iter().zip(http.settings.reloads()) {
        text.sample(name, &[&format!("result=\"{result}\"")], count);
    }
    if !http.durations.is_empty() {
        append_durations(text, &http.durations);
    }
}

fn append_counters(text: &mut Exposition, workers: Vec<ServiceCounters>) {
    let counted = workers.into_iter().map(|worker| {
        let mut counters = sum([worker]);
        for (rest, all, some) in [
            ("tls_full", "tls_handshakes", "tls_resumed"),
            ("compressions_done", "compressions", "compression_failures"),
        ] {
            counters.insert(rest.to_owned(), difference(&counters, all, some).into());
        }
        counters
    });
    let counted: Vec<ServiceCounters> = counted.collect();
    for (metric, help) in METRICS {
        let name = format!("twinring_http_{metric}");
        text.family(&name, help, if metric.ends_with("_total") { "counter" } else { "gauge" });
        for (number, worker) in counted.iter().enumerate() {
            let number = format!("worker=\"{number}\"");
            for (counter, _, label) in SHOWN.iter().filter(|shown| shown.1 == *metric) {
                text.sample(&name, &[&number, label], &worker[*counter]);
            }
        }
    }
}

fn append_durations(text: &mut Exposition, workers: &[Arc<WorkerDurations>]) {
    const NAME: &str = "twinring_http_request_duration_seconds";
    let help = "From a request's first byte (HTTP/2: last of its head) to when its answer was handed over.";
    text.family(NAME, help, "histogram");
    for ((host, class), [buckets @ .., sum_us]) in WorkerDurations::sum(workers) {
        let (host, class) = (format!("host=\"{host}\""), format!("class=\"{class}\""));
        let mut below = 0;
        for (number, in_bucket) in buckets.into_iter().enumerate() {
            below += in_bucket;
            let bound = BOUNDS_US.get(number).map(|us| (*us as f64 / 1e6).to_string());
            let bound = format!("le=\"{}\"", bound.as_deref().unwrap_or("+Inf"));
            text.sample(&format!("{NAME}_bucket"), &[&host, &class, &bound], below);
        }
        text.sample(&format!("{NAME}_sum"), &[&host, &class], sum_us as f64 / 1e6);
        text.sample(&format!("{NAME}_count"), &[&host, &class], below);
    }
}

/// Adds counters under the names that the statistics of the command use.
pub(crate) fn append_plain(text: &mut Exposition, whose: &str, counters: &impl Serialize) {
    // Numbers serialise without fail.
    let counters = serde_json::to_value(counters).unwrap_or_default();
    for (name, value) in counters.as_object().into_iter().flatten() {
        let is_gauge = ["open", "waiting"].contains(&&**name) || name.ends_with("_in_use");
        let (kind, suffix) = if is_gauge { ("gauge", "") } else { ("counter", "_total") };
        let help = format!("{name} of {whose}, over all workers.");
        let full = format!("twinring_{whose}_{name}{suffix}");
        match value {
            Value::Number(number) => text.single(&full, &help, kind, number),
            Value::Object(parts) => {
                text.family(&full, &help, kind);
                for (part, number) in parts {
                    text.sample(&full, &[&format!("kind=\"{part}\"")], number);
                }
            }
            _ => {}
        }
    }
}

/// The usual process metrics of Prometheus. Values that the system does not provide are left out.
fn append_process(text: &mut Exposition, started: SystemTime) {
    if let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) {
        let us = (usage.user_time() + usage.system_time()).num_microseconds();
        let help = "CPU time of the process, user and system.";
        text.single("process_cpu_seconds_total", help, "counter", us as f64 / 1e6);
    }
    if let Ok(status) = std::fs::read_to_string("/proc/self/status")
        && let Some(line) = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))
        && let Some(kib) = line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok())
    {
        let help = "Memory of the process that is resident.";
        text.single("process_resident_memory_bytes", help, "gauge", kib * 1024);
    }
    if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
        // One of the descriptors is the directory.
        let open = open.count().saturating_sub(1);
        text.single("process_open_fds", "Open descriptors.", "gauge", open);
    }
    if let Ok((soft, _)) = getrlimit(Resource::RLIMIT_NOFILE) {
        text.single("process_max_fds", "Descriptors that may be open.", "gauge", soft);
    }
    let started = started.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let help = "When the service was bound, in seconds since 1970.";
    text.single("process_start_time_seconds", help, "gauge", started);
}
