//! The lab's side of an agent: questions and answers, its processes, and what happens when the
//! connection is lost.

use std::collections::HashMap;
use std::io::BufReader;
use std::marker::PhantomData;
use std::process::{ChildStdin, ChildStdout};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::protocol::{self, Ended, FromAgent, HEARTBEAT, Hello, Request, SILENCE, ToAgent};
use super::transport::{Pipe, Session};
use crate::clock::Offset;
use crate::cpus::CpuList;
use crate::error::LabError;
use crate::json;
use crate::process::{Event, Exit, Role};
use crate::procfs;
use crate::site::Site;

/// How long an agent may take for what takes no time.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long it may take to write files and to hash programs.
const LONG_PATIENCE: Duration = Duration::from_secs(600);

/// How long an agent may take to end everything and itself.
const CLOSE_PATIENCE: Duration = Duration::from_secs(10);

/// An agent on another host. Dropping it ends it, with all that it started and made.
pub(crate) struct Remote {
    /// What the user calls the host.
    name: String,
    hello: Hello,
    pipe: Arc<Mutex<Pipe>>,
    shared: Arc<Shared>,
    /// The files of HTTP on that host, once they have been made.
    site: OnceLock<Site>,
    next: AtomicU64,
}

type Reply = Result<Value, String>;

/// What the threads of a connection know together.
struct Shared {
    name: String,
    /// Nothing when the lab has closed it.
    input: Mutex<Option<ChildStdin>>,
    heard: Mutex<Instant>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Why there is no connection any more.
    lost: Option<String>,
    waiting: HashMap<u64, Sender<Reply>>,
    processes: HashMap<u64, (Role, Sender<Event>)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An answer that is on its way.
pub(crate) struct Pending<T> {
    shared: Arc<Shared>,
    answer: Receiver<Reply>,
    patience: Duration,
    kind: PhantomData<T>,
}

impl Remote {
    /// Takes over a session whose agent has said hello.
    pub(crate) fn new(name: &str, session: Box<Session>) -> Remote {
        let Session { pipe, input, output, hello } = *session;
        let shared = Arc::new(Shared {
            name: name.to_owned(),
            input: Mutex::new(Some(input)),
            heard: Mutex::new(Instant::now()),
            state: Mutex::new(State::default()),
        });
        let pipe = Arc::new(Mutex::new(pipe));
        read(output, shared.clone(), pipe.clone());
        send_heartbeats(shared.clone());
        watch(&shared, &pipe);
        let (site, next) = (OnceLock::new(), AtomicU64::new(0));
        Remote { name: name.to_owned(), hello, pipe, shared, site, next }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Why there is no connection any more, if there is none.
    pub(crate) fn why_lost(&self) -> Option<String> {
        lock(&self.shared.state).lost.clone()
    }

    pub(crate) fn hello(&self) -> &Hello {
        &self.hello
    }

    pub(crate) fn site(&self) -> Option<&Site> {
        self.site.get()
    }

    pub(crate) fn set_site(&self, site: Site) {
        // Files are made once.
        let _ = self.site.set(site);
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Asks without waiting for the answer.
    pub(crate) fn begin<T>(&self, request: Request) -> Pending<T> {
        let patience = match request {
            Request::MakeSite { .. } | Request::Hash { .. } => LONG_PATIENCE,
            Request::Finish { patience_ms, .. } => PATIENCE + Duration::from_millis(patience_ms),
            _ => PATIENCE,
        };
        let (id, (sender, answer)) = (self.number(), channel());
        let mut state = lock(&self.shared.state);
        // Without a connection the sender is dropped here, and the wait ends at once.
        if state.lost.is_none() {
            state.waiting.insert(id, sender);
        }
        drop(state);
        self.shared.say(&ToAgent::Ask { id, request });
        Pending { shared: self.shared.clone(), answer, patience, kind: PhantomData }
    }

    /// Asks and waits.
    ///
    /// # Errors
    /// [`LabError::Host`]: the connection is lost, or the agent says why it could not.
    pub(crate) fn ask<T: DeserializeOwned>(&self, request: Request) -> Result<T, LabError> {
        self.begin(request).wait()
    }

    /// How far its clock is ahead of the lab's.
    ///
    /// # Errors
    /// [`LabError::Host`].
    pub(crate) fn clock(&self) -> Result<Offset, LabError> {
        let ours = || {
            let why = |errno| LabError::Machine { why: format!("no clock: {errno}") };
            procfs::now_ns().map_err(why)
        };
        Offset::measure(ours, || self.ask(Request::Clock))
    }

    /// Starts a program there; its lines go to `events`. The answer holds its process id.
    pub(crate) fn start(
        self: &Arc<Remote>,
        cpus: &CpuList,
        command: &[String],
        is_told: bool,
        role: Role,
        events: Sender<Event>,
    ) -> Starting {
        let process = self.number();
        lock(&self.shared.state).processes.insert(process, (role, events));
        let pid = self.begin(Request::Start {
            process,
            cpus: cpus.clone(),
            command: command.to_vec(),
            is_told,
        });
        let process = RemoteProcess { remote: self.clone(), process, pid: 0, stderr: None };
        Starting { process, pid }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        let mut pipe = lock(&self.pipe);
        // Its input ends, and the agent with it. If a writer is blocked, the agent no longer reads.
        match self.shared.input.try_lock() {
            Ok(mut input) => drop(input.take()),
            Err(_) => pipe.kill(),
        }
        if !pipe.ends_within(CLOSE_PATIENCE) {
            pipe.kill();
        }
    }
}

impl<T: DeserializeOwned> Pending<T> {
    /// # Errors
    /// [`LabError::Host`].
    pub(crate) fn wait(self) -> Result<T, LabError> {
        let failed = |why: String| LabError::Host { host: self.shared.name.clone(), why };
        match self.answer.recv_timeout(self.patience) {
            Ok(Ok(value)) => json::from_value(&value)
                .map_err(|error| failed(format!("an answer that cannot be read: {error}"))),
            Ok(Err(why)) => Err(failed(why)),
            Err(RecvTimeoutError::Timeout) => {
                Err(failed(format!("no answer for {} s", self.patience.as_secs())))
            }
            Err(RecvTimeoutError::Disconnected) => {
                let lost = lock(&self.shared.state).lost.clone();
                Err(failed(lost.unwrap_or_else(|| "the connection was closed".to_owned())))
            }
        }
    }
}

impl Shared {
    /// A failed write is noticed by the reader.
    fn say(&self, message: &ToAgent) {
        if let Some(input) = &mut *lock(&self.input) {
            let _ = protocol::write(input, message);
        }
    }

    fn dispatch(&self, message: FromAgent) {
        let mut state = lock(&self.state);
        match message {
            FromAgent::Reply { id, result } => {
                // The requester may have stopped waiting.
                let _ = state.waiting.remove(&id).map(|waiting| waiting.send(result));
            }
            FromAgent::Line { process, line } => {
                if let Some((role, events)) = state.processes.get(&process) {
                    let _ = events.send(Event::Line(*role, line));
                }
            }
            FromAgent::Closed { process } => {
                if let Some((role, events)) = state.processes.get(&process) {
                    let _ = events.send(Event::Closed(*role));
                }
            }
            FromAgent::Alive | FromAgent::Hello(_) => {}
        }
    }

    fn lose(&self, why: String) {
        let mut state = lock(&self.state);
        let why = state.lost.get_or_insert(why).clone();
        // Those who wait for an answer find its sender closed.
        state.waiting.clear();
        for (_, events) in std::mem::take(&mut state.processes).into_values() {
            let _ = events.send(Event::Lost { host: self.name.clone(), why: why.clone() });
        }
    }
}

fn read(mut output: BufReader<ChildStdout>, shared: Arc<Shared>, pipe: Arc<Mutex<Pipe>>) {
    thread::spawn(move || {
        let why = loop {
            match protocol::read_line(&mut output) {
                Ok(Some(line)) => match serde_json::from_str(&line) {
                    Ok(message) => {
                        *lock(&shared.heard) = Instant::now();
                        shared.dispatch(message);
                    }
                    Err(error) => break format!("unexpected line from the agent: {error}"),
                },
                Ok(None) => break "the connection was lost".to_owned(),
                Err(error) => break format!("the connection was lost: {error}"),
            }
        };
        // A connection that the lab has closed itself is not lost.
        let closed = shared.input.try_lock().is_ok_and(|input| input.is_none());
        let why = if closed { why } else { lock(&pipe).why(&why) };
        shared.lose(why);
    });
}

fn send_heartbeats(shared: Arc<Shared>) {
    thread::spawn(move || {
        while lock(&shared.state).lost.is_none() {
            shared.say(&ToAgent::Alive);
            thread::sleep(HEARTBEAT);
        }
    });
}

/// Ends the command when the agent is silent; the thread that reads from it then says that it is lost.
fn watch(shared: &Arc<Shared>, pipe: &Arc<Mutex<Pipe>>) {
    let (shared, pipe) = (Arc::downgrade(shared), Arc::downgrade(pipe));
    thread::spawn(move || {
        while let (Some(shared), Some(pipe)) = (shared.upgrade(), pipe.upgrade()) {
            if lock(&shared.state).lost.is_some() {
                return;
            }
            if lock(&shared.heard).elapsed() > SILENCE {
                shared.lose(format!("nothing was heard of it for {} s", SILENCE.as_secs()));
                lock(&pipe).kill();
                return;
            }
            drop((shared, pipe));
            thread::sleep(HEARTBEAT);
        }
    });
}

/// A program on another host, requested to start.
pub(crate) struct Starting {
    process: RemoteProcess,
    pid: Pending<i32>,
}

impl Starting {
    /// # Errors
    /// [`LabError::Host`].
    pub(crate) fn wait(mut self) -> Result<RemoteProcess, LabError> {
        self.process.pid = self.pid.wait()?;
        Ok(self.process)
    }
}

/// A program that runs on another host. Dropping it kills it and everything in its process group.
pub(crate) struct RemoteProcess {
    remote: Arc<Remote>,
    process: u64,
    pid: i32,
    /// What it said in the end, once it has ended.
    stderr: Option<String>,
}

impl RemoteProcess {
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    pub(crate) fn has_ended(&self) -> Result<bool, LabError> {
        match self.stderr {
            Some(_) => Ok(true),
            None => self.remote.ask(Request::HasEnded { process: self.process }),
        }
    }

    pub(crate) fn tell(&self, line: &str) -> Pending<()> {
        self.remote.begin(Request::Tell { process: self.process, line: line.to_owned() })
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<(), LabError> {
        if self.stderr.is_some() {
            return Ok(());
        }
        self.remote.ask(Request::Signal { process: self.process, signal: signal as i32 })
    }

    pub(crate) fn finish(&mut self, patience: Duration, asked: bool) -> Result<Exit, LabError> {
        let patience_ms = patience.as_millis() as u64;
        let Ended { exit, stderr } =
            self.remote.ask(Request::Finish { process: self.process, patience_ms, asked })?;
        self.stderr = Some(stderr);
        Ok(exit)
    }

    pub(crate) fn stderr(&self) -> &str {
        self.stderr.as_deref().unwrap_or_default()
    }
}

impl Drop for RemoteProcess {
    fn drop(&mut self) {
        lock(&self.remote.shared.state).processes.remove(&self.process);
        if self.stderr.is_none() {
            // Without a connection the agent has ended it.
            drop(self.remote.begin::<()>(Request::Kill { process: self.process }));
        }
    }
}
