//! The load generators of a run, one on each client host: from their start to their ends.

use std::sync::mpsc::{RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use super::{CLIENT_PATIENCE, Halt, Mark, Run, STOP_PATIENCE, next_event, with_stderr};
use crate::accounting::Sides;
use crate::contract;
use crate::error::LabError;
use crate::host::{Process, Sampling, Started};
use crate::process::{Event, Exit, Role};
use crate::record::Failure;
use twinring_wire::load::{WINDOW_END, WINDOW_START};

/// A load generator.
pub(super) struct Client {
    pub(super) process: Process,
    /// It may still say something.
    pub(super) talks: bool,
    /// Begun at the marks of its window.
    sampling: Vec<Sampling>,
    /// What came of them.
    pub(super) samples: Vec<Sides>,
    pub(super) line: Option<Value>,
    pub(super) exit: Option<Exit>,
}

impl Run<'_> {
    /// Starts the load generators of all hosts at once.
    pub(super) fn start_clients(&mut self, events: &Sender<Event>) -> Result<(), LabError> {
        let Run { bench, network, record, .. } = self;
        let command = |index: usize| match record.clients.get(index) {
            Some(client) => &client.command,
            None => &record.client_command,
        };
        let starting: Vec<Started> = network
            .clients
            .iter()
            .enumerate()
            .map(|(index, end)| {
                let role = Role::Client(index);
                end.host.start(bench.helper, &end.cpus, command(index), role, events.clone())
            })
            .collect();
        for started in starting {
            let process = started.wait()?;
            self.clients.push(Client {
                process,
                talks: true,
                sampling: Vec::new(),
                samples: Vec::new(),
                line: None,
                exit: None,
            });
        }
        Ok(())
    }

    /// Reads the clients' lines, samples at their marks, and sees them to their ends. `measuring`
    /// is how long they are to load.
    pub(super) fn follow_clients(&mut self, measuring: Duration) -> Result<(), Halt> {
        let limit = measuring + CLIENT_PATIENCE;
        let mut deadline = Instant::now() + limit;
        let mut asked = false;
        while self.clients.iter().any(|client| client.talks) {
            match next_event(&self.events, deadline) {
                Ok(Event::Stop) => return Err(Halt::Stopped),
                Ok(Event::Lost { host, why }) => return Err(LabError::Host { host, why }.into()),
                Ok(Event::Closed(Role::Client(index))) => self.clients[index].talks = false,
                Err(RecvTimeoutError::Disconnected) => break,
                Ok(Event::Closed(Role::Server)) => {
                    // Its end comes a moment after that of its output. A server that only closed
                    // its output may go on.
                    if !asked && self.died_within(Duration::from_millis(300))? {
                        self.signal_clients(Signal::SIGINT)?;
                        deadline = Instant::now() + STOP_PATIENCE;
                        asked = true;
                    }
                }
                Ok(Event::Line(Role::Server, line)) => self.note_server_line(&line),
                Ok(Event::Line(Role::Client(index), line)) => {
                    self.note_client_line(index, &line)?;
                }
                Err(RecvTimeoutError::Timeout) => {
                    if !asked {
                        self.fail(Failure::ClientTimeout { limit_s: limit.as_secs_f64() });
                    }
                    self.signal_clients(Signal::SIGTERM)?;
                    asked = true;
                    break;
                }
            }
        }
        for client in &mut self.clients {
            let sampling = client.sampling.drain(..).map(Sampling::wait);
            client.samples = sampling.collect::<Result<_, _>>()?;
        }
        self.finish_clients(asked)?;
        Ok(())
    }

    fn signal_clients(&self, signal: Signal) -> Result<(), LabError> {
        self.clients.iter().try_for_each(|client| client.process.signal(signal))
    }

    fn note_client_line(&mut self, index: usize, line: &str) -> Result<(), LabError> {
        match contract::event_of(line) {
            Some((event, _)) if event == WINDOW_START || event == WINDOW_END => {
                let ends = [&self.network.server, &self.network.clients[index]];
                let pids = [self.server.pid(), self.clients[index].process.pid()];
                let sampling = Sampling::begin(ends, &self.server_cpus, pids, self.detail)?;
                self.clients[index].sampling.push(sampling);
                let mark = match &*event {
                    WINDOW_END => Mark::WindowEnd,
                    _ => Mark::WindowStart,
                };
                self.observer.at(mark, pids[0], pids[1]);
                self.look_at_memory(mark == Mark::WindowEnd, mark == Mark::WindowStart)?;
            }
            Some((event, value)) if event == "result" => self.clients[index].line = Some(value),
            _ => {}
        }
        Ok(())
    }

    /// Waits for every client to end; `asked` says whether they had been asked to stop.
    fn finish_clients(&mut self, asked: bool) -> Result<(), LabError> {
        for index in 0..self.clients.len() {
            let client = &mut self.clients[index];
            let exit = client.process.finish(STOP_PATIENCE, asked)?;
            if !asked && (exit.killed || exit.code != Some(0)) {
                let why = with_stderr(exit.to_string(), &client.process);
                let failure = Failure::ClientFailed { why: self.at_client(index, why) };
                self.fail(failure);
            }
            self.clients[index].exit = Some(exit);
        }
        let lines = self.clients.iter_mut().map(|client| (client.line.take(), client.exit.take()));
        match &mut self.record.clients[..] {
            [] => {
                if let Some((load, exit)) = lines.last() {
                    (self.record.load, self.record.client_exit) = (load, exit);
                }
            }
            several => {
                for (client, (load, exit)) in several.iter_mut().zip(lines) {
                    (client.load, client.exit) = (load, exit);
                }
            }
        }
        Ok(())
    }

    /// Says which client something is about, if there are several.
    pub(super) fn at_client(&self, index: usize, what: String) -> String {
        match self.record.clients.get(index) {
            Some(client) => format!("on {}: {what}", client.host),
            None => what,
        }
    }
}
