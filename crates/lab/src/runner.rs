//! One run: a fresh server, fresh load generators, the measured window, an orderly end.
//!
//! While the window is open the lab sleeps in one channel. It wakes for the marks, samples, and
//! sleeps again.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sys::signal::Signal;
use twinring_input::cgroup::CpuQuota;
use twinring_wire::load::{WINDOW_END, WINDOW_START};

use crate::accounting::{
    self, BackgroundLoad, CpuUse, KernelMemory, MemoryUse, ProcessMemory, QuotaUse, SideSample,
    Watched,
};
use crate::bench::{Bench, Slot};
use crate::cpus::CpuList;
use crate::error::LabError;
use crate::experiment::Ready;
use crate::net::Network;
use crate::placement::Distance;
use crate::process::{self, Event, Process, Role};
use crate::procfs;
use crate::record::{Failed, Failure, RUN_SCHEMA, RunRecord};
use crate::words::{Commands, commands};
use twinring_wire::LoadResult;

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

/// Makes one run. Returns nothing when it was stopped before its end.
///
/// # Errors
/// When the run could not even be tried: nothing to start, no port; or a CPU went offline. Failures of the
/// subjects are in the record.
pub(crate) fn run(
    bench: &Bench<'_>,
    network: &mut Network,
    slot: &Slot<'_>,
) -> Result<Option<RunRecord>, LabError> {
    match try_run(bench, network, slot) {
        Ok(record) => Ok(Some(record)),
        Err(Halt::Stopped) => Ok(None),
        Err(Halt::Failed(error)) => Err(error),
    }
}

fn try_run(bench: &Bench<'_>, network: &mut Network, slot: &Slot<'_>) -> Result<RunRecord, Halt> {
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
    let mut run = Run {
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
        run.stop_server();
        run.record.distance = before_ns.map(|before_ns| Distance {
            before_ns: Some(before_ns),
            after_ns: bench.round_trip_ns(),
        });
        run.account();
    } else {
        run.stop_server();
    }
    all_online(bench)?;
    Ok(run.record)
}

fn all_online(bench: &Bench<'_>) -> Result<(), LabError> {
    let Some(online) = procfs::text("/sys/devices/system/cpu/online") else { return Ok(()) };
    let online = procfs::cpu_list(&online);
    let used = bench.cpus.server.all().iter().chain(bench.cpus.client.all());
    match used.copied().find(|cpu| !online.contains(cpu)) {
        Some(cpu) => {
            Err(LabError::Machine { why: format!("CPU {cpu} went offline while it was measured") })
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

struct Run<'a> {
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

impl Run<'_> {
    fn fail(&mut self, what: Failed, why: String) {
        self.record.failures.push(Failure { what, why });
    }

    /// Waits until the server is ready. `false` means that it is not, and why is recorded.
    fn wait_until_ready(&mut self, check: Ready) -> Result<bool, Halt> {
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
                Ok(Event::Stop) => return Err(Halt::Stopped),
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
                self.note_not_ready();
                return Ok(false);
            }
        }
    }

    fn note_not_ready(&mut self) {
        let ended = self.server_ended_within(END_PATIENCE);
        let exit = self.server.finish(Duration::ZERO, !ended);
        let waited = READY_PATIENCE.as_secs();
        let how = if ended { exit.to_string() } else { format!("not ready after {waited} s") };
        let why = with_stderr(how, &self.server);
        self.record.server_exit = Some(exit);
        self.fail(Failed::ServerNotReady, why);
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
    ) -> Result<(), Halt> {
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
                Ok(Event::Stop) => return Err(Halt::Stopped),
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
        let server = Watched {
            cpus: &self.server_cpus,
            pid: self.server.pid(),
            device: at_server.device.as_ref(),
        };
        if self.bench.experiment.via.is_some() {
            let [server] = accounting::take([server])?;
            return Ok((server, None));
        }
        let client =
            Watched { cpus: &at_client.cpus, pid: client, device: at_client.device.as_ref() };
        let [server, client] = accounting::take([server, client])?;
        Ok((server, Some(client)))
    }

    fn note_server_line(&mut self, line: &str) {
        if let Some((event, value)) = twinring_wire::event_of(line)
            && event == "final"
        {
            self.record.server_final = Some(value);
        }
    }

    /// Asks the server to stop, reads what it says at its end, and judges how it ended.
    fn stop_server(&mut self) {
        if self.record.server_exit.is_none() {
            let died = self.server.has_ended();
            self.server.signal(Signal::SIGTERM);
            let exit = self.server.finish(STOP_PATIENCE, !died);
            if died || !exit.is_clean() {
                let how = if died { format!("{exit} under load") } else { exit.to_string() };
                let why = with_stderr(how, &self.server);
                self.fail(if died { Failed::ServerDied } else { Failed::ServerDidNotStop }, why);
            }
            self.record.server_exit = Some(exit);
        }
        while let Ok(event) = self.events.try_recv() {
            if let Event::Line(Role::Server, line) = event {
                self.note_server_line(&line);
            }
        }
    }

    fn account(&mut self) {
        match self.cpu_use() {
            Ok(cpu) => self.record.cpu = Some(cpu),
            Err(Failure { what, why }) => self.fail(what, why),
        }
    }

    fn cpu_use(&mut self) -> Result<CpuUse, Failure> {
        let bad = |why: String| Failure { what: Failed::BadLine, why };
        let (found, expected) = (self.record.loads.len(), self.record.generators as usize);
        if found != expected {
            return Err(bad(match expected {
                1 if found == 0 => "the load generator printed no result".to_owned(),
                _ => format!("{found} results of {expected} load generators"),
            }));
        }
        let results: Result<Vec<LoadResult>, String> =
            self.record.loads.iter().map(LoadResult::read).collect();
        let results = results.map_err(|why| bad(format!("the result line: {why}")))?;
        let marks = self.starts.len() + self.ends.len();
        let [Some((server, client)), Some((server_end, client_end))] = &self.samples else {
            return Err(bad(format!("{marks} marks instead of window_start and window_end")));
        };
        if server.at_ns >= server_end.at_ns {
            let why =
                "the windows of the load generators were not open at the same time".to_owned();
            return Err(Failure { what: Failed::NoAccounting, why });
        }
        let windows = results.iter().map(|result| *result.window());
        let window_s =
            windows.clone().map(|it| it.between_marks_s()).sum::<f64>() / expected as f64;
        let delay_us = match windows.clone().next() {
            Some(window) if client.is_some() => {
                [(server, window.start_monotonic_ns), (server_end, window.end_monotonic_ns)]
                    .map(|(sample, mark)| sample.at_ns.saturating_sub(mark) as f64 / 1e3)
            }
            // The clocks of other machines say nothing here.
            _ => [&self.starts, &self.ends].map(|at| {
                let (first, last) = (at.iter().min(), at.iter().max());
                first.zip(last).map_or(0.0, |(first, last)| (last - first) as f64 / 1e3)
            }),
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
