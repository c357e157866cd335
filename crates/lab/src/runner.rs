//! One run: fresh server, fresh client, measured window, orderly end.
//!
//! While the window is open the lab sleeps in one channel. It wakes for the marks, samples, and
//! sleeps again.

mod account;
mod clients;
mod servers;

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use self::clients::Client;
use self::servers::Server;
use crate::accounting::{self, BackgroundLoad, Detail, KernelMemory, ProcessMemory};
use crate::bench::{Bench, Slot};
use crate::clock::Offset;
use crate::commands::{self, configure};
use crate::cpus::CpuList;
use crate::error::LabError;
use crate::experiment::{Accounting, NetKind};
use crate::host::share::share;
use crate::host::{Answer, End, Process};
use crate::net::Network;
use crate::placement::Distance;
use crate::process::Event;
use crate::record::{ClientRun, Failure, HostRun, RUN_SCHEMA, RunRecord, ServerRun};
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
    let mut addresses = network.free_addresses(protocol)?;
    if let Some(port) = slot.subject.known_peer().and_then(|peer| peer.port) {
        addresses.iter_mut().for_each(|address| address.set_port(port));
    }
    network.steer_to(bench.cpus_of_server(&network.servers[0], slot))?;
    let network = &*network;
    let record = blank_record(bench, network, slot, &addresses)?;
    let one_host = network.record.kind != NetKind::Hosts;
    let round_trip_ns = || one_host.then(|| bench.round_trip_ns()).flatten();
    let before_ns = round_trip_ns();
    let (sender, events) = channel();
    bench.stop.wake(sender.clone());
    let server_cpus: Vec<CpuList> =
        network.servers.iter().map(|end| bench.cpus_of_server(end, slot)).collect();
    let servers = servers::start(bench, network, &record, &addresses, &server_cpus, &sender)?;
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
        servers,
        clients: Vec::new(),
        clocks: Vec::new(),
        detail,
        server_memory: Vec::new(),
        kernel_memory: Vec::new(),
        observer,
    };
    if run.wait_until_ready(slot.subject.ready_check(protocol))? {
        accounting::prepare();
        run.look_at_memory(true, true)?;
        run.observer.ready(run.servers[0].process.pid());
        let before = Surroundings::of(network)?;
        run.clocks.clone_from(&before.clocks);
        run.start_clients(&sender)?;
        let (warmup_s, window_s) = bench.experiment.pace_s(protocol);
        run.follow_clients(Duration::from_secs_f64(warmup_s + window_s))?;
        let clocks = run.note_surroundings(&before)?;
        run.stop_servers()?;
        if one_host {
            run.record.distance = Some(Distance { before_ns, after_ns: round_trip_ns() });
        }
        run.account(&clocks);
    } else {
        run.stop_servers()?;
    }
    Ok(run.record)
}

/// A record with the commands and nothing that has happened.
fn blank_record(
    bench: &Bench<'_>,
    network: &Network,
    slot: &Slot<'_>,
    addresses: &[SocketAddr],
) -> Result<RunRecord, LabError> {
    let protocol = slot.cell.protocol();
    let of_server = slot.subject.command_template(protocol);
    let generator = slot.cell.point.on(Axis::Generator).unwrap_or(0) as usize;
    let mut of_clients = bench.experiment.load_templates(protocol, slot.subject).into_iter();
    let of_client = of_clients.nth(generator).unwrap_or_default();
    let clients = &network.clients;
    let command = |end, point, address, template: &[String]| {
        Ok::<_, LabError>(
            commands::values(bench, network, slot, end, point, address, template)?.fill(template),
        )
    };
    let server = |index: usize| {
        let (end, address) = (&network.servers[index], addresses[index]);
        Ok::<_, LabError>(ServerRun {
            host: end.host.name().to_owned(),
            command: command(end, slot.cell.point, address, &of_server)?,
            config: configure(bench, &end.host, slot, address)?,
            ready: None,
            server_final: None,
            exit: None,
        })
    };
    let first = server(0)?;
    let further_servers = (1..addresses.len()).map(server).collect::<Result<_, _>>()?;
    let mut commands = Vec::new();
    for (index, client) in clients.iter().enumerate() {
        let point = share(slot.cell.point, clients.len(), index);
        let address = addresses[index % addresses.len()];
        let mut command = command(client, point, address, &of_client)?;
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
        server_command: first.command,
        server_config: first.config,
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
        further_servers,
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

/// One end of each host, the servers' first.
fn hosts_of(network: &Network) -> Vec<&End> {
    let clients = match network.record.kind {
        NetKind::Hosts => &network.clients[..],
        NetKind::Rps | NetKind::Lo | NetKind::Napi => &[],
    };
    network.servers.iter().chain(clients).collect()
}

struct Run<'a> {
    bench: &'a Bench<'a>,
    network: &'a Network,
    /// Those of each server's workers.
    server_cpus: Vec<CpuList>,
    events: Receiver<Event>,
    record: RunRecord,
    servers: Vec<Server>,
    clients: Vec<Client>,
    /// Of each host, the servers' first, as measured just before.
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
        if server && self.server_memory.len() < 2 {
            self.server_memory.push(self.server_memory()?);
        }
        if kernel && self.kernel_memory.len() < 2 {
            self.kernel_memory.push(self.kernel_memory()?);
        }
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
    use crate::process::Role;

    #[test]
    fn who_never_stops_talking_is_waited_for_until_the_deadline() {
        let (sender, events) = channel();
        let talk = || sender.send(Event::Line(Role::Server(0), String::new())).unwrap();
        talk();
        let later = Instant::now() + Duration::from_secs(60);
        assert!(matches!(next_event(&events, later), Ok(Event::Line(..))));
        talk();
        assert!(matches!(next_event(&events, Instant::now()), Err(RecvTimeoutError::Timeout)));
    }
}
