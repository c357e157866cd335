//! The counters as Prometheus reads them: its text format, version 0.0.4.
//!
//! Counters are per worker; durations are summed over the workers, by host.

use super::admin::Pages;
use super::counters::Shown;
use super::durations::{self, BOUNDS_US, Summed};
use super::observer::Observer;
use crate::server::{Server, Service, SharedStage, Stage};
use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};
use nix::sys::time::TimeValLike;
use serde::Serialize;
use serde_json::Value;
use std::fmt::{Display, Write};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use twinring::Handle;

/// The media type of the text.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What metrics of several counters show.
const HELP: [(&str, &str); 6] = [
    ("cache_lookups_total", "Files looked for in the cache."),
    ("compressions_total", "Files compressed on the fly, each time for one coding, by outcome."),
    ("connections_ended_early_total", "Connections that neither side ended in order."),
    ("connections_refused_total", "Connections closed at once, by the limit they met."),
    ("responses_total", "Answers, by the class of their status."),
    ("tls_handshakes_total", "TLS handshakes that were completed."),
];

/// A text of metrics.
#[derive(Debug, Default)]
pub struct Exposition(String);

impl Exposition {
    /// Begins a family of series.
    pub fn family(&mut self, name: &str, help: &str, kind: &str) {
        // Writing into memory does not fail; the same holds below.
        let _written = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    /// Adds a sample to the family of that name. The labels contain no characters that need
    /// escaping.
    pub fn sample(&mut self, name: &str, labels: &[&str], value: impl Display) {
        let labels: Vec<&str> = labels.iter().copied().filter(|label| !label.is_empty()).collect();
        let _written = match labels.is_empty() {
            true => writeln!(self.0, "{name} {value}"),
            false => writeln!(self.0, "{name}{{{}}} {value}", labels.join(",")),
        };
    }

    /// The text so far.
    pub fn into_text(self) -> String {
        self.0
    }

    /// A family of one series without labels.
    pub fn single(&mut self, name: &str, help: &str, kind: &str, value: impl Display) {
        self.family(name, help, kind);
        self.sample(name, &[], value);
    }
}

/// Renders all current metrics.
pub(super) fn render(observer: &Observer) -> String {
    let mut text = Exposition::default();
    append_build(&mut text, &observer.engine);
    let ready = u8::from(observer.is_ready());
    text.single("twinring_http_ready", "1 while new connections are wanted.", "gauge", ready);
    append_counters(&mut text, observer);
    if let Some(log) = &observer.log {
        let (name, lines) = ("twinring_http_access_log_lines_total", log.counts());
        text.family(name, "Lines of the access log, by outcome.", "counter");
        text.sample(name, &["result=\"written\""], lines.written);
        text.sample(name, &["result=\"dropped\""], lines.dropped);
    }
    let (name, [done, refused]) = ("twinring_http_reloads_total", observer.settings.reloads());
    text.family(name, "Reloads of the configuration, by outcome.", "counter");
    text.sample(name, &["result=\"done\""], done);
    text.sample(name, &["result=\"refused\""], refused);
    if !observer.durations.is_empty() {
        append_durations(&mut text, observer);
    }
    append_runtime(&mut text, &observer.handle);
    append_process(&mut text, observer.started);
    text.0
}

fn append_counters(text: &mut Exposition, observer: &Observer) {
    let workers: Vec<Vec<Shown>> = observer.workers.iter().map(|worker| worker.metrics()).collect();
    let Some(first) = workers.first() else { return };
    for metric in first.chunk_by(|one, next| one.metric == next.metric) {
        let Shown { metric, help, .. } = &metric[0];
        let of_several = HELP.iter().find(|(name, _)| name == metric);
        let help = of_several.map_or(help.trim_start(), |(_, help)| help);
        let name = format!("twinring_http_{metric}");
        text.family(&name, help, if metric.ends_with("_total") { "counter" } else { "gauge" });
        for (number, worker) in workers.iter().enumerate() {
            let number = format!("worker=\"{number}\"");
            for Shown { label, value, .. } in worker.iter().filter(|shown| shown.metric == *metric)
            {
                text.sample(&name, &[&number, label], value);
            }
        }
    }
}

fn append_durations(text: &mut Exposition, observer: &Observer) {
    const NAME: &str = "twinring_http_request_duration_seconds";
    let help = "From the end of a request's head to when its answer was handed over for sending.";
    text.family(NAME, help, "histogram");
    let (bucket, in_sum, count) =
        (format!("{NAME}_bucket"), format!("{NAME}_sum"), format!("{NAME}_count"));
    for Summed { host, class, buckets, sum_us } in
        durations::sum(observer.durations.iter().map(|worker| &**worker))
    {
        let (host, class) = (format!("host=\"{host}\""), format!("class=\"{class}\""));
        let mut below = 0;
        for (number, in_bucket) in buckets.into_iter().enumerate() {
            below += in_bucket;
            let bound = BOUNDS_US.get(number).map(|us| (*us as f64 / 1e6).to_string());
            let bound = format!("le=\"{}\"", bound.as_deref().unwrap_or("+Inf"));
            text.sample(&bucket, &[&host, &class, &bound], below);
        }
        text.sample(&in_sum, &[&host, &class], sum_us as f64 / 1e6);
        text.sample(&count, &[&host, &class], below);
    }
}

/// Shows the metrics of a service that has no others than its counters.
pub struct PlainObserver<C> {
    name: &'static str,
    counters: Box<dyn Fn() -> C + Send + Sync>,
    engine: String,
    handle: Handle,
    stage: Arc<SharedStage>,
    started: SystemTime,
}

impl<C> std::fmt::Debug for PlainObserver<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlainObserver").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<S: Service> Server<S> {
    /// Shows the metrics of the service, under its name; `engine` is its engine.
    pub fn plain_observer<C: Serialize + 'static>(
        &self,
        name: &'static str,
        engine: impl Display,
        counters: impl Fn() -> C + Send + Sync + 'static,
    ) -> PlainObserver<C> {
        PlainObserver {
            name,
            counters: Box::new(counters),
            engine: engine.to_string(),
            handle: self.handle().clone(),
            stage: Arc::clone(&self.stage),
            started: SystemTime::now(),
        }
    }
}

impl<C: Serialize + 'static> Pages for PlainObserver<C> {
    fn stage(&self) -> Stage {
        self.stage.get()
    }

    fn metrics(&self) -> String {
        let mut text = Exposition::default();
        append_build(&mut text, &self.engine);
        // Numbers serialise without fail.
        let counters = serde_json::to_value((self.counters)()).unwrap_or_default();
        for (name, value) in counters.as_object().into_iter().flatten() {
            let (prefix, service) = (format!("twinring_{}_{name}", self.name), self.name);
            let what = format!("{name} of the service {service}, over all workers.");
            match value {
                // These go up and down.
                Value::Number(number) if ["open", "waiting"].contains(&name.as_str()) => {
                    text.single(&prefix, &format!("The gauge {what}"), "gauge", number);
                }
                Value::Number(number) => {
                    let prefix = format!("{prefix}_total");
                    text.single(&prefix, &format!("The counter {what}"), "counter", number);
                }
                Value::Object(parts) => {
                    let prefix = format!("{prefix}_total");
                    text.family(&prefix, &format!("The counters {what}"), "counter");
                    for (part, number) in parts {
                        text.sample(&prefix, &[&format!("kind=\"{part}\"")], number);
                    }
                }
                _ => {}
            }
        }
        append_runtime(&mut text, &self.handle);
        append_process(&mut text, self.started);
        text.0
    }
}

fn append_build(text: &mut Exposition, engine: &str) {
    text.family("twinring_build_info", "The version that runs, and its engine.", "gauge");
    let version = format!("version=\"{}\"", env!("CARGO_PKG_VERSION"));
    text.sample("twinring_build_info", &[&version, &format!("engine=\"{engine}\"")], 1);
}

/// Counters of the runtime, under the names that the statistics of the command use.
fn append_runtime(text: &mut Exposition, handle: &Handle) {
    // Numbers serialise without fail.
    let counters = serde_json::to_value(handle.counters()).unwrap_or_default();
    for (name, value) in counters.as_object().into_iter().flatten() {
        // The other fields are derived from these.
        let Some(value) = value.as_u64() else { continue };
        if name.ends_with("_in_use") {
            let help = format!("The gauge {name} of the runtime, over all workers.");
            text.single(&format!("twinring_runtime_{name}"), &help, "gauge", value);
        } else {
            let help = format!("The counter {name} of the runtime, over all workers.");
            text.single(&format!("twinring_runtime_{name}_total"), &help, "counter", value);
        }
    }
    if let Some(Value::Object(overrun)) = counters.get("wait_overrun_us") {
        let name = "twinring_runtime_wait_overrun_max_seconds";
        let max_us = overrun.get("max").and_then(Value::as_u64).unwrap_or(0);
        let help = "The latest that a wait with a deadline ended.";
        text.single(name, help, "gauge", max_us as f64 / 1e6);
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
