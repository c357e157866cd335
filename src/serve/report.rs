//! The report lines of a server: ready, statistics, final. `docs/json.md` is the contract.

use super::both::Both;
use super::sandbox::parts::Report;
use crate::output::{complain, print_line};
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use twinring::{Handle, Runtime, config::Features};
use twinring_input::quantity::Count;
use twinring_services::http::text::optional;
use twinring_wire::Fields;
use twinring_wire::serve::{Ready, SCHEMA, Statistics};

#[derive(Clone, Copy, Debug, Default, Args, Deserialize)]
#[command(next_help_heading = "Output")]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct OutputArgs {
    /// Print one line of counters every SECS seconds.
    #[arg(long, value_name = "SECS")]
    #[serde(deserialize_with = "optional")]
    pub(super) stats: Option<Count<1, 86_400>>,
    /// Print JSON lines on standard output.
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) const LAST_WORDS_MAX: Duration = Duration::from_secs(2);

/// A service as reports see it.
pub(super) struct Subject {
    pub(super) name: &'static str,
    ready: Ready,
    pub(super) counters: Arc<dyn Fn() -> Fields + Send + Sync>,
    details_text: String,
}

impl Subject {
    pub(super) fn new<C: Serialize>(
        name: &'static str,
        addresses: &[SocketAddr],
        counters: impl Fn() -> C + Send + Sync + 'static,
    ) -> Subject {
        let ready = Ready {
            event: "ready".to_owned(),
            schema: SCHEMA.to_owned(),
            service: name.to_owned(),
            listen: addresses.to_vec(),
            pid: std::process::id(),
            ..Ready::default()
        };
        let counters = Arc::new(move || Fields::of(&counters()));
        Subject { name, ready, counters, details_text: String::new() }
    }

    /// Adds details to the ready line: as JSON in the field `key`, and as text.
    pub(super) fn with_details(
        mut self,
        key: &str,
        details: &impl Serialize,
        text: String,
    ) -> Subject {
        match serde_json::to_value(details) {
            Ok(details) => drop(self.ready.details.insert(key.to_owned(), details)),
            Err(error) => complain(&format!("twinring: cannot print the {key} details: {error}")),
        }
        if !self.details_text.is_empty() {
            self.details_text.push_str("; ");
        }
        self.details_text.push_str(&text);
        self
    }
}

/// The lines printed so far. Statistics come only between the ready and the final line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Starting,
    Ready,
    Ended,
}

pub(super) struct Reporter {
    subject: Subject,
    json: bool,
    started: Instant,
    handle: Handle,
    stage: Mutex<Stage>,
    both: Option<Both>,
}

impl Reporter {
    pub(super) fn new(
        mut subject: Subject,
        json: bool,
        runtime: &Runtime,
        both: Option<Both>,
    ) -> Reporter {
        subject.ready.engine = engine_name(runtime.features(), both.is_some());
        subject.ready.workers = runtime.workers();
        subject.ready.features = Fields::of(runtime.features());
        subject.ready.fallback_reason = runtime.fallback_reason().map(str::to_owned);
        let (started, handle) = (Instant::now(), runtime.handle());
        let stage = Mutex::new(Stage::Starting);
        Reporter { subject, json, started, handle, stage, both }
    }

    pub(super) fn ready(&self, sandbox: &Report) {
        let mut stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        *stage = Stage::Ready;
        let ready = Ready { sandbox: Fields::of(sandbox), ..self.subject.ready.clone() };
        if self.json {
            return print_json(&ready);
        }
        let addresses: Vec<String> = ready.listen.iter().map(SocketAddr::to_string).collect();
        let plural = if ready.workers == 1 { "" } else { "s" };
        let fallback_reason =
            ready.fallback_reason.as_ref().map(|why| format!("; io_uring not used: {why}"));
        let details = match self.subject.details_text.as_str() {
            "" => String::new(),
            text => format!("; {text}"),
        };
        print_line(&format!(
            "ready: {} on {}, {}, {} worker{plural}{details}; {sandbox}{}",
            ready.service,
            addresses.join(", "),
            ready.engine,
            ready.workers,
            fallback_reason.unwrap_or_default(),
        ));
    }

    /// Prints the counters every `period` until the process ends.
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

    /// Prints the final counters, if the service was ever ready. If standard output is not read, this
    /// gives up after a moment: it must not keep the process from ending.
    pub(super) fn last(self: &Arc<Self>, reason: &str) {
        let (reporter, its_reason) = (Arc::clone(self), reason.to_owned());
        let print = move || reporter.statistics("final", Some(&its_reason), Stage::Ended);
        match in_time(print) {
            Ok(true) => {}
            Ok(false) => {
                // Standard error may not be read either.
                let why = "twinring: the final line was not printed: standard output is not read";
                let _not_told = in_time(|| complain(why));
            }
            // No thread can be started.
            Err(_) => self.statistics("final", Some(reason), Stage::Ended),
        }
    }

    fn statistics(&self, event: &'static str, reason: Option<&str>, next: Stage) {
        let mut stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        if *stage != Stage::Ready {
            return;
        }
        *stage = next;
        let statistics = Statistics {
            event: event.to_owned(),
            schema: SCHEMA.to_owned(),
            service: self.subject.name.to_owned(),
            engine: self.subject.ready.engine.clone(),
            uptime_s: (self.started.elapsed().as_secs_f64() * 100.0).round() / 100.0,
            engines: self.both.as_ref().filter(|_| reason.is_some()).map_or_else(
                BTreeMap::new,
                |both| {
                    let calls = self.handle.worker_counters().map(|counters| counters.syscalls);
                    both.counters(&calls.collect::<Vec<_>>())
                },
            ),
            reason: reason.map(str::to_owned),
            service_counters: (self.subject.counters)(),
            runtime_counters: Fields::of(&self.handle.counters()),
        };
        if self.json {
            return print_json(&statistics);
        }
        for (engine, counters) in &statistics.engines {
            complain(&format!("{engine}: {}", as_text(&Fields::of(counters))));
        }
        let happened = as_text(&statistics.service_counters);
        let uptime_s = statistics.uptime_s;
        complain(&match reason {
            Some(reason) => format!("ended after {uptime_s:.1} s ({reason}): {happened}"),
            None => format!("{uptime_s:.1} s: {happened}"),
        });
    }
}

/// The engine in use, or both.
pub(super) fn engine_name(features: &Features, both: bool) -> String {
    match both {
        true => "io_uring+epoll".to_owned(),
        false => features.engine().to_string(),
    }
}

/// The counters that are not zero, by their names; those of an inner object after its name. All counters are in
/// `--json` and in the metrics of `--admin`.
fn as_text(fields: &Fields) -> String {
    let mut pairs = Vec::new();
    let mut add = |name: String, value: &Value| {
        if value.as_f64().is_some_and(|number| number != 0.0) {
            pairs.push(format!("{} {value}", name.replace('_', " ")));
        }
    };
    for (key, value) in &fields.0 {
        match value {
            Value::Object(inner) => {
                inner.iter().for_each(|(name, value)| add(format!("{key} {name}"), value));
            }
            value => add(key.clone(), value),
        }
    }
    if pairs.is_empty() { "no traffic".to_owned() } else { pairs.join(", ") }
}

pub(super) fn print_json(line: &impl Serialize) {
    match serde_json::to_string(line) {
        Ok(text) => print_line(&text),
        Err(error) => complain(&format!("twinring: cannot print a line of JSON: {error}")),
    }
}

/// Runs a function that may block for ever on a separate thread; false if it does not return in time.
fn in_time(task: impl FnOnce() + Send + 'static) -> io::Result<bool> {
    let (done, is_done) = mpsc::sync_channel(1);
    std::thread::Builder::new().name("final".to_owned()).spawn(move || {
        task();
        // Fails if the caller has stopped waiting.
        let _late = done.send(());
    })?;
    Ok(is_done.recv_timeout(LAST_WORDS_MAX) != Err(RecvTimeoutError::Timeout))
}
