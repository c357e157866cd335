//! One run: fresh server, fresh client, measured window, orderly end.
//!
//! While the window is open the lab sleeps in one channel. It wakes for the marks, samples, and
//! sleeps again.

mod account;
mod clients;

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use self::clients::Client;
use crate::accounting::{self, BackgroundLoad, Detail, KernelMemory, ProcessMemory};
use crate::bench::{Bench, Slot};
use crate::clock::Offset;
use crate::commands::{self, configure};
use crate::contract;
use crate::cpus::CpuList;
use crate::error::LabError;
use crate::experiment::{Accounting, NetKind, Ready};
use crate::host::share::share;
use crate::host::{Answer, End, Process};
use crate::net::Network;
use crate::placement::Distance;
use crate::process::{Event, Role};
use crate::record::{ClientRun, Failure, HostRun, RUN_SCHEMA, RunRecord};
use crate::workload::Axis;

/// How long a server may take until it can be used.
const READY_PATIENCE: Duration = Duration::from_secs(10);

/// How long the client may take beyond warm-up and window, for connecting and for its result.
const CLIENT_PATIENCE: Duration = Duration::from_secs(15);

/// How long either may take to end once it has been asked to.
const STOP_PATIENCE: Duration = Duration::from_secs(3);

/// Pause between two looks at a server that says nothing.
const PROBE_TICK: Duration = Duration::from_millis(10);

/// Why a run has no record.
enum Halt {
    /// The user wants to stop.
    Stopped,
    Failed(LabError),
}

impl From<LabError> for Halt {
    fn from(error: LabError) -> Halt {
        Halt::Failed(error)
    }
}

/// An end of the measured window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    WindowStart,
    WindowEnd,
}

/// Somebody who looks at a run beside the lab itself, and may take the time for it.
pub(crate) trait Observer {
    /// The server is ready; the load generator has not been started.
    fn ready(&mut self, server: i32);

    /// The load generator is at an end of its window, and the lab has taken its sample.
    fn at(&mut self, mark: Mark, server: i32, client: i32);
}

/// No profile.
impl Observer for () {
    fn ready(&mut self, _: i32) {}

    fn at(&mut self, _: Mark, _: i32, _: i32) {}
}

/// Makes one run. Returns nothing when it was stopped before its end.
///
/// # Errors
/// When the run could not even be tried, or not be seen to its end: nothing to start, no port, no
/// connection to a host. Failures of the subjects are in the record.
pub(crate) fn run(
    bench: &Bench<'_>,
    network: &mut Network,
    slot: &Slot<'_>,
) -> Result<Option<RunRecord>, LabError> {
    run_observed(bench, network, slot, &mut ())
}

/// Makes one run that somebody else looks at.
///
/// # Errors
/// See [`run`].
pub(crate) fn run_observed(
    bench: &Bench<'_>,
    network: &mut Network,
    slot: &Slot<'_>,
    observer: &mut dyn Observer,
) -> Result<Option<RunRecord>, LabError> {
    match try_run(bench, network, slot, observer) {
        Ok(record) => Ok(Some(record)),
        Err(Halt::Stopped) => Ok(None),
        Err(Halt::Failed(error)) => Err(error),
    }
}

fn try_run(
    bench: &Bench<'_>,
    network: &mut Network,
    slot: &Slot<'_>,
    observer: &mut dyn Observer,
) -> Result<RunRecord, Halt> {
    let protocol = slot.cell.protocol();
    let mut address = network.free_address(protocol)?;
    if let Some(port) = slot.subject.known_peer().and_then(|peer| peer.port) {
        address.set_port(port);
    }
    network.steer_to(bench.cpus_of_server(network, slot))?;
    let network = &*network;
    let record = blank_record(bench, network, slot, address)?;
    let one_host = network.record.kind != NetKind::Hosts;
    let round_trip_ns = || one_host.then(|| bench.round_trip_ns()).flatten();
    let before_ns = round_trip_ns();
    let (sender, events) = channel();
    bench.stop.wake(sender.clone());
    let (server, command) = (&network.server, &record.server_command);
    let server_cpus = bench.cpus_of_server(network, slot);
    let server =
        server.host.start(bench.helper, &server_cpus, command, false, Role::Server, sender.clone());
    let server = server.wait()?;
    let detail = match slot.subject.accounting.unwrap_or(bench.experiment.accounting) {
        Accounting::IdleClockOnly => Detail::Clocks,
        Accounting::IdleClock => Detail::Full,
    };
    let mut run = Run {
        bench,
        network,
        server_cpus,
        events,
        record,
        server,
        clients: Vec::new(),
        clocks: Vec::new(),
        detail,
        server_memory: Vec::new(),
        kernel_memory: Vec::new(),
        observer,
    };
    if run.wait_until_ready(slot.subject.ready_check(protocol), address)? {
        accounting::prepare();
        run.look_at_memory(true, true)?;
        run.observer.ready(run.server.pid());
        let before = Surroundings::of(network)?;
        run.clocks.clone_from(&before.clocks);
        run.start_clients(&sender)?;
        let (warmup_s, window_s) = bench.experiment.pace_s(protocol);
        run.follow_clients(Duration::from_secs_f64(warmup_s + window_s))?;
        let clocks = run.note_surroundings(&before)?;
        run.stop_server()?;
        if one_host {
            run.record.distance = Some(Distance { before_ns, after_ns: round_trip_ns() });
        }
        run.account(&clocks);
    } else {
        run.stop_server()?;
    }
    Ok(run.record)
}

/// A record with the commands and nothing that has happened.
fn blank_record(
    bench: &Bench<'_>,
    network: &Network,
    slot: &Slot<'_>,
    address: SocketAddr,
) -> Result<RunRecord, LabError> {
    let protocol = slot.cell.protocol();
    let of_server = slot.subject.command_template(protocol);
    let generator = slot.cell.point.on(Axis::Generator).unwrap_or(0) as usize;
    let mut of_clients = bench.experiment.load_templates(protocol, slot.subject).into_iter();
    let of_client = of_clients.nth(generator).unwrap_or_default();
    let clients = &network.clients;
    let command = |end, point, template: &[String]| {
        Ok::<_, LabError>(
            commands::values(bench, network, slot, end, point, address, template)?.fill(template),
        )
    };
    let mut commands = Vec::new();
    for (index, client) in clients.iter().enumerate() {
        let point = share(slot.cell.point, clients.len(), index);
        let mut command = command(client, point, &of_client)?;
        if clients.len() > 1 && clients::can_be_held(&of_client) {
            command.push(clients::HOLD.to_owned());
        }
        commands.push((client, command));
    }
    let client_command = commands.first().map(|(_, first)| first.clone()).unwrap_or_default();
    let several = commands.len() > 1;
    let client = |(end, command): (&End, Vec<String>)| {
        let host = end.host.name().to_owned();
        ClientRun { host, command, load: None, exit: None }
    };
    Ok(RunRecord {
        schema: RUN_SCHEMA.to_owned(),
        index: slot.index,
        occasion: 0,
        cell: slot.cell,
        block: slot.block,
        subject: slot.subject.name.clone(),
        rate_per_s: slot.rate_per_s,
        at_s: bench.began.elapsed().as_secs_f64(),
        server_command: command(&network.server, slot.cell.point, &of_server)?,
        server_config: configure(bench, network, slot, address)?,
        client_command,
        ready: None,
        load: None,
        server_final: None,
        cpu: None,
        memory: None,
        distance: None,
        others: None,
        server_exit: None,
        client_exit: None,
        hosts: Vec::new(),
        clients: if several { commands.into_iter().map(client).collect() } else { Vec::new() },
        failures: Vec::new(),
    })
}

/// What else happens on the hosts of a run, and what their clocks say.
struct Surroundings {
    /// Of each host; on this host alone there is one for both sides.
    background: Vec<BackgroundLoad>,
    clocks: Vec<Offset>,
}

impl Surroundings {
    fn of(network: &Network) -> Result<Surroundings, LabError> {
        let ends = hosts_of(network);
        let clocks = ends.iter().map(|end| end.host.clock()).collect::<Result<_, _>>()?;
        let asked: Vec<Answer<BackgroundLoad>> =
            ends.iter().map(|end| end.host.background(&end.roots)).collect();
        let background = asked.into_iter().map(Answer::wait).collect::<Result<_, _>>()?;
        Ok(Surroundings { background, clocks })
    }
}

/// One end of each host, the server's first.
fn hosts_of(network: &Network) -> Vec<&End> {
    let clients = match network.record.kind {
        NetKind::Hosts => &network.clients[..],
        NetKind::Rps | NetKind::Lo | NetKind::Napi => &[],
    };
    std::iter::once(&network.server).chain(clients).collect()
}

struct Run<'a> {
    bench: &'a Bench<'a>,
    network: &'a Network,
    /// Those of the server's workers.
    server_cpus: CpuList,
    events: Receiver<Event>,
    record: RunRecord,
    server: Process,
    clients: Vec<Client>,
    /// Of each host, the server's first, as measured just before.
    clocks: Vec<Offset>,
    /// How much is looked at while the window is open.
    detail: Detail,
    /// When the server was ready, and behind the window.
    server_memory: Vec<ProcessMemory>,
    /// When the server was ready, and when the window had opened.
    kernel_memory: Vec<KernelMemory>,
    observer: &'a mut dyn Observer,
}

impl Run<'_> {
    fn fail(&mut self, failure: Failure) {
        self.record.failures.push(failure);
    }

    /// Waits until the server can be used. `false` means that it cannot, and why is recorded.
    fn wait_until_ready(&mut self, check: Ready, address: SocketAddr) -> Result<bool, Halt> {
        let deadline = Instant::now() + READY_PATIENCE;
        loop {
            let (ready, patience) = match check {
                Ready::Json => (false, READY_PATIENCE),
                Ready::Tcp => (self.accepts(address)?, PROBE_TICK),
                Ready::Udp => (self.network.server.host.is_udp_bound(address.port())?, PROBE_TICK),
            };
            if ready {
                return Ok(true);
            }
            match next_event(&self.events, deadline.min(Instant::now() + patience)) {
                Ok(Event::Stop) => return Err(Halt::Stopped),
                Ok(Event::Lost { host, why }) => return Err(LabError::Host { host, why }.into()),
                Ok(Event::Line(_, line)) => {
                    if let Some((_, value)) = contract::event_of(&line).filter(|it| it.0 == "ready")
                    {
                        self.record.ready = Some(value);
                        if check == Ready::Json {
                            return Ok(true);
                        }
                    }
                }
                Ok(Event::Closed(_)) if check == Ready::Json => break,
                Ok(Event::Closed(_)) | Err(_) => {}
            }
            if self.server.has_ended()? || Instant::now() >= deadline {
                break;
            }
        }
        // The end of a process comes a moment after that of its output.
        let ended = self.died_within(Duration::from_millis(200))?;
        let exit = self.server.finish(Duration::ZERO, !ended)?;
        let waited = READY_PATIENCE.as_secs();
        let how = if ended { exit.to_string() } else { format!("not ready after {waited} s") };
        self.fail(Failure::ServerNotReady { why: with_stderr(how, &self.server) });
        self.record.server_exit = Some(exit);
        Ok(false)
    }

    /// Whether a client gets a connection; every one of them reached the host when it was set up.
    fn accepts(&self, address: SocketAddr) -> Result<bool, LabError> {
        let client = &self.network.clients[0];
        Ok(client.host.why_not_connect(address)?.is_none())
    }

    /// Records what else happened around the run, and returns the clocks of the hosts over it.
    fn note_surroundings(&mut self, before: &Surroundings) -> Result<Vec<Offset>, LabError> {
        let after = Surroundings::of(self.network)?;
        let clocks = before.clocks.iter().zip(&after.clocks);
        let clocks: Vec<Offset> = clocks.map(|(a, b)| Offset::between(*a, *b)).collect();
        let mut others = before.background.iter().zip(&after.background).map(|(a, b)| a.until(b));
        if self.network.record.kind == NetKind::Hosts {
            let ends = hosts_of(self.network).into_iter().zip(&clocks).zip(others);
            let host = |((end, clock), others): ((&End, &Offset), _)| HostRun {
                host: end.host.name().to_owned(),
                clock: *clock,
                others: Some(others),
            };
            self.record.hosts = ends.map(host).collect();
        } else {
            self.record.others = others.next();
        }
        Ok(clocks)
    }

    /// Looks once at each end: of several windows, at the first to open and the first to end.
    fn look_at_memory(&mut self, server: bool, kernel: bool) -> Result<(), LabError> {
        if self.detail == Detail::Clocks {
            return Ok(());
        }
        let host = &self.network.server.host;
        if server && self.server_memory.len() < 2 {
            self.server_memory.push(host.process_memory(self.server.pid())?);
        }
        if kernel && self.kernel_memory.len() < 2 {
            self.kernel_memory.push(host.kernel_memory()?);
        }
        Ok(())
    }

    fn note_server_line(&mut self, line: &str) {
        match contract::event_of(line) {
            Some((event, value)) if event == "final" => self.record.server_final = Some(value),
            _ => {}
        }
    }

    fn died_within(&self, patience: Duration) -> Result<bool, LabError> {
        let deadline = Instant::now() + patience;
        while !self.server.has_ended()? && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.server.has_ended()
    }

    /// Asks the server to stop, reads what it says at its end, and judges how it ended.
    fn stop_server(&mut self) -> Result<(), LabError> {
        if self.record.server_exit.is_some() {
            return Ok(());
        }
        let died = self.server.has_ended()?;
        self.server.signal(Signal::SIGTERM)?;
        let exit = self.server.finish(STOP_PATIENCE, !died)?;
        while let Ok(event) = self.events.try_recv() {
            if let Event::Line(Role::Server, line) = event {
                self.note_server_line(&line);
            }
        }
        if died {
            let why = with_stderr(format!("{exit} under load"), &self.server);
            self.fail(Failure::ServerDied { why });
        } else if !exit.is_clean() {
            let why = with_stderr(exit.to_string(), &self.server);
            self.fail(Failure::ServerDidNotStop { why });
        }
        self.record.server_exit = Some(exit);
        Ok(())
    }
}

/// The next event before `deadline`. Behind it there is none, even if one waits: a program that never
/// stops talking would never be seen to its end.
fn next_event(events: &Receiver<Event>, deadline: Instant) -> Result<Event, RecvTimeoutError> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(RecvTimeoutError::Timeout) } else { events.recv_timeout(left) }
}

fn with_stderr(how: String, process: &Process) -> String {
    match process.stderr() {
        said if said.is_empty() => how,
        said => format!("{how}; it said: {said}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_never_stops_talking_is_waited_for_until_the_deadline() {
        let (sender, events) = channel();
        let talk = || sender.send(Event::Line(Role::Server, String::new())).unwrap();
        talk();
        let later = Instant::now() + Duration::from_secs(60);
        assert!(matches!(next_event(&events, later), Ok(Event::Line(..))));
        talk();
        assert!(matches!(next_event(&events, Instant::now()), Err(RecvTimeoutError::Timeout)));
    }
}
