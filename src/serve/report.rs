//! The report lines of a server: ready, statistics, final. `docs/json.md` is the contract.

use super::notices::{REPORTS, tell};
use super::operate::Prepared;
use super::sandbox::Report;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use twinring::{Handle, Runtime};
use twinring_services::{Server, Service, ServiceCounters};
use twinring_wire::Fields;
use twinring_wire::serve::{EngineCounters, Ready, SCHEMA, Statistics};

pub(super) struct Reporter {
    json: bool,
    pub(super) ready: Ready,
    /// Details of the ready line, as text.
    details: Vec<String>,
    counters: Arc<dyn Fn() -> Fields + Send + Sync>,
    started: Instant,
    handle: Handle,
    /// Statistics come only between the ready and the final line.
    runs: Mutex<bool>,
    readings: Arc<dyn Fn() -> Vec<(ServiceCounters, [u64; 2])> + Send + Sync>,
    /// What the service does, by the name of its counter.
    unit: &'static str,
    /// The engine of each worker, if they differ.
    engines: Vec<String>,
}

impl Reporter {
    pub(super) fn new<S: Service>(
        Prepared { args, runtime, .. }: &Prepared,
        server: &Server<S>,
    ) -> Reporter {
        let (both, counters) = (runs_both(runtime), server.counters());
        let engine = |worker| runtime.features_of(worker).engine().to_string();
        Reporter {
            json: args.json,
            ready: Ready {
                event: "ready".to_owned(),
                schema: SCHEMA.to_owned(),
                service: S::NAME.to_owned(),
                listen: server.addresses().to_vec(),
                engine: if both { "io_uring+epoll".to_owned() } else { engine(0) },
                workers: runtime.workers(),
                pid: std::process::id(),
                features: Fields::of(runtime.features()),
                fallback_reason: runtime.fallback_reason().map(str::to_owned),
                ..Ready::default()
            },
            details: Vec::new(),
            counters: Arc::new(move || Fields::of(&counters())),
            started: Instant::now(),
            handle: runtime.handle(),
            runs: Mutex::new(false),
            readings: Arc::new(server.readings()),
            unit: S::UNIT,
            engines: (0..runtime.workers()).filter(|_| both).map(engine).collect(),
        }
    }

    /// Adds details to the ready line: as JSON in the field `key`, and as text.
    pub(super) fn add(&mut self, key: &str, details: &impl Serialize, text: String) {
        let details = serde_json::to_value(details).unwrap_or_default();
        self.ready.details.insert(key.to_owned(), details);
        self.details.push(text);
    }

    pub(super) fn ready(&self, sandbox: &Report) {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        *runs = true;
        let ready = Ready { sandbox: Fields::of(sandbox), ..self.ready.clone() };
        if self.json {
            return REPORTS.print(json_line(&ready));
        }
        let addresses: Vec<String> = ready.listen.iter().map(SocketAddr::to_string).collect();
        let plural = if ready.workers == 1 { "" } else { "s" };
        let mut details = self.details.clone();
        details.push(sandbox.to_string());
        details.extend(ready.fallback_reason.map(|why| format!("io_uring not used: {why}")));
        REPORTS.print(format!(
            "ready: {} on {}, {}, {} worker{plural}; {}",
            ready.service,
            addresses.join(", "),
            ready.engine,
            ready.workers,
            details.join("; "),
        ));
    }

    /// Prints the counters every `period` until the process ends.
    pub(super) fn print_every(self: &Arc<Self>, period: Duration) -> io::Result<()> {
        let reporter = Arc::clone(self);
        std::thread::Builder::new().name("stats".to_owned()).spawn(move || {
            loop {
                std::thread::sleep(period);
                reporter.statistics(None);
            }
        })?;
        Ok(())
    }

    /// Prints the counters, at the end with its reason, if the service is ready.
    pub(super) fn statistics(&self, reason: Option<&str>) {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        if !*runs {
            return;
        }
        *runs = reason.is_none();
        let statistics = Statistics {
            event: reason.map_or("stats", |_| "final").to_owned(),
            schema: SCHEMA.to_owned(),
            service: self.ready.service.clone(),
            engine: self.ready.engine.clone(),
            uptime_s: (self.started.elapsed().as_secs_f64() * 100.0).round() / 100.0,
            engines: reason.map_or_else(BTreeMap::new, |_| self.counters_of_engines()),
            reason: reason.map(str::to_owned),
            service_counters: (self.counters)(),
            runtime_counters: Fields::of(&self.handle.counters()),
        };
        if self.json {
            return REPORTS.print(json_line(&statistics));
        }
        for (engine, counters) in &statistics.engines {
            tell(format!("{engine}: {}", as_text(&Fields::of(counters))));
        }
        let (uptime_s, happened) = (statistics.uptime_s, as_text(&statistics.service_counters));
        tell(match reason {
            Some(reason) => format!("ended after {uptime_s:.1} s ({reason}): {happened}"),
            None => format!("{uptime_s:.1} s: {happened}"),
        });
    }

    /// If there are two, once their workers have ended. The kernel distributes connections and datagrams by a hash of
    /// their addresses, so the engines may differ in what they served: `twinring compare` compares them.
    fn counters_of_engines(&self) -> BTreeMap<String, EngineCounters> {
        let mut all: BTreeMap<String, EngineCounters> = BTreeMap::new();
        let workers = (self.readings)().into_iter().zip(self.handle.worker_counters());
        for (engine, ((counters, [user_ns, system_ns]), runtime)) in
            self.engines.iter().zip(workers)
        {
            let count = |name: &str| counters.get(name).and_then(Value::as_u64).unwrap_or(0);
            let sum = all.entry(engine.clone()).or_default();
            sum.workers += 1;
            sum.units += count(self.unit);
            sum.bytes += count("received_bytes") + count("sent_bytes");
            sum.connections += count("accepted");
            sum.cpu_user_s += user_ns as f64 / 1e9;
            sum.cpu_system_s += system_ns as f64 / 1e9;
            sum.syscalls += runtime.syscalls;
        }
        all
    }
}

/// True if the workers run on both engines, in turn.
pub(super) fn runs_both(runtime: &Runtime) -> bool {
    runtime.features_of(0).engine() != runtime.features_of(1).engine()
}

/// The counters that are not zero, by their names; those of an inner object after its name. All counters are in
/// `--json` and in the metrics of `--admin`.
fn as_text(fields: &Fields) -> String {
    let all = fields.0.iter().flat_map(|(key, value)| match value {
        Value::Object(inner) => {
            inner.iter().map(|(name, it)| (format!("{key} {name}"), it)).collect()
        }
        value => vec![(key.clone(), value)],
    });
    let all = all.filter(|(_, value)| value.as_f64().is_some_and(|number| number != 0.0));
    let pairs = all.map(|(name, value)| {
        let (name, unit) = name.strip_suffix("_s").map_or((&*name, ""), |name| (name, " s"));
        format!("{} {value}{unit}", name.replace('_', " "))
    });
    let pairs: Vec<String> = pairs.collect();
    if pairs.is_empty() { "no traffic".to_owned() } else { pairs.join(", ") }
}

fn json_line(line: &impl Serialize) -> String {
    // Numbers, texts and tables of them serialise without fail.
    serde_json::to_string(line).unwrap_or_default()
}
