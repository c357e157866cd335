//! The arguments that all servers have. In the configuration file of `serve http` they are keys of `[server]`.

use super::listen;
use super::sandbox::Selection;
use clap::Args;
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use serde::{Deserialize, Deserializer};
use std::net::SocketAddr;
use std::str::FromStr;
use twinring::config::{EpollOptions, UringOptions};
use twinring::{Builder, EngineChoice, Runtime};
use twinring_input::quantity::Count;
use twinring_lab::CpuList;
use twinring_services::http::text::{optional, read};

#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct ServerArgs {
    /// `auto` uses io_uring if it is allowed, otherwise epoll, and reports why. `both` runs workers of either
    /// engine beside each other, and the final report has the counters of each. [default: auto]
    #[arg(long, value_name = "auto|io_uring|epoll|both", help_heading = "Engine")]
    #[serde(deserialize_with = "optional")]
    pub(super) engine: Option<Mode>,
    /// Worker threads, each with its own ring or epoll set. With `--engine both` their engines alternate.
    /// [default: 1; 2 with --engine both]
    #[arg(long, value_name = "N", help_heading = "Engine")]
    #[serde(deserialize_with = "optional")]
    workers: Option<Count<1, 1024>>,
    /// CPUs for the workers, assigned in turn, such as `0,2-3`.
    #[arg(long, value_name = "CPUS", help_heading = "Engine")]
    #[serde(deserialize_with = "optional")]
    pin: Option<UsableCpus>,
    /// Features of io_uring, such as `multishot=off,buffer_count=1024`.
    #[arg(long, value_name = "KEY=VALUE,...", help_heading = "Engine")]
    #[serde(deserialize_with = "optional")]
    uring: Option<UringOptions>,
    /// Features of epoll, such as `buffer_count=64`.
    #[arg(long, value_name = "KEY=VALUE,...", help_heading = "Engine")]
    #[serde(deserialize_with = "optional")]
    epoll: Option<EpollOptions>,
    /// Address that answers `/metrics`, `/healthz` and `/readyz`, on its own thread. Do not expose it.
    #[arg(long, value_name = "ADDR", help_heading = "Operation", value_parser = listen::address)]
    #[serde(deserialize_with = "address")]
    pub(super) admin: Option<SocketAddr>,
    /// Name or number of the user to switch to, once all addresses are bound and all files open.
    /// Also sets the user's groups.
    #[arg(long, value_name = "USER", help_heading = "Operation")]
    pub(super) user: Option<String>,
    /// Name or number of the group to switch to, instead of that of --user.
    #[arg(long, value_name = "GROUP", help_heading = "Operation")]
    pub(super) group: Option<String>,
    /// Parts of the sandbox: `off`, or a list of ring, seccomp, landlock, no_new_privs and
    /// capabilities. A named part that is not supported is an error. By default all supported parts
    /// are on; the ready line shows them.
    #[arg(long, value_name = "off|PART,...", help_heading = "Sandbox")]
    #[serde(deserialize_with = "optional")]
    pub(super) sandbox: Option<Selection>,
    /// Once ready, attempt everything that the sandbox must refuse, print the results, and exit:
    /// with 0 if all of it was refused.
    #[arg(long, help_heading = "Sandbox")]
    #[serde(skip)]
    pub(super) sandbox_check: bool,
    /// Print one line of counters every SECS seconds.
    #[arg(long, value_name = "SECS", help_heading = "Output")]
    #[serde(deserialize_with = "optional")]
    pub(super) stats: Option<Count<1, 86_400>>,
    /// Print JSON lines on standard output.
    #[arg(long, help_heading = "Output")]
    pub(super) json: bool,
}

fn address<'de, D: Deserializer<'de>>(from: D) -> Result<Option<SocketAddr>, D::Error> {
    read(from, listen::address).map(Some)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// One engine for all workers.
    One(EngineChoice),
    /// Both, beside each other.
    Both,
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Mode, String> {
        if text == "both" {
            return Ok(Mode::Both);
        }
        let one = text.parse().map(Mode::One);
        one.map_err(|_| format!("engine={text}: expected auto, io_uring, epoll or both"))
    }
}

impl ServerArgs {
    /// These, and for what they do not say the others.
    pub(super) fn or(self, others: ServerArgs) -> ServerArgs {
        ServerArgs {
            engine: self.engine.or(others.engine),
            workers: self.workers.or(others.workers),
            pin: self.pin.or(others.pin),
            uring: self.uring.or(others.uring),
            epoll: self.epoll.or(others.epoll),
            admin: self.admin.or(others.admin),
            user: self.user.or(others.user),
            group: self.group.or(others.group),
            sandbox: self.sandbox.or(others.sandbox),
            sandbox_check: self.sandbox_check,
            stats: self.stats.or(others.stats),
            json: self.json || others.json,
        }
    }

    /// False if the engine is certainly epoll.
    pub(super) fn may_use_rings(&self) -> bool {
        self.engine != Some(Mode::One(EngineChoice::Epoll))
    }

    pub(super) fn runtime(&self) -> Builder {
        let (engine, is_both) = match self.engine {
            None => (EngineChoice::Auto, false),
            Some(Mode::One(engine)) => (engine, false),
            Some(Mode::Both) => (EngineChoice::Auto, true),
        };
        let workers = self.workers.map_or(1 + usize::from(is_both), |count| count.get() as usize);
        Runtime::builder()
            .engine(engine)
            .side_by_side(is_both)
            .workers(workers)
            .pin(self.pin.iter().flat_map(|list| list.0.all().iter().copied()).collect())
            .uring(self.uring.clone().unwrap_or_default())
            .epoll(self.epoll.clone().unwrap_or_default())
    }
}

/// CPUs that this process may use: `--check` passed others, and the server failed at its start.
#[derive(Clone, Debug)]
struct UsableCpus(CpuList);

impl FromStr for UsableCpus {
    type Err = String;

    fn from_str(text: &str) -> Result<UsableCpus, String> {
        let list: CpuList = text.parse()?;
        let Ok(mine) = sched_getaffinity(Pid::from_raw(0)) else { return Ok(UsableCpus(list)) };
        let may_use = |cpu: &usize| mine.is_set(*cpu).unwrap_or(false);
        if let Some(cpu) = list.all().iter().find(|cpu| !may_use(cpu)) {
            let all = (0..CpuSet::count()).filter(may_use).map(|cpu| cpu.to_string());
            let all: Vec<String> = all.collect();
            return Err(format!(
                "this process may not use CPU {cpu}: choose from {}",
                all.join(",")
            ));
        }
        Ok(UsableCpus(list))
    }
}
