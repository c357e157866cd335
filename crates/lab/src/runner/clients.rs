//! The load generators of a run, one on each client host: from their start to their ends.

use std::sync::mpsc::{RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use super::{CLIENT_PATIENCE, Halt, Mark, Run, STOP_PATIENCE, next_event, with_stderr};
use crate::accounting::Sides;
use crate::clock::Offset;
use crate::contract;
use crate::error::LabError;
use crate::host::{Answer, Process, Sampling, Started};
use crate::process::{Event, Exit, Role};
use crate::procfs;
use crate::record::Failure;
use twinring_wire::load::{HELD, WINDOW_END, WINDOW_START};

/// The option with which our load generator says that it is connected, and waits for the moment to begin.
pub(super) const HOLD: &str = "--hold";

/// From the moment that all load generators are connected until they begin: time for each to hear of it.
const BEGIN_MARGIN: Duration = Duration::from_millis(200);

/// Whether the command of a load generator, placeholders still in it, can be held: it is ours.
pub(super) fn can_be_held(template: &[String]) -> bool {
    template.starts_with(&["{twinring}".to_owned(), "load".to_owned()])
}

/// A load generator.
pub(super) struct Client {
    pub(super) process: Process,
    /// It waits for the moment to begin.
    is_held: bool,
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
                let (command, role) = (command(index), Role::Client(index));
                let is_told = command.last().is_some_and(|word| word == HOLD);
                end.host.start(bench.helper, &end.cpus, command, is_told, role, events.clone())
            })
            .collect();
        for started in starting {
            let process = started.wait()?;
            self.clients.push(Client {
                process,
                is_held: false,
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
            if !asked && self.waits_in_vain() {
                self.signal_clients(Signal::SIGINT)?;
                deadline = Instant::now() + STOP_PATIENCE;
                asked = true;
            }
            match next_event(&self.events, deadline) {
                Ok(Event::Stop) => return Err(Halt::Stopped),
                Ok(Event::Lost { host, why }) => return Err(LabError::Host { host, why }.into()),
                Ok(Event::Closed(Role::Client(index))) => self.clients[index].talks = false,
                Err(RecvTimeoutError::Disconnected) => break,
                Ok(Event::Closed(Role::Server(index))) => {
                    // Its end comes a moment after that of its output. A server that only closed
                    // its output may go on.
                    if !asked && self.died_within(index, Duration::from_millis(300))? {
                        self.signal_clients(Signal::SIGINT)?;
                        deadline = Instant::now() + STOP_PATIENCE;
                        asked = true;
                    }
                }
                Ok(Event::Line(Role::Server(index), line)) => self.note_server_line(index, &line),
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

    /// Has all load generators begin at one moment, once all of them are connected. Each is told by its own
    /// clock.
    fn begin_together(&mut self) -> Result<(), LabError> {
        if !self.clients.iter().all(|client| client.is_held) {
            return Ok(());
        }
        let now_ns = procfs::now_ns()
            .map_err(|errno| LabError::Machine { why: format!("no clock: {errno}") })?;
        let begin_ns = now_ns + BEGIN_MARGIN.as_nanos() as u64;
        let clocks = self.clocks.iter().skip(self.servers.len());
        let told: Vec<Answer<()>> = self
            .clients
            .iter_mut()
            .zip(clocks)
            .map(|(client, clock)| {
                client.process.tell(&Offset::NONE.translate(begin_ns, *clock).to_string())
            })
            .collect();
        told.into_iter().try_for_each(Answer::wait)
    }

    /// Whether load generators wait for one that ended before it was connected, which is then a failure of it.
    fn waits_in_vain(&mut self) -> bool {
        let states: Vec<_> = self.clients.iter().map(|it| (it.is_held, it.talks)).collect();
        let Some(ended) = missing_at_the_start(&states) else { return false };
        let why = self.at_client(ended, "it ended before it was connected".to_owned());
        self.fail(Failure::ClientFailed { why });
        true
    }

    fn signal_clients(&self, signal: Signal) -> Result<(), LabError> {
        self.clients.iter().try_for_each(|client| client.process.signal(signal))
    }

    fn note_client_line(&mut self, index: usize, line: &str) -> Result<(), LabError> {
        match contract::event_of(line) {
            Some((event, _)) if event == WINDOW_START || event == WINDOW_END => {
                let server = self.server_of(index);
                let ends = [&self.network.servers[server], &self.network.clients[index]];
                let pids =
                    [&self.servers[server].process, &self.clients[index].process].map(Process::pid);
                let cpus = &self.server_cpus[server];
                let sampling = Sampling::begin(ends, cpus, pids, self.detail)?;
                self.clients[index].sampling.push(sampling);
                let mark = match &*event {
                    WINDOW_END => Mark::WindowEnd,
                    _ => Mark::WindowStart,
                };
                self.observer.at(mark, pids[0], pids[1]);
                self.look_at_memory(mark == Mark::WindowEnd, mark == Mark::WindowStart)?;
            }
            Some((event, _)) if event == HELD => {
                self.clients[index].is_held = true;
                self.begin_together()?;
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

/// Which of the load generators, each held or not and still talking or not, will never be held, although
/// others wait for it.
fn missing_at_the_start(states: &[(bool, bool)]) -> Option<usize> {
    let somebody_waits = states.iter().any(|(is_held, _)| *is_held);
    let missing = || states.iter().position(|(is_held, talks)| !is_held && !talks);
    somebody_waits.then(missing).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_for_a_load_generator_that_has_ended() {
        let (connecting, held) = ((false, true), (true, true));
        let (failed, done) = ((false, false), (true, false));
        for (states, expected) in [
            (&[connecting, held][..], None),
            (&[held, held], None),
            (&[held, failed], Some(1)),
            (&[connecting, held, failed], Some(2)),
            // All of them began, and some are done.
            (&[done, held, done], None),
            // Programs of others, which are never held.
            (&[connecting, failed], None),
        ] {
            assert_eq!(missing_at_the_start(states), expected, "{states:?}");
        }
    }
}
