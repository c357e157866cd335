//! One run: a fresh server, fresh load generators, the measured window, an orderly end.
//!
//! While the window is open the lab sleeps in one channel. It wakes for the marks, samples, and
//! sleeps again.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sys::signal::Signal;
use twinring_input::cgroup::CpuQuota;
use twinring_wire::load::{WINDOW_END, WINDOW_START};

use crate::accounting::{
    BackgroundLoad, CpuUse, KernelMemory, MemoryUse, ProcessMemory, QuotaUse, SideSample, Snapshot,
};
use crate::cpus::{CpuList, Cpus};
use crate::error::LabError;
use crate::experiment::{Cell, Experiment, Ready, Subject};
use crate::net::Network;
use crate::peers::PeerPrograms;
use crate::placement::{self, Distance};
use crate::process::{self, Event, Process, Role};
use crate::procfs;
use crate::record::{Failed, Failure, RUN_SCHEMA, RunRecord};
use crate::site::Site;
use crate::stop::Stop;
use crate::words::{Commands, commands};

const READY_PATIENCE: Duration = Duration::from_secs(10);

/// How long the load may take beyond warm-up and window, for connecting and for its result.
const CLIENT_PATIENCE: Duration = Duration::from_secs(15);

const STOP_PATIENCE: Duration = Duration::from_secs(3);

/// Pause between two looks at a server that says nothing.
const PROBE_TICK: Duration = Duration::from_millis(10);

/// The end of a process comes a moment after that of its output.
const END_PATIENCE: Duration = Duration::from_millis(300);

/// The most result lines that are kept beyond those that are expected.
const EXCESS_MAX: usize = 8;

/// What runs are made with.
pub(crate) struct Bench<'a> {
    pub(crate) experiment: &'a Experiment,
    pub(crate) cpus: &'a Cpus,
    pub(crate) helper: &'a [OsString],
    /// The `twinring` binary, for `{twinring}` in commands.
    pub(crate) binary: &'a str,
    pub(crate) stop: &'a Stop,
    pub(crate) site: Option<&'a Site>,
    pub(crate) peers: &'a PeerPrograms,
    /// The engine of our load generator where it is not under test.
    pub(crate) load_engine: &'a str,
    pub(crate) began: Instant,
}

/// Which run it is.
#[derive(Clone, Copy)]
pub(crate) struct Slot<'a> {
    pub(crate) cell: Cell,
    /// The block; nothing for a calibration.
    pub(crate) block: Option<usize>,
    pub(crate) subject: &'a Subject,
    /// Requests per second, where the cell says a share of what can be served.
    pub(crate) rate_per_s: Option<u32>,
}

impl Bench<'_> {
    /// A cache line from the server's first CPU to the client's first and back. With load generators
    /// elsewhere there is none.
    pub(crate) fn round_trip_ns(&self) -> Option<f64> {
        let here = self.experiment.via.is_none();
        here.then(|| placement::round_trip_ns(self.cpus.server.first(), self.cpus.client.first()))
            .flatten()
    }
}

/// Makes one run.
///
/// # Errors
/// When it was stopped before its end, or could not even be tried: nothing to start, no port; or a CPU went offline.
/// Failures of the subjects are in the record.
pub(crate) fn run(
    bench: &Bench<'_>,
    network: &mut Network,
    slot: &Slot<'_>,
) -> Result<RunRecord, LabError> {
    if bench.stop.signal().is_some() {
        return Err(stopped());
    }
    let protocol = slot.cell.protocol();
    let mut address = network.free_address(protocol)?;
    if let Some(port) = slot.subject.known_peer().and_then(|peer| peer.port) {
        address.set_port(port);
    }
    let server_cpus = network.server.cpus.first_of(slot.cell.point.workers());
    network.steer_to(&server_cpus)?;
    let network = &*network;
    let record = blank_record(bench, slot, commands(bench, slot, address, &server_cpus)?);
    let before_ns = bench.round_trip_ns();
    let (sender, events) = channel();
    bench.stop.wake(sender.clone());
    let command = &record.server_command;
    let place = &network.server.place;
    let server =
        process::start(bench.helper, place, &server_cpus, command, Role::Server, sender.clone())?;
    let mut run = ActiveRun {
        bench,
        network,
        server_cpus,
        address,
        events,
        record,
        server,
        starts: Vec::new(),
        ends: Vec::new(),
        samples: [None, None],
    };
    if run.wait_until_ready(slot.subject.ready_check(protocol))? {
        let at_ready = (ProcessMemory::take(run.server.pid()), KernelMemory::take());
        let background = BackgroundLoad::take()?;
        let quota = CpuQuota::read();
        run.load(&sender, at_ready)?;
        run.record.others = Some(background.until(&BackgroundLoad::take()?));
        run.record.quota = QuotaUse::between(quota, CpuQuota::read());
        run.stop_server(true);
        run.record.distance = before_ns.map(|before_ns| Distance {
            before_ns: Some(before_ns),
            after_ns: bench.round_trip_ns(),
        });
        match run.cpu_use() {
            Ok(cpu) => run.record.cpu = Some(cpu),
            Err(failure) => run.record.failures.push(failure),
        }
    } else {
        run.stop_server(false);
    }
    all_online(bench)?;
    Ok(run.record)
}

fn all_online(bench: &Bench<'_>) -> Result<(), LabError> {
    let online = procfs::cpu_list("/sys/devices/system/cpu/online");
    let used = bench.cpus.server.all().iter().chain(bench.cpus.client.all());
    match used.copied().find(|cpu| !online.is_empty() && !online.contains(cpu)) {
        Some(cpu) => {
            Err(LabError::machine(format!("CPU {cpu} went offline while it was measured")))
        }
        None => Ok(()),
    }
}

fn blank_record(bench: &Bench<'_>, slot: &Slot<'_>, commands: Commands) -> RunRecord {
    RunRecord {
        schema: RUN_SCHEMA.to_owned(),
        index: 0,
        occasion: 0,
        cell: slot.cell,
        block: slot.block.unwrap_or(0),
        calibration: slot.block.is_none(),
        subject: slot.subject.name.clone(),
        rate_per_s: slot.rate_per_s,
        at_s: bench.began.elapsed().as_secs_f64(),
        server_command: commands.server,
        server_config: commands.config,
        client_command: commands.load,
        generators: bench.experiment.via.as_ref().map_or(1, |via| via.generators),
        ready: None,
        loads: Vec::new(),
        server_final: None,
        cpu: None,
        memory: None,
        distance: None,
        others: None,
        quota: None,
        server_exit: None,
        client_exit: None,
        failures: Vec::new(),
    }
}

struct ActiveRun<'a> {
    bench: &'a Bench<'a>,
    network: &'a Network,
    server_cpus: CpuList,
    address: SocketAddr,
    events: Receiver<Event>,
    record: RunRecord,
    server: Process,
    /// When the windows of the load generators opened and closed, as the lab heard of it.
    starts: Vec<u64>,
    ends: Vec<u64>,
    /// The samples at the ends of the window: the server's side, and the load generator's if that is here.
    samples: [Option<(SideSample, Option<SideSample>)>; 2],
}

impl ActiveRun<'_> {
    fn fail(&mut self, what: Failed, why: String) {
        self.record.failures.push(Failure { what, why });
    }

    /// Waits until the server is ready. `false` means that it is not.
    fn wait_until_ready(&mut self, check: Ready) -> Result<bool, LabError> {
        let deadline = Instant::now() + READY_PATIENCE;
        let patience = if check == Ready::Json { READY_PATIENCE } else { PROBE_TICK };
        loop {
            let is_ready = match check {
                Ready::Json => self.record.ready.is_some(),
                Ready::Tcp => self.network.can_connect(self.address),
                Ready::Udp => self.network.is_udp_bound(self.address.port()),
            };
            if is_ready {
                return Ok(true);
            }
            let closed = match next_event(&self.events, deadline.min(Instant::now() + patience)) {
                Ok(Event::Stop) => return Err(stopped()),
                Ok(Event::Line(Role::Server, line)) => {
                    let ready =
                        twinring_wire::event_of(&line).filter(|(event, _)| event == "ready");
                    self.record.ready = ready.map(|(_, value)| value).or(self.record.ready.take());
                    false
                }
                Ok(Event::Closed(Role::Server)) => check == Ready::Json,
                Ok(_) | Err(_) => false,
            };
            if closed || self.server.has_ended() || Instant::now() >= deadline {
                return Ok(false);
            }
        }
    }

    fn server_ended_within(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        while !self.server.has_ended() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.server.has_ended()
    }

    /// Starts the load generators, samples at their marks, and sees them to their end. Both memories are as they
    /// were when the server was ready.
    fn load(
        &mut self,
        events: &Sender<Event>,
        (server_at_ready, kernel_at_ready): (ProcessMemory, KernelMemory),
    ) -> Result<(), LabError> {
        let (warmup_s, window_s) = self.bench.experiment.pace_s(self.record.cell.protocol());
        let lead_s = self.begin_at();
        let network = self.network;
        let (cpus, command) = (&network.client.cpus, &self.record.client_command);
        let (helper, place) = (self.bench.helper, &network.client.place);
        let mut client =
            process::start(helper, place, cpus, command, Role::Client, events.clone())?;
        let limit = Duration::from_secs_f64(lead_s + warmup_s + window_s) + CLIENT_PATIENCE;
        let mut deadline = Instant::now() + limit;
        let (mut asked, mut kernel_under_load, mut server_at_end) = (false, None, None);
        loop {
            match next_event(&self.events, deadline) {
                Ok(Event::Stop) => return Err(stopped()),
                Ok(Event::Closed(Role::Client)) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(Event::Closed(Role::Server)) => {
                    // A server that only closed its output may go on.
                    if !asked && self.server_ended_within(END_PATIENCE) {
                        client.signal(Signal::SIGINT);
                        deadline = Instant::now() + STOP_PATIENCE;
                        asked = true;
                    }
                }
                Ok(Event::Line(Role::Server, line)) => self.note_server_line(&line),
                Ok(Event::Line(Role::Client, line)) => {
                    self.note_load_line(&line, client.pid())?;
                    if self.samples[0].is_some() && kernel_under_load.is_none() {
                        kernel_under_load = Some(KernelMemory::take());
                    }
                    if self.samples[1].is_some() && server_at_end.is_none() {
                        server_at_end = Some(ProcessMemory::take(self.server.pid()));
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    if !asked {
                        let limit_s = limit.as_secs_f64();
                        let why = format!("the load generator was not done after {limit_s} s");
                        self.fail(Failed::ClientTimeout, why);
                    }
                    client.signal(Signal::SIGTERM);
                    asked = true;
                    break;
                }
            }
        }
        if let (Some(server_at_end), Some(kernel_under_load)) = (server_at_end, kernel_under_load) {
            self.record.memory = Some(MemoryUse {
                server_at_ready,
                server_at_end,
                kernel_at_ready,
                kernel_under_load,
            });
        }
        let exit = client.finish(STOP_PATIENCE, asked);
        // 4: the load was not the one that was asked for, which the checks find and name.
        if !asked && (exit.killed || !matches!(exit.code, Some(0 | 4))) {
            self.fail(Failed::ClientFailed, with_stderr(exit.to_string(), &client));
        }
        self.record.client_exit = Some(exit);
        Ok(())
    }

    /// Gives load generators on other machines one moment to begin, and returns how many seconds ahead that is.
    fn begin_at(&mut self) -> f64 {
        let Some(via) = &self.bench.experiment.via else { return 0.0 };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let at = now.as_secs_f64() + via.lead_s;
        self.record.client_command.extend(["--start-at".to_owned(), format!("{at:.3}")]);
        via.lead_s
    }

    /// Of several load generators the window is open from the last mark of a start to the first of an end.
    fn note_load_line(&mut self, line: &str, client: i32) -> Result<(), LabError> {
        let Some((event, value)) = twinring_wire::event_of(line) else { return Ok(()) };
        let generators = self.record.generators as usize;
        match &*event {
            WINDOW_START => {
                self.starts.push(procfs::now_ns().unwrap_or(0));
                if self.starts.len() == generators {
                    self.samples[0] = Some(self.sample(client)?);
                }
            }
            WINDOW_END => {
                self.ends.push(procfs::now_ns().unwrap_or(0));
                if self.ends.len() == 1 {
                    self.samples[1] = Some(self.sample(client)?);
                }
            }
            "result" if self.record.loads.len() < generators + EXCESS_MAX => {
                self.record.loads.push(value);
            }
            _ => {}
        }
        Ok(())
    }

    fn sample(&self, client: i32) -> Result<(SideSample, Option<SideSample>), LabError> {
        let Network { server: at_server, client: at_client, .. } = self.network;
        let now = Snapshot::take()?;
        let server = now.of(&self.server_cpus, self.server.pid(), at_server.device.as_ref());
        let is_here = self.bench.experiment.via.is_none();
        let client = || now.of(&at_client.cpus, client, at_client.device.as_ref());
        Ok((server, is_here.then(client)))
    }

    fn note_server_line(&mut self, line: &str) {
        if let Some((event, value)) = twinring_wire::event_of(line)
            && event == "final"
        {
            self.record.server_final = Some(value);
        }
    }

    /// Asks the server to stop, reads what it says at its end, and judges how it ended. One that was not ready gets no
    /// time for that.
    fn stop_server(&mut self, was_ready: bool) {
        let patience = if was_ready { Duration::ZERO } else { END_PATIENCE };
        let ended = self.server_ended_within(patience);
        let patience = if was_ready { STOP_PATIENCE } else { Duration::ZERO };
        if was_ready {
            self.server.signal(Signal::SIGTERM);
        }
        let exit = self.server.finish(patience, !ended);
        let failed = match (was_ready, ended) {
            (false, true) => Some((Failed::ServerNotReady, exit.to_string())),
            (false, false) => {
                let how = format!("not ready after {} s", READY_PATIENCE.as_secs());
                Some((Failed::ServerNotReady, how))
            }
            (true, true) => Some((Failed::ServerDied, format!("{exit} under load"))),
            (true, false) if exit.is_clean() => None,
            (true, false) => Some((Failed::ServerDidNotStop, exit.to_string())),
        };
        if let Some((what, how)) = failed {
            let why = with_stderr(how, &self.server);
            self.fail(what, why);
        }
        self.record.server_exit = Some(exit);
        while let Ok(event) = self.events.try_recv() {
            if let Event::Line(Role::Server, line) = event {
                self.note_server_line(&line);
            }
        }
    }

    fn cpu_use(&self) -> Result<CpuUse, Failure> {
        let bad = |why: String| Failure { what: Failed::BadLine, why };
        let (found, expected) = (self.record.loads.len(), self.record.generators as usize);
        if found != expected {
            return Err(bad(match expected {
                1 if found == 0 => "the load generator printed no result".to_owned(),
                _ => format!("{found} results of {expected} load generators"),
            }));
        }
        let result = self.record.load_result().unwrap_or_else(|| Err("there is none".to_owned()));
        let window = *result.map_err(|why| bad(format!("the result line: {why}")))?.window();
        let window_s = window.between_marks_s();
        let marks = self.starts.len() + self.ends.len();
        let [Some((server, client)), Some((server_end, client_end))] = &self.samples else {
            return Err(bad(format!("{marks} marks instead of window_start and window_end")));
        };
        if server.at_ns >= server_end.at_ns {
            let why =
                "the windows of the load generators were not open at the same time".to_owned();
            return Err(Failure { what: Failed::NoAccounting, why });
        }
        let delay_us = if client.is_some() {
            [(server, window.start_monotonic_ns), (server_end, window.end_monotonic_ns)]
                .map(|(sample, mark)| sample.at_ns.saturating_sub(mark) as f64 / 1e3)
        } else {
            // The clocks of other machines say nothing here.
            [&self.starts, &self.ends].map(|at| {
                let (first, last) = (at.iter().min(), at.iter().max());
                first.zip(last).map_or(0.0, |(first, last)| (last - first) as f64 / 1e3)
            })
        };
        let both = client.as_ref().zip(client_end.as_ref());
        Ok(CpuUse {
            window_s,
            // The samples lie a little behind the marks; the share is what carries over.
            server_cpu: server.busy(server_end, window_s),
            client_cpu: both.map(|(start, end)| start.busy(end, window_s)),
            server: server.process.until(&server_end.process),
            client: both.map(|(start, end)| start.process.until(&end.process)),
            sample_delay_us: delay_us,
            shared: both.is_some() && self.bench.cpus.shared,
            idle_clock: server.idle_clock.max(server_end.idle_clock),
        })
    }
}

/// The user wants to stop: then the run has no record.
fn stopped() -> LabError {
    LabError::failed("stopped".to_owned())
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
    fn a_program_that_never_stops_talking_is_waited_for_until_the_deadline() {
        let (sender, events) = channel();
        let talk = || sender.send(Event::Line(Role::Server, String::new())).unwrap();
        talk();
        let later = Instant::now() + Duration::from_secs(60);
        assert!(matches!(next_event(&events, later), Ok(Event::Line(..))));
        talk();
        assert!(matches!(next_event(&events, Instant::now()), Err(RecvTimeoutError::Timeout)));
    }
}
