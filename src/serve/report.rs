//! The report lines of a server: ready, statistics, final. `docs/json.md` is the contract.

use super::both::Both;
use super::sandbox::parts::Report;
use crate::output::{complain, print_line};
use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use twinring::{Handle, Runtime, config::Features};
use twinring_input::quantity::Count;
use twinring_wire::Fields;
use twinring_wire::serve::{Ready, SCHEMA, Statistics};

#[derive(Clone, Copy, Debug, Default, Args)]
#[command(next_help_heading = "Output")]
pub(super) struct OutputArgs {
    /// Print one line of counters every SECS seconds.
    #[arg(long, value_name = "SECS")]
    pub(super) stats: Option<Count<1, 86_400>>,
    /// Print JSON lines on standard output.
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) const LAST_WORDS_MAX: Duration = Duration::from_secs(2);

/// A service as reports see it. `C` are its counters.
pub(super) struct Subject<C> {
    pub(super) name: &'static str,
    addresses: Vec<SocketAddr>,
    counters: Box<dyn Fn() -> C + Send + Sync>,
    details: Map<String, Value>,
    details_text: String,
}

impl<C> Subject<C> {
    pub(super) fn new(
        name: &'static str,
        addresses: &[SocketAddr],
        counters: impl Fn() -> C + Send + Sync + 'static,
    ) -> Subject<C> {
        Subject {
            name,
            addresses: addresses.to_vec(),
            counters: Box::new(counters),
            details: Map::new(),
            details_text: String::new(),
        }
    }

    /// Adds details to the ready line: as JSON in the field `key`, and as text.
    pub(super) fn with_details(
        mut self,
        key: &str,
        details: &impl Serialize,
        text: String,
    ) -> Subject<C> {
        match serde_json::to_value(details) {
            Ok(details) => drop(self.details.insert(key.to_owned(), details)),
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

pub(super) struct Reporter<C> {
    subject: Subject<C>,
    json: bool,
    features: Features,
    fallback_reason: Option<String>,
    workers: usize,
    started: Instant,
    handle: Handle,
    stage: Mutex<Stage>,
    both: Option<Both>,
}

impl<C: Serialize + 'static> Reporter<C> {
    pub(super) fn new(
        subject: Subject<C>,
        json: bool,
        runtime: &Runtime,
        both: Option<Both>,
    ) -> Reporter<C> {
        Reporter {
            both,
            subject,
            json,
            features: runtime.features().clone(),
            fallback_reason: runtime.fallback_reason().map(str::to_owned),
            workers: runtime.workers(),
            started: Instant::now(),
            handle: runtime.handle(),
            stage: Mutex::new(Stage::Starting),
        }
    }

    fn engine(&self) -> String {
        engine_name(&self.features, self.both.is_some())
    }

    pub(super) fn ready(&self, sandbox: &Report) {
        let mut stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        *stage = Stage::Ready;
        let ready = Ready {
            event: "ready".to_owned(),
            schema: SCHEMA.to_owned(),
            service: self.subject.name.to_owned(),
            listen: self.subject.addresses.clone(),
            engine: self.engine(),
            workers: self.workers,
            pid: std::process::id(),
            features: Fields::of(&self.features),
            fallback_reason: self.fallback_reason.clone(),
            sandbox: Fields::of(sandbox),
            details: self.subject.details.clone(),
        };
        if self.json {
            return print_json(&ready);
        }
        let addresses: Vec<String> =
            self.subject.addresses.iter().map(SocketAddr::to_string).collect();
        let plural = if self.workers == 1 { "" } else { "s" };
        let fallback_reason =
            self.fallback_reason.as_ref().map(|why| format!("; io_uring not used: {why}"));
        let details = match self.subject.details_text.as_str() {
            "" => String::new(),
            text => format!("; {text}"),
        };
        print_line(&format!(
            "ready: {} on {}, {}, {} worker{plural}{details}; {sandbox}{}",
            self.subject.name,
            addresses.join(", "),
            ready.engine,
            self.workers,
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
            engine: self.engine(),
            uptime_s: (self.started.elapsed().as_secs_f64() * 100.0).round() / 100.0,
            engines: self.both.as_ref().filter(|_| reason.is_some()).map_or_else(
                BTreeMap::new,
                |both| {
                    let calls = self.handle.worker_counters().map(|counters| counters.syscalls);
                    both.counters(&calls.collect::<Vec<_>>())
                },
            ),
            reason: reason.map(str::to_owned),
            service_counters: Fields::of(&(self.subject.counters)()),
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
