//! `--engine both`: workers of both engines serve the same addresses, and the final report has the counters of each.
//! The kernel distributes connections and datagrams over the workers, by a hash of their addresses, so they may differ
//! in what they served: `twinring compare` compares engines.

use super::notices::tell;
use crate::engine_args::EngineArgs;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use twinring::{Runtime, config::Features};
use twinring_services::{Server, Service, ServiceCounters};
use twinring_wire::serve::EngineCounters;

#[derive(Clone)]
pub(super) struct Both {
    /// The engine of each worker.
    engines: Vec<String>,
    unit: &'static str,
    readings: Arc<dyn Fn() -> Vec<(ServiceCounters, [u64; 2])> + Send + Sync>,
}

impl Both {
    /// `None` if the arguments do not request both engines. If io_uring cannot be used, this prints why, and the service
    /// runs on epoll.
    pub(super) fn of<S: Service>(
        args: &EngineArgs,
        runtime: &Runtime,
        service: &Server<S>,
    ) -> io::Result<Option<Both>> {
        let refused = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        if !args.is_both() {
            return Ok(None);
        }
        if runtime.workers() < 2 {
            return refused("--engine both needs --workers 2 or more: one for each engine");
        }
        let engine = |worker| runtime.features_of(worker).engine();
        if engine(0) == engine(1) {
            let why = runtime.fallback_reason().unwrap_or("unknown");
            tell(format!(
                "twinring: --engine both: io_uring cannot be used, so the server runs on epoll: {why}"
            ));
            return Ok(None);
        }
        if matches!(runtime.features(), Features::IoUring(features) if features.sqpoll_idle_ms > 0)
        {
            return refused(
                "--engine both does not work with sqpoll, which moves a worker's CPU time to a thread of the kernel",
            );
        }
        let engines = (0..runtime.workers()).map(|worker| engine(worker).to_string()).collect();
        Ok(Some(Both { engines, unit: S::UNIT, readings: Arc::new(service.readings()) }))
    }

    /// The counters of each engine, once its workers have ended; `syscalls` are those of each worker.
    pub(super) fn counters(&self, syscalls: &[u64]) -> BTreeMap<String, EngineCounters> {
        let mut all: BTreeMap<String, EngineCounters> = BTreeMap::new();
        for ((engine, (counters, [user_ns, system_ns])), syscalls) in
            self.engines.iter().zip((self.readings)()).zip(syscalls)
        {
            let count = |name: &str| counters.get(name).and_then(Value::as_u64).unwrap_or(0);
            let sum = all.entry(engine.clone()).or_default();
            sum.workers += 1;
            sum.units += count(self.unit);
            sum.bytes += count("received_bytes") + count("sent_bytes");
            sum.connections += count("accepted");
            sum.cpu_user_s += user_ns as f64 / 1e9;
            sum.cpu_system_s += system_ns as f64 / 1e9;
            sum.syscalls += syscalls;
        }
        all
    }
}
