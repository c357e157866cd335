//! The arguments that choose an engine, its features, and its workers.

use clap::Args;
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use serde::Deserialize;
use std::str::FromStr;
use twinring::{
    Builder, EngineChoice, Runtime,
    config::{EpollOptions, UringOptions},
};
use twinring_input::quantity::Count;
use twinring_lab::CpuList;
use twinring_services::http::text::optional;

#[derive(Clone, Debug, Default, Args, Deserialize)]
#[command(next_help_heading = "Engine")]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct EngineArgs {
    /// `auto` uses io_uring if it is allowed, otherwise epoll, and reports why. `both` runs workers of either
    /// engine beside each other, and the final report has the counters of each. [default: auto]
    #[arg(long, value_name = "auto|io_uring|epoll|both")]
    #[serde(deserialize_with = "optional")]
    pub(crate) engine: Option<Mode>,
    /// Worker threads, each with its own ring or epoll set. With `--engine both` their engines alternate.
    /// [default: 1; 2 with --engine both]
    #[arg(long, value_name = "N")]
    #[serde(deserialize_with = "optional")]
    pub(crate) workers: Option<Count<1, 1024>>,
    /// CPUs for the workers, assigned in turn, such as `0,2-3`.
    #[arg(long, value_name = "CPUS")]
    #[serde(deserialize_with = "optional")]
    pub(crate) pin: Option<UsableCpus>,
    /// Features of io_uring, such as `multishot=off,buffer_count=1024`.
    #[arg(long, value_name = "KEY=VALUE,...")]
    #[serde(deserialize_with = "optional")]
    pub(crate) uring: Option<UringOptions>,
    /// Features of epoll, such as `buffer_count=64`.
    #[arg(long, value_name = "KEY=VALUE,...")]
    #[serde(deserialize_with = "optional")]
    pub(crate) epoll: Option<EpollOptions>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// One engine for all workers.
    One(EngineChoice),
    /// Both, beside each other.
    Both,
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Mode, String> {
        match text {
            "both" => Ok(Mode::Both),
            other => other
                .parse()
                .map(Mode::One)
                .map_err(|_| format!("engine={other}: expected auto, io_uring, epoll or both")),
        }
    }
}

impl EngineArgs {
    /// These, and for what they do not say the others.
    pub(crate) fn or(&self, others: EngineArgs) -> EngineArgs {
        EngineArgs {
            engine: self.engine.or(others.engine),
            workers: self.workers.or(others.workers),
            pin: self.pin.clone().or(others.pin),
            uring: self.uring.clone().or(others.uring),
            epoll: self.epoll.clone().or(others.epoll),
        }
    }

    pub(crate) fn is_both(&self) -> bool {
        self.engine == Some(Mode::Both)
    }

    /// False if the engine is certainly epoll.
    pub(crate) fn may_use_rings(&self) -> bool {
        self.engine != Some(Mode::One(EngineChoice::Epoll))
    }

    pub(crate) fn runtime(&self) -> Builder {
        let (engine, workers) = match self.engine {
            None => (EngineChoice::Auto, 1),
            Some(Mode::One(engine)) => (engine, 1),
            Some(Mode::Both) => (EngineChoice::Auto, 2),
        };
        let workers = self.workers.map_or(workers, |count| count.get() as usize);
        Runtime::builder()
            .engine(engine)
            .side_by_side(self.is_both())
            .workers(workers)
            .pin(self.pin.iter().flat_map(|list| list.0.all().iter().copied()).collect())
            .uring(self.uring.clone().unwrap_or_default())
            .epoll(self.epoll.clone().unwrap_or_default())
    }
}

/// CPUs that this process may use: `--check` passed others, and the server failed at its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UsableCpus(CpuList);

impl FromStr for UsableCpus {
    type Err = String;

    fn from_str(text: &str) -> Result<UsableCpus, String> {
        let list: CpuList = text.parse()?;
        let Ok(mine) = sched_getaffinity(Pid::from_raw(0)) else { return Ok(UsableCpus(list)) };
        let may_use = |cpu: &usize| mine.is_set(*cpu).unwrap_or(false);
        match list.all().iter().find(|cpu| !may_use(cpu)) {
            None => Ok(UsableCpus(list)),
            Some(cpu) => {
                let all: Vec<String> =
                    (0..CpuSet::count()).filter(may_use).map(|cpu| cpu.to_string()).collect();
                Err(format!("this process may not use CPU {cpu}: choose from {}", all.join(",")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_that_the_process_may_not_use_are_refused() {
        let error = "1000".parse::<UsableCpus>().unwrap_err();
        assert!(error.starts_with("this process may not use CPU 1000: choose from "), "{error}");
    }
}
