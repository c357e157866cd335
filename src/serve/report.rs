//! What a server says about itself: ready, statistics, final. `docs/json.md` is the contract.

use serde::Serialize;
use serde_json::Value;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use twinring::{CounterSnapshot, Engine, Features, Handle, Runtime};
use twinring_services::ServiceCounters;

const SCHEMA: &str = "twinring.serve/1";

#[derive(Serialize)]
struct Ready<'a> {
    event: &'static str,
    schema: &'static str,
    service: &'static str,
    listen: &'a [SocketAddr],
    engine: Engine,
    workers: usize,
    pid: u32,
    features: &'a Features,
    why_not: Option<&'a str>,
}

#[derive(Serialize)]
struct Statistics<'a> {
    event: &'static str,
    schema: &'static str,
    service: &'static str,
    engine: Engine,
    uptime_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    service_counters: ServiceCounters,
    runtime_counters: CounterSnapshot,
}

/// What was said so far. Statistics come only between the ready and the final line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Starting,
    Ready,
    Ended,
}

/// Prints the lines of one running service.
pub(super) struct Reporter {
    service: &'static str,
    json: bool,
    features: Features,
    why_not: Option<String>,
    workers: usize,
    addresses: Vec<SocketAddr>,
    started: Instant,
    handle: Handle,
    service_counters: Box<dyn Fn() -> ServiceCounters + Send + Sync>,
    stage: Mutex<Stage>,
}

impl Reporter {
    pub(super) fn new(
        service: &'static str,
        json: bool,
        runtime: &Runtime,
        addresses: Vec<SocketAddr>,
        service_counters: Box<dyn Fn() -> ServiceCounters + Send + Sync>,
    ) -> Reporter {
        Reporter {
            service,
            json,
            features: runtime.features().clone(),
            why_not: runtime.why_not().map(str::to_owned),
            workers: runtime.workers(),
            addresses,
            started: Instant::now(),
            handle: runtime.handle(),
            service_counters,
            stage: Mutex::new(Stage::Starting),
        }
    }

    /// The one line on standard output that says the service can be used.
    pub(super) fn ready(&self) {
        let mut stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        *stage = Stage::Ready;
        let ready = Ready {
            event: "ready",
            schema: SCHEMA,
            service: self.service,
            listen: &self.addresses,
            engine: self.features.engine(),
            workers: self.workers,
            pid: std::process::id(),
            features: &self.features,
            why_not: self.why_not.as_deref(),
        };
        if self.json {
            return print_json(&ready);
        }
        let addresses: Vec<String> = self.addresses.iter().map(SocketAddr::to_string).collect();
        let plural = if self.workers == 1 { "" } else { "s" };
        let why_not = self.why_not.as_ref().map(|why| format!("; io_uring not used: {why}"));
        print_line(&format!(
            "ready: {} on {}, engine {}, {} worker{plural} ({}){}",
            self.service,
            addresses.join(", "),
            self.features.engine(),
            self.workers,
            as_text(&self.features),
            why_not.unwrap_or_default(),
        ));
    }

    /// Prints the counters every `period` until the process ends.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(super) fn print_every(self: &Arc<Self>, period: Duration) -> io::Result<()> {
        let reporter = Arc::clone(self);
        std::thread::Builder::new().name("stats".to_owned()).spawn(move || {
            loop {
                std::thread::sleep(period);
                reporter.statistics("stats", None, Stage::Ready);
            }
        })?;
        Ok(())
    }

    /// Prints the final counters, if the service was ever ready.
    pub(super) fn last(&self, reason: &str) {
        self.statistics("final", Some(reason), Stage::Ended);
    }

    fn statistics(&self, event: &'static str, reason: Option<&str>, next: Stage) {
        let mut stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        if *stage != Stage::Ready {
            return;
        }
        *stage = next;
        let statistics = Statistics {
            event,
            schema: SCHEMA,
            service: self.service,
            engine: self.features.engine(),
            uptime_s: (self.started.elapsed().as_secs_f64() * 100.0).round() / 100.0,
            reason,
            service_counters: (self.service_counters)(),
            runtime_counters: self.handle.counters(),
        };
        if self.json {
            return print_json(&statistics);
        }
        let reason = reason.map(|reason| format!(" reason={reason:?}")).unwrap_or_default();
        complain(&format!(
            "{event}: uptime_s={:.2}{reason} {} {}",
            statistics.uptime_s,
            as_text(&statistics.service_counters),
            as_text(&statistics.runtime_counters),
        ));
    }
}

/// `key=value` pairs of what would be a JSON object; those of an inner one after its name.
fn as_text(object: &impl Serialize) -> String {
    let mut pairs = Vec::new();
    if let Ok(Value::Object(fields)) = serde_json::to_value(object) {
        for (key, value) in fields {
            match value {
                Value::Object(inner) => {
                    pairs.extend(inner.iter().map(|(name, value)| format!("{key}.{name}={value}")));
                }
                Value::String(text) => pairs.push(format!("{key}={text}")),
                Value::Number(number) if number.is_f64() => {
                    pairs.push(format!("{key}={:.2}", number.as_f64().unwrap_or(0.0)));
                }
                value => pairs.push(format!("{key}={value}")),
            }
        }
    }
    pairs.join(" ")
}

fn print_json(line: &impl Serialize) {
    match serde_json::to_string(line) {
        Ok(text) => print_line(&text),
        Err(error) => complain(&format!("twinring: cannot print a line of JSON: {error}")),
    }
}

/// Prints to standard output at once. A reader that went away does not end the service.
fn print_line(text: &str) {
    let mut out = io::stdout().lock();
    let _reader_is_gone = writeln!(out, "{text}").and_then(|()| out.flush());
}

/// Prints to standard error. As above: eprintln! would panic when its reader is gone.
pub(super) fn complain(text: &str) {
    let _reader_is_gone = writeln!(io::stderr().lock(), "{text}");
}
