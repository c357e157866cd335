//! The arguments that choose an engine, its features, and its workers.

use clap::Args;
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use twinring::{Builder, Engine, EngineChoice, EpollOptions, Runtime, RuntimeError, UringOptions};

/// CPUs are numbered below this; the kernel's own limit (CONFIG_NR_CPUS) is 8,192.
pub(crate) const CPU_MAX: usize = 8192;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Engine")]
pub(crate) struct EngineArgs {
    /// `auto` uses io_uring if it is allowed, otherwise epoll, and reports why. `both` runs workers of
    /// either engine beside each other and compares their CPU time; `adaptive` then gives new
    /// connections to the engine that needs less, and tries the other one again from time to time.
    #[arg(long, value_name = "auto|io_uring|epoll|both|adaptive", default_value = "auto")]
    engine: Mode,
    /// Worker threads, each with its own ring or epoll set. With `--engine both` or `adaptive`, the
    /// engines of the workers alternate; with 1, two threads take new connections in turn.
    /// [default: 1; 2 with --engine both or adaptive]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: Option<u16>,
    /// The slices of time in which `--engine both` and `adaptive` compare, 100ms to 60s.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = slice)]
    compare_slice: Duration,
    /// CPUs for the workers, assigned in turn, such as `0,2-3`.
    #[arg(long, value_name = "CPUS")]
    pin: Option<CpuList>,
    /// Features of io_uring, such as `multishot=off,buffer_count=1024`.
    #[arg(long, value_name = "KEY=VALUE,...", default_value = "", hide_default_value = true)]
    uring: UringOptions,
    /// Features of epoll, such as `buffer_count=64`.
    #[arg(long, value_name = "KEY=VALUE,...", default_value = "", hide_default_value = true)]
    epoll: EpollOptions,
}

/// How the engine is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// One engine for all workers.
    One(EngineChoice),
    /// Both, compared.
    Both,
    /// Both, compared; new connections go to the one that needs less CPU.
    Adaptive,
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Mode, String> {
        match text {
            "both" => Ok(Mode::Both),
            "adaptive" => Ok(Mode::Adaptive),
            other => other.parse().map(Mode::One).map_err(|_| {
                let known = "auto, io_uring, epoll, both or adaptive";
                format!("engine={other}: expected {known}")
            }),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::One(EngineChoice::Auto) => "auto",
            Mode::One(EngineChoice::IoUring) => "io_uring",
            Mode::One(EngineChoice::Epoll) => "epoll",
            Mode::Both => "both",
            Mode::Adaptive => "adaptive",
        })
    }
}

/// A slice of time.
fn slice(text: &str) -> Result<Duration, String> {
    let wrong = || "expected a duration from 100ms to 60s".to_owned();
    let slice = crate::values::duration(text)?;
    let allowed = Duration::from_millis(100)..=Duration::from_secs(60);
    if allowed.contains(&slice) { Ok(slice) } else { Err(wrong()) }
}

impl EngineArgs {
    /// True if workers of both engines are compared.
    pub(crate) fn compares(&self) -> bool {
        matches!(self.engine, Mode::Both | Mode::Adaptive)
    }

    /// True if new connections go to the engine that needs less CPU.
    pub(crate) fn adapts(&self) -> bool {
        self.engine == Mode::Adaptive
    }

    /// True if the engines of one worker are compared in turn.
    pub(crate) fn takes_turns(&self) -> bool {
        self.compares() && self.workers == Some(1)
    }

    /// The CPU that a worker is pinned to.
    pub(crate) fn cpu_of(&self, worker: usize) -> Option<usize> {
        let cpus = &self.pin.as_ref()?.0;
        cpus.get(worker % cpus.len().max(1)).copied()
    }

    pub(crate) fn mode(&self) -> Mode {
        self.engine
    }

    pub(crate) fn slice(&self) -> Duration {
        self.compare_slice
    }

    /// Builds a runtime from [`runtime`](EngineArgs::runtime). If the engines cannot be compared
    /// here, it has the number of workers that was requested, and not one for each engine.
    ///
    /// # Errors
    /// As [`Builder::build`].
    pub(crate) fn build(&self, builder: Builder) -> Result<Runtime, RuntimeError> {
        let runtime = builder.clone().build()?;
        match self.takes_turns() && runtime.features().engine() == Engine::Epoll {
            true => builder.workers(1).build(),
            false => Ok(runtime),
        }
    }

    /// False if the engine is certainly epoll.
    pub(crate) fn may_use_rings(&self) -> bool {
        self.engine != Mode::One(EngineChoice::Epoll)
    }

    /// The builder of a runtime with these settings.
    pub(crate) fn runtime(&self) -> Builder {
        let engine = match self.engine {
            Mode::One(engine) => engine,
            Mode::Both | Mode::Adaptive => EngineChoice::Auto,
        };
        let workers = match (self.compares(), self.workers) {
            (true, None | Some(1)) => 2,
            (_, workers) => workers.map_or(1, usize::from),
        };
        Runtime::builder()
            .engine(engine)
            .side_by_side(self.compares())
            .workers(workers)
            .pin(self.pin.iter().flat_map(|list| list.0.iter().copied()).collect())
            .uring(self.uring.clone())
            .epoll(self.epoll.clone())
    }
}

/// CPU numbers in ascending order, written as in taskset(1) and cpuset(7): `0,2-3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CpuList(pub(crate) Vec<usize>);

impl FromStr for CpuList {
    type Err = String;

    fn from_str(text: &str) -> Result<CpuList, String> {
        let mut cpus = BTreeSet::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| text.trim().parse().ok().filter(|cpu: &usize| *cpu < CPU_MAX);
            match (number(first), number(last)) {
                (Some(first), Some(last)) if first <= last => cpus.extend(first..=last),
                _ => return Err(format!("`{part}` is neither a CPU nor a range of CPUs like 2-3")),
            }
        }
        Ok(CpuList(cpus.into_iter().collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_parse_as_taskset_writes_them() {
        assert_eq!("0,2-3".parse(), Ok(CpuList(vec![0, 2, 3])));
        assert_eq!("3, 1".parse(), Ok(CpuList(vec![1, 3])));
        for wrong in ["", "a", "3-1", "0,", "-1", "0-99999999999"] {
            assert!(wrong.parse::<CpuList>().is_err(), "{wrong:?}");
        }
    }
}
