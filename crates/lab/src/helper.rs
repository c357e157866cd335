//! The hidden subcommand: what has to happen inside a child process before it becomes the
//! subject; and the agent of the lab on another host.
//!
//! The lab is free of `unsafe`, so nothing runs between `fork` and `exec`. The binary starts
//! itself instead, sets up its own process with safe calls, and then executes the real program. The process keeps its id, so the lab sees the subject itself.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use nix::sched::sched_setaffinity;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};

use crate::cpus::CpuList;
use crate::host;
use crate::progress::say;

/// Runs the hidden subcommand with the arguments after its name: `exec CPUS PARENT PROGRAM
/// ARGUMENT…`, or with any CPU `exec any PARENT PROGRAM ARGUMENT…` for programs that look on, or `agent` on another host. Not for people: the lab calls it through
/// [`crate::RunOptions::helper`].
pub fn helper(arguments: &[OsString]) -> ExitCode {
    match enter(arguments) {
        Ok(code) => code,
        Err(error) => {
            say(&format!("twinring lab helper: {error}"));
            // As shells do for a program that cannot be executed.
            ExitCode::from(127)
        }
    }
}

fn enter(arguments: &[OsString]) -> io::Result<ExitCode> {
    let usage = || io::Error::other("this subcommand is called by the lab only");
    let number = |index: usize| {
        let text: &OsString = arguments.get(index).ok_or_else(usage)?;
        text.to_str().and_then(|text| text.parse::<usize>().ok()).ok_or_else(usage)
    };
    if arguments.first().is_some_and(|word| word == host::options::AGENT) {
        return host::serve();
    }
    let anywhere = arguments.get(1).is_some_and(|cpu| cpu == "any");
    let list = || {
        let text = arguments.get(1).and_then(|text| text.to_str()).ok_or_else(usage)?;
        text.parse::<CpuList>().map_err(|_| usage())
    };
    let cpus = if anywhere { None } else { Some(list()?) };
    let parent = Pid::from_raw(number(2)? as i32);
    die_with(parent)?;
    match arguments[0].to_str() {
        Some("exec") => {
            let program = arguments.get(3).ok_or_else(usage)?;
            cpus.as_ref().map_or(Ok(()), pin)?;
            raise_descriptor_limit()?;
            let error = Command::new(program).args(&arguments[4..]).exec();
            Err(io::Error::new(error.kind(), format!("{}: {error}", program.display())))
        }
        _ => Err(usage()),
    }
}

/// Asks for SIGKILL when the thread that started this process ends, so that nothing survives a
/// lab that was killed. The request outlives `exec` (prctl(2), PR_SET_PDEATHSIG). A parent that
/// had gone before the request is noticed by its changed id.
fn die_with(parent: Pid) -> io::Result<()> {
    set_pdeathsig(Signal::SIGKILL)?;
    if getppid() != parent {
        return Err(io::Error::other("the lab has gone"));
    }
    Ok(())
}

/// Pins this process to these CPUs; what it executes inherits that.
fn pin(cpus: &CpuList) -> io::Result<()> {
    Ok(sched_setaffinity(Pid::from_raw(0), &cpus.set()?)?)
}

/// The soft limit of descriptors is 1024 on many systems, which would decide a comparison at 1,000
/// connections by who raises it. Every subject starts with the hard limit.
fn raise_descriptor_limit() -> io::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?)
}
