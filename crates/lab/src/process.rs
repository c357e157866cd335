//! A child process of the lab: started in its network, read line by line, bounded in everything,
//! and gone when the lab is gone.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::prctl::set_pdeathsig;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, getppid};
use serde::{Deserialize, Serialize};

use crate::cpus::CpuList;
use crate::error::LabError;
use crate::namespace::Place;
use crate::progress::say;

/// The longest line read from a subject. A result with a full histogram is well under this.
const MAX_LINE_BYTES: usize = 8 << 20;

/// How much of a subject's standard error is kept, from its end.
const STDERR_TAIL_BYTES: usize = 4096;

const STOP_TICK: Duration = Duration::from_millis(2);

const READERS_PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Server,
    Client,
}

/// What the runner waits for; there is one channel for all of it.
#[derive(Debug)]
pub(crate) enum Event {
    /// A line of standard output, without its end.
    Line(Role, String),
    /// Standard output was closed, or a line was longer than allowed.
    Closed(Role),
    /// The user wants to stop.
    Stop,
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Exit {
    /// Exit code, if it ended by itself.
    pub code: Option<i32>,
    /// Signal that ended it.
    pub signal: Option<i32>,
    /// It ended by itself, before it was asked to.
    pub unasked: bool,
    /// It did not obey SIGTERM in time and was killed.
    pub killed: bool,
}

impl Exit {
    /// Ended as asked, with success; being ended by the SIGTERM it was sent is as good for
    /// programs that have no handler.
    pub fn is_clean(&self) -> bool {
        let by_request = self.signal == Some(Signal::SIGTERM as i32) && !self.unasked;
        !self.killed && (self.code == Some(0) || by_request)
    }
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.code, self.signal) {
            (Some(code), _) => write!(f, "exit code {code}")?,
            (_, Some(signal)) => match Signal::try_from(signal) {
                Ok(name) => write!(f, "{name}")?,
                Err(_) => write!(f, "signal {signal}")?,
            },
            _ => write!(f, "unknown end")?,
        }
        f.write_str(if self.killed { " because it did not end in time" } else { "" })
    }
}

/// A running child. Dropping it kills it and everything in its process group.
pub(crate) struct Process {
    child: Child,
    ended: bool,
    stderr_tail: Arc<Mutex<Vec<u8>>>,
    readers: Vec<JoinHandle<()>>,
}

/// Starts `command` in `place`, pinned to `cpus`, through the helper (see [`crate::helper`]). Its
/// lines go to `events`. Its standard input is empty.
pub(crate) fn start(
    helper: &[OsString],
    place: &Place,
    cpus: &CpuList,
    command: &[String],
    role: Role,
    events: Sender<Event>,
) -> Result<Process, LabError> {
    let mut words = helper.to_vec();
    words.extend(["exec".into(), cpus.to_string().into(), std::process::id().to_string().into()]);
    words.extend(command.iter().map(OsString::from));
    // A process group of its own, so that a Ctrl-C on the terminal reaches the lab only and the order of the shutdown
    // is the lab's.
    let spawned = place.run(move || {
        Command::new(words.first().ok_or(io::ErrorKind::InvalidInput)?)
            .args(&words[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
    });
    let mut child = spawned.map_err(|source| {
        let program = command.first().map_or("", |it| it);
        let what_to_do = "check the path and that it may be executed";
        LabError::failed(format!("cannot start `{program}`: {source}; {what_to_do}"))
    })?;
    let stderr_tail = Arc::new(Mutex::new(Vec::new()));
    let mut readers = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        readers.push(thread::spawn(move || forward_lines(stdout, role, &events)));
    }
    if let Some(stderr) = child.stderr.take() {
        let tail = stderr_tail.clone();
        readers.push(thread::spawn(move || keep_tail(stderr, &tail)));
    }
    Ok(Process { child, ended: false, stderr_tail, readers })
}

impl Process {
    pub(crate) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Whether it has ended, without reaping it, so that its id and its group stay its own.
    pub(crate) fn has_ended(&self) -> bool {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        let pid = Pid::from_raw(self.pid());
        self.ended || !matches!(waitid(Id::Pid(pid), flags), Ok(WaitStatus::StillAlive))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        if !self.ended {
            // It may have ended in between; it is not reaped, so the id is still its own.
            let _ = kill(Pid::from_raw(self.pid()), signal);
        }
    }

    /// Waits for the end up to `patience`; then kills the rest of the group and reaps.
    /// `asked` says whether the process had been asked to stop.
    pub(crate) fn finish(&mut self, patience: Duration, asked: bool) -> Exit {
        let deadline = Instant::now() + patience;
        while !self.has_ended() && Instant::now() < deadline {
            thread::sleep(STOP_TICK);
        }
        let killed = !self.has_ended();
        let status = self.kill_group_and_reap();
        // The group is dead, so both pipes are at their end, unless a grandchild left the group
        // and holds them; that one is not waited for.
        let deadline = Instant::now() + READERS_PATIENCE;
        while self.readers.iter().any(|reader| !reader.is_finished()) && Instant::now() < deadline {
            thread::sleep(STOP_TICK);
        }
        Exit {
            code: status.and_then(|status| status.code()),
            signal: status.and_then(|status| status.signal()),
            unasked: !asked,
            killed,
        }
    }

    pub(crate) fn stderr(&self) -> String {
        let tail = self.stderr_tail.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&tail).trim().to_owned()
    }

    fn kill_group_and_reap(&mut self) -> Option<ExitStatus> {
        if !self.ended {
            // Not reaped yet, so the group's id cannot have been given to anybody else.
            let _ = killpg(Pid::from_raw(self.pid()), Signal::SIGKILL);
        }
        self.ended = true;
        self.child.wait().ok()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.ended {
            self.kill_group_and_reap();
        }
    }
}

/// The most output of a process that is kept: its lines and the memory to hold them. The lab reads while it goes on,
/// and one that talks faster than the lab reads would fill its memory.
const MAX_SAID_BYTES: usize = 64 << 20;
const LINE_OVERHEAD_BYTES: usize = 128;

fn forward_lines(stdout: impl Read, role: Role, events: &Sender<Event>) {
    let mut stdout = BufReader::new(stdout);
    let mut said_bytes = 0;
    while said_bytes < MAX_SAID_BYTES {
        let mut line = Vec::new();
        let limit = MAX_LINE_BYTES as u64 + 1;
        let read = stdout.by_ref().take(limit).read_until(b'\n', &mut line);
        if !matches!(read, Ok(1..)) || line.len() > MAX_LINE_BYTES {
            break;
        }
        said_bytes += line.len() + LINE_OVERHEAD_BYTES;
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        if events.send(Event::Line(role, line)).is_err() {
            break;
        }
    }
    let _ = events.send(Event::Closed(role));
    // A writer must never block on a full pipe, nor be ended by a closed one.
    let _ = io::copy(&mut stdout, &mut io::sink());
}

/// Reads to the end and keeps the last 4 KiB.
fn keep_tail(mut stderr: impl Read, tail: &Mutex<Vec<u8>>) {
    let mut chunk = [0; 1024];
    while let Ok(read @ 1..) = stderr.read(&mut chunk) {
        let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
        tail.extend_from_slice(&chunk[..read]);
        let excess = tail.len().saturating_sub(STDERR_TAIL_BYTES);
        tail.drain(..excess);
    }
}

/// Runs the hidden subcommand with the arguments after its name: `exec CPUS PARENT PROGRAM
/// ARGUMENT…`. Not for people: the lab calls it through [`crate::RunOptions::helper`].
///
/// The lab is free of `unsafe`, so nothing runs between `fork` and `exec`. The binary starts
/// itself instead, sets up its own process with safe calls, and then executes the real program. The process
/// keeps its id, so the lab sees the system under test itself.
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
