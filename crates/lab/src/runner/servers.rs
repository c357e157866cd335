//! The servers of a run: from their start until they can be used, and their ends.

use std::net::SocketAddr;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use super::{Halt, PROBE_TICK, READY_PATIENCE, Run, STOP_PATIENCE, next_event, with_stderr};
use crate::accounting::{KernelMemory, ProcessMemory};
use crate::bench::Bench;
use crate::contract;
use crate::cpus::CpuList;
use crate::error::LabError;
use crate::experiment::Ready;
use crate::host::{Process, Started};
use crate::net::Network;
use crate::process::{Event, Exit, Role};
use crate::record::{Failure, RunRecord};

/// A server.
pub(super) struct Server {
    pub(super) process: Process,
    address: SocketAddr,
    is_ready: bool,
    /// What it said at both ends, and how it ended.
    ready: Option<Value>,
    last: Option<Value>,
    exit: Option<Exit>,
}

/// Starts all servers of a run at once, each pinned to `cpus` of its host.
pub(super) fn start(
    bench: &Bench<'_>,
    network: &Network,
    record: &RunRecord,
    addresses: &[SocketAddr],
    cpus: &[CpuList],
    events: &Sender<Event>,
) -> Result<Vec<Server>, LabError> {
    let first = std::iter::once(&record.server_command);
    let commands = first.chain(record.further_servers.iter().map(|it| &it.command));
    let ends = network.servers.iter().zip(cpus).zip(commands).enumerate();
    let starting: Vec<Started> = ends
        .map(|(index, ((end, cpus), command))| {
            let role = Role::Server(index);
            end.host.start(bench.helper, cpus, command, false, role, events.clone())
        })
        .collect();
    let server = |(started, address): (Started, &SocketAddr)| {
        let (process, address) = (started.wait()?, *address);
        Ok(Server { process, address, is_ready: false, ready: None, last: None, exit: None })
    };
    starting.into_iter().zip(addresses).map(server).collect()
}

impl Run<'_> {
    /// The server that a load generator asks.
    pub(super) fn server_of(&self, client: usize) -> usize {
        client % self.servers.len()
    }

    /// Waits until all servers can be used. `false` means that one cannot, and why is recorded.
    pub(super) fn wait_until_ready(&mut self, check: Ready) -> Result<bool, Halt> {
        let deadline = Instant::now() + READY_PATIENCE;
        let patience = if check == Ready::Json { READY_PATIENCE } else { PROBE_TICK };
        loop {
            for index in 0..self.servers.len() {
                self.servers[index].is_ready |= self.can_be_used(index, check)?;
            }
            let Some(waited_for) = self.servers.iter().position(|it| !it.is_ready) else {
                return Ok(true);
            };
            match next_event(&self.events, deadline.min(Instant::now() + patience)) {
                Ok(Event::Stop) => return Err(Halt::Stopped),
                Ok(Event::Lost { host, why }) => return Err(LabError::Host { host, why }.into()),
                Ok(Event::Line(Role::Server(index), line)) => {
                    let server = &mut self.servers[index];
                    if let Some((_, value)) = contract::event_of(&line).filter(|it| it.0 == "ready")
                    {
                        server.ready = Some(value);
                        server.is_ready |= check == Ready::Json;
                    }
                }
                Ok(Event::Closed(Role::Server(index)))
                    if check == Ready::Json && !self.servers[index].is_ready =>
                {
                    self.note_not_ready(index)?;
                    return Ok(false);
                }
                Ok(_) | Err(_) => {}
            }
            for index in 0..self.servers.len() {
                if self.servers[index].process.has_ended()? {
                    self.note_not_ready(index)?;
                    return Ok(false);
                }
            }
            if Instant::now() >= deadline {
                self.note_not_ready(waited_for)?;
                return Ok(false);
            }
        }
    }

    /// Whether a server that does not say so itself can be used. Every load generator reached every host when they
    /// were set up.
    fn can_be_used(&self, index: usize, check: Ready) -> Result<bool, LabError> {
        let address = self.servers[index].address;
        match check {
            Ready::Json => Ok(false),
            Ready::Tcp => Ok(self.network.clients[0].host.why_not_connect(address)?.is_none()),
            Ready::Udp => self.network.servers[index].host.is_udp_bound(address.port()),
        }
    }

    fn note_not_ready(&mut self, index: usize) -> Result<(), LabError> {
        // The end of a process comes a moment after that of its output.
        let ended = self.died_within(index, Duration::from_millis(200))?;
        let server = &mut self.servers[index];
        let exit = server.process.finish(Duration::ZERO, !ended)?;
        let waited = READY_PATIENCE.as_secs();
        let how = if ended { exit.to_string() } else { format!("not ready after {waited} s") };
        let why = with_stderr(how, &server.process);
        server.exit = Some(exit);
        let why = self.at_server(index, why);
        self.fail(Failure::ServerNotReady { why });
        Ok(())
    }

    pub(super) fn died_within(&self, index: usize, patience: Duration) -> Result<bool, LabError> {
        let deadline = Instant::now() + patience;
        let process = &self.servers[index].process;
        while !process.has_ended()? && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        process.has_ended()
    }

    pub(super) fn note_server_line(&mut self, index: usize, line: &str) {
        match contract::event_of(line) {
            Some((event, value)) if event == "final" => self.servers[index].last = Some(value),
            _ => {}
        }
    }

    /// Memory of all servers, and of their hosts' kernels.
    pub(super) fn server_memory(&self) -> Result<ProcessMemory, LabError> {
        let mut sum = ProcessMemory::default();
        for (server, end) in self.servers.iter().zip(&self.network.servers) {
            sum.add(end.host.process_memory(server.process.pid())?);
        }
        Ok(sum)
    }

    /// See [`Run::server_memory`].
    pub(super) fn kernel_memory(&self) -> Result<KernelMemory, LabError> {
        let mut sum = KernelMemory::default();
        for end in &self.network.servers {
            sum.add(end.host.kernel_memory()?);
        }
        Ok(sum)
    }

    /// Asks the servers to stop, reads what they say at their ends, and judges how they ended.
    pub(super) fn stop_servers(&mut self) -> Result<(), LabError> {
        let mut died = Vec::new();
        for server in self.servers.iter().filter(|it| it.exit.is_none()) {
            died.push(server.process.has_ended()?);
            server.process.signal(Signal::SIGTERM)?;
        }
        let mut died = died.into_iter();
        for index in 0..self.servers.len() {
            let server = &mut self.servers[index];
            if server.exit.is_some() {
                continue;
            }
            let died = died.next().unwrap_or(false);
            let exit = server.process.finish(STOP_PATIENCE, !died)?;
            if died || !exit.is_clean() {
                let how = if died { format!("{exit} under load") } else { exit.to_string() };
                let why = with_stderr(how, &server.process);
                let why = self.at_server(index, why);
                self.fail(match died {
                    true => Failure::ServerDied { why },
                    false => Failure::ServerDidNotStop { why },
                });
            }
            self.servers[index].exit = Some(exit);
        }
        while let Ok(event) = self.events.try_recv() {
            if let Event::Line(Role::Server(index), line) = event {
                self.note_server_line(index, &line);
            }
        }
        self.record_servers();
        Ok(())
    }

    /// Puts what the servers said into the record.
    fn record_servers(&mut self) {
        let mut servers = self.servers.iter_mut();
        if let Some(first) = servers.next() {
            let record = &mut self.record;
            record.ready = first.ready.take();
            record.server_final = first.last.take();
            record.server_exit = first.exit.take();
        }
        for (server, record) in servers.zip(&mut self.record.further_servers) {
            record.ready = server.ready.take();
            record.server_final = server.last.take();
            record.exit = server.exit.take();
        }
    }

    /// Says which server something is about, if there are several.
    fn at_server(&self, index: usize, what: String) -> String {
        match self.servers.len() {
            1 => what,
            _ => format!("on {}: {what}", self.network.servers[index].host.name()),
        }
    }
}
