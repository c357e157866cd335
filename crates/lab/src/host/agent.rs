//! The agent: the lab's hands on another host.
//!
//! It runs behind a pipe, as the hidden subcommand `lab-helper agent`, and does what it is asked on
//! its standard input. It ends, and everything it has started or made ends with it, when that
//! input ends, when the lab is silent for too long, or by a signal. So nothing is left behind,
//! even if the lab, the pipe or the network fails.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::io::{self, BufReader, Stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::mkdtemp;
use serde::Serialize;
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::local;
use super::protocol::{
    self, Ended, FromAgent, HEARTBEAT, MAX_PROCESSES, Request, SILENCE, ToAgent,
};
use crate::accounting::{self, BackgroundLoad, KernelMemory, ProcessMemory, SideSample, Watched};
use crate::cpus::CpuList;
use crate::experiment::Nginx;
use crate::machine::Fingerprint;
use crate::namespace::Place;
use crate::process::{self, Event, Process, Role};
use crate::procfs;
use crate::site::{Made, nginx};

/// How long the last lines of an ended process may take to be sent.
const FORWARD_PATIENCE: Duration = Duration::from_secs(5);

/// How long an agent that has to end may still be busy with what it was asked before.
const LINGER: Duration = Duration::from_secs(5);

/// Runs the agent until the lab has gone.
///
/// # Errors
/// When standard output is closed, or the machine cannot even be looked at.
pub(crate) fn serve() -> io::Result<ExitCode> {
    let binary = std::env::current_exe()?;
    let out = Out::default();
    let (inbox, work) = channel();
    let state = Arc::new(Shared::default());
    listen_to_the_lab(out.clone(), inbox.clone(), state.clone());
    listen_to_signals(inbox.clone())?;
    // The lab says nothing before it has heard this, and on a busy machine that takes a while.
    let hello = local::hello(&binary)?;
    watch(inbox, state.clone());
    out.send(&FromAgent::Hello(Box::new(hello)))?;
    send_heartbeats(out.clone());
    let mut agent = Agent {
        // The subcommand that leads here leads to the rest of the helper as well.
        helper: std::env::args_os().take_while(|word| word != super::options::AGENT).collect(),
        out,
        state,
        processes: HashMap::new(),
        site: None,
    };
    if let Some(program) = agent.helper.first_mut() {
        *program = binary.into();
    }
    agent.work(&work);
    Ok(ExitCode::SUCCESS)
}

/// Standard output, a line at a time.
#[derive(Clone)]
struct Out(Arc<Mutex<Stdout>>);

impl Default for Out {
    fn default() -> Out {
        Out(Arc::new(Mutex::new(io::stdout())))
    }
}

impl Out {
    fn send(&self, message: &FromAgent) -> io::Result<()> {
        protocol::write(&mut *lock(&self.0), message)
    }
}

/// What the threads of an agent know together.
#[derive(Default)]
struct Shared {
    /// When the lab was last heard.
    heard: Mutex<Option<Instant>>,
    /// The directory to remove.
    directory: Mutex<Option<PathBuf>>,
}

enum Inbox {
    Ask { id: u64, request: Request },
    End,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads standard input. Requests for the time are answered here, so that no other work delays them.
fn listen_to_the_lab(out: Out, inbox: Sender<Inbox>, state: Arc<Shared>) {
    thread::spawn(move || {
        let mut input = BufReader::new(io::stdin());
        while let Ok(Some(line)) = protocol::read_line(&mut input) {
            *lock(&state.heard) = Some(Instant::now());
            let sent = match serde_json::from_str(&line) {
                Ok(ToAgent::Alive) => Ok(()),
                Ok(ToAgent::Ask { id, request: Request::Clock }) => {
                    let result = procfs::now_ns().map(Value::from).map_err(|e| e.to_string());
                    out.send(&FromAgent::Reply { id, result })
                }
                Ok(ToAgent::Ask { id, request }) => {
                    inbox.send(Inbox::Ask { id, request }).map_err(io::Error::other)
                }
                // A lab of another version; it sees from the first line that the versions differ.
                Err(_) => break,
            };
            if sent.is_err() {
                break;
            }
        }
        let _ = inbox.send(Inbox::End);
    });
}

fn listen_to_signals(inbox: Sender<Inbox>) -> io::Result<()> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    thread::spawn(move || {
        for _ in &mut signals {
            let _ = inbox.send(Inbox::End);
        }
    });
    Ok(())
}

fn send_heartbeats(out: Out) {
    thread::spawn(move || {
        while out.send(&FromAgent::Alive).is_ok() {
            thread::sleep(HEARTBEAT);
        }
    });
}

/// Ends the agent when the lab is silent. It may then be blocked in a write to a full pipe, so
/// the end is not left to it.
fn watch(inbox: Sender<Inbox>, state: Arc<Shared>) {
    *lock(&state.heard) = Some(Instant::now());
    thread::spawn(move || {
        while lock(&state.heard).is_some_and(|heard| heard.elapsed() < SILENCE) {
            thread::sleep(HEARTBEAT);
        }
        let _ = inbox.send(Inbox::End);
        end_anyway(&state);
    });
}

/// Gives the agent a moment to end by itself. The kernel kills its processes when it has gone:
/// they asked for that.
fn end_anyway(state: &Shared) -> ! {
    thread::sleep(LINGER);
    if let Some(directory) = &*lock(&state.directory) {
        // The lab is gone: there is no one left to report to.
        let _ = fs::remove_dir_all(directory);
    }
    std::process::exit(1)
}

struct Agent {
    helper: Vec<OsString>,
    out: Out,
    state: Arc<Shared>,
    processes: HashMap<u64, Running>,
    site: Option<Made>,
}

/// A process of this host. Dropping it kills it.
struct Running {
    process: Process,
    /// Sends its lines to the lab.
    forwarder: JoinHandle<()>,
}

impl Agent {
    fn work(&mut self, inbox: &Receiver<Inbox>) {
        for message in inbox {
            let Inbox::Ask { id, request } = message else { break };
            let result = self.answer(request);
            if self.out.send(&FromAgent::Reply { id, result }).is_err() {
                break;
            }
        }
        let state = self.state.clone();
        thread::spawn(move || end_anyway(&state));
    }

    fn answer(&mut self, request: Request) -> Result<Value, String> {
        match request {
            Request::Clock => reply(procfs::now_ns().map_err(text)?),
            Request::Settle { cpus } => {
                accounting::prepare();
                local::keep_off(&cpus).map_err(text)?;
                reply(Fingerprint::of_cpu(cpus.first()))
            }
            Request::Interface { ip } => reply(local::interface(ip)),
            Request::Settings => reply(local::settings()),
            Request::Listen { ip } => reply(local::listen(ip).map_err(text)?),
            Request::Connect { address } => reply(local::connect(address).err().map(text)),
            Request::CanBind { address, protocol } => {
                reply(local::can_bind(address, protocol).err().map(text))
            }
            Request::IsUdpBound { port } => reply(procfs::is_udp_bound(port)),
            Request::Sample { cpus, pid, detail } => {
                let side = Watched { cpus: &cpus, pid, device: None };
                reply(SideSample::take(side, detail).map_err(text)?)
            }
            Request::ProcessMemory { pid } => reply(ProcessMemory::take(pid)),
            Request::KernelMemory => reply(KernelMemory::take()),
            Request::BackgroundLoad { roots } => reply(BackgroundLoad::take(&roots).map_err(text)?),
            Request::FindNginx => reply(nginx::Installed::find(Nginx::PROGRAM)),
            Request::Hash { programs } => reply(local::hash(programs)),
            Request::MakeSite { grid, seed, certificate } => {
                let directory = temporary_directory()?;
                *lock(&self.state.directory) = Some(directory.clone());
                let made = Made::make(directory, &grid, seed, certificate.as_ref());
                let made = self.site.insert(made.map_err(text)?);
                reply(made.site())
            }
            Request::Urls { point, server } => {
                reply(self.site()?.site().urls(point, server).map_err(text)?)
            }
            Request::Configure { text: content } => {
                let path = self.site()?.site().configuration();
                reply(fs::write(path, content).map_err(text)?)
            }
            Request::Start { process, cpus, command, is_told } => {
                self.start(process, &cpus, &command, is_told)
            }
            Request::Tell { process, line } => {
                let running = self.processes.get_mut(&process);
                running.ok_or_else(|| no_process(process))?.process.tell(&line);
                reply(())
            }
            Request::HasEnded { process } => reply(self.running(process)?.process.has_ended()),
            Request::Signal { process, signal } => {
                let signal = Signal::try_from(signal).map_err(text)?;
                self.running(process)?.process.signal(signal);
                reply(())
            }
            Request::Finish { process, patience_ms, asked } => {
                self.running(process)?;
                let ended = self.processes.remove(&process);
                reply(ended.map(|it| it.finish(Duration::from_millis(patience_ms), asked)))
            }
            Request::Kill { process } => {
                self.processes.remove(&process);
                reply(())
            }
        }
    }

    fn site(&self) -> Result<&Made, String> {
        self.site.as_ref().ok_or_else(|| "no files were made on this host".to_owned())
    }

    fn running(&self, number: u64) -> Result<&Running, String> {
        self.processes.get(&number).ok_or_else(|| no_process(number))
    }

    fn start(
        &mut self,
        number: u64,
        cpus: &CpuList,
        command: &[String],
        is_told: bool,
    ) -> Result<Value, String> {
        if self.processes.len() >= MAX_PROCESSES {
            return Err(format!("{MAX_PROCESSES} processes run already"));
        }
        let (sender, events) = channel();
        // The lab knows the role; here a process is identified by its number.
        let process = process::start(
            &self.helper,
            &Place::Here,
            cpus,
            command,
            is_told,
            Role::Server(0),
            sender,
        );
        let process = process.map_err(text)?;
        let pid = process.pid();
        let out = self.out.clone();
        let forwarder = thread::spawn(move || forward(number, &events, &out));
        self.processes.insert(number, Running { process, forwarder });
        reply(pid)
    }
}

impl Running {
    /// Sees it to its end, and its last lines on their way: they come before the answer.
    fn finish(mut self, patience: Duration, asked: bool) -> Ended {
        let exit = self.process.finish(patience, asked);
        let deadline = Instant::now() + FORWARD_PATIENCE;
        while !self.forwarder.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        Ended { exit, stderr: self.process.stderr() }
    }
}

fn forward(process: u64, events: &Receiver<Event>, out: &Out) {
    for event in events {
        let message = match event {
            Event::Line(_, line) => FromAgent::Line { process, line },
            Event::Closed(_) => FromAgent::Closed { process },
            Event::Stop | Event::Lost { .. } => continue,
        };
        if out.send(&message).is_err() {
            return;
        }
    }
}

fn no_process(number: u64) -> String {
    format!("there is no process {number}")
}

fn temporary_directory() -> Result<PathBuf, String> {
    let template = std::env::temp_dir().join("twinring-lab-XXXXXX");
    mkdtemp(&template).map_err(|errno| format!("{}: {errno}", template.display()))
}

fn reply(value: impl Serialize) -> Result<Value, String> {
    serde_json::to_value(value).map_err(text)
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
