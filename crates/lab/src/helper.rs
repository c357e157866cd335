//! The hidden subcommand: what has to happen inside a child process before it becomes the
//! system under test.
//!
//! The lab is free of `unsafe`, so nothing runs between `fork` and `exec`. The binary starts
//! itself instead, sets up its own process with safe calls, and then executes the real program. The process
//! keeps its id, so the lab sees the system under test itself.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use nix::sys::prctl::set_pdeathsig;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getppid};

use crate::cpus::CpuList;
use crate::progress::say;

/// Runs the hidden subcommand with the arguments after its name: `exec CPUS PARENT PROGRAM
/// ARGUMENT…`. Not for people: the lab calls it through [`crate::RunOptions::helper`].
pub fn helper(arguments: &[OsString]) -> ExitCode {
    let error = match enter(arguments) {
        Err(error) => error,
        Ok(never) => match never {},
    };
    say(&format!("twinring lab helper: {error}"));
    // As shells do for a program that cannot be executed.
    ExitCode::from(127)
}

fn enter(arguments: &[OsString]) -> io::Result<std::convert::Infallible> {
    let usage = || io::Error::other("this subcommand is called by the lab only");
    let text = |index: usize| arguments.get(index).and_then(|it| it.to_str()).ok_or_else(usage);
    let (word, cpus, parent) = (text(0)?, text(1)?, text(2)?);
    let program = arguments.get(3).ok_or_else(usage)?;
    let cpus: CpuList = cpus.parse().map_err(|_| usage())?;
    let parent: i32 = parent.parse().map_err(|_| usage())?;
    if word != "exec" {
        return Err(usage());
    }
    die_with(Pid::from_raw(parent))?;
    cpus.pin(0)?;
    raise_descriptor_limit()?;
    // Whoever started the lab may have blocked signals (JVM, .NET), and the lab ends programs by signals.
    SigSet::empty().thread_set_mask()?;
    let error = Command::new(program).args(&arguments[4..]).exec();
    Err(io::Error::new(error.kind(), format!("{}: {error}", program.display())))
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

/// The soft limit of descriptors is 1024 on many systems, which would decide a comparison at 1,000
/// connections by who raises it. Every subject starts with the hard limit.
fn raise_descriptor_limit() -> io::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?)
}
