//! One run: fresh server, fresh client, measured window, orderly end.
//!
//! While the window is open the lab sleeps in one channel. It wakes for the marks, samples, and
//! sleeps again.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::accounting::{
    Bystanders, Detail, KernelMemory, MemoryUse, Meter, ProcessMemory, SideSample, Sides, cpu_use,
};
use crate::contract::{self, LoadResult};
use crate::error::LabError;
use crate::experiment::{Accounting, Cell, Experiment, HttpPoint, Point, Ready, Subject};
use crate::machine::Cpus;
use crate::net::Network;
use crate::peers::find::Found;
use crate::placement::{self, Distance, Placement};
use crate::process::{self, Event, Process, Role};
use crate::procfs;
use crate::result::{Failure, RUN_SCHEMA, RunRecord};
use crate::site::{Site, nginx};
use crate::stop::Stop;

/// How long a server may take until it can be used.
const READY_PATIENCE: Duration = Duration::from_secs(10);

/// How long the client may take beyond warm-up and window, for connecting and for its result.
const CLIENT_PATIENCE: Duration = Duration::from_secs(15);

/// How long either may take to end once it has been asked to.
const STOP_PATIENCE: Duration = Duration::from_secs(3);

/// How long a block waits for the placement that is wanted, and between two looks.
const PLACEMENT_PATIENCE: Duration = Duration::from_secs(60);
const PLACEMENT_TICK: Duration = Duration::from_millis(300);

/// Pause between two looks at a server that says nothing.
const PROBE_TICK: Duration = Duration::from_millis(10);

/// What stays the same over all runs of an experiment.
pub(crate) struct Bench<'a> {
    pub(crate) experiment: &'a Experiment,
    pub(crate) cpus: &'a Cpus,
    pub(crate) helper: &'a [OsString],
    /// The `twinring` binary, for `{twinring}` in commands.
    pub(crate) binary: &'a str,
    pub(crate) stop: &'a Stop,
    /// The files of HTTP, if there are cells of it.
    pub(crate) site: Option<&'a Site>,
    /// nginx, if a subject is it.
    pub(crate) nginx: Option<&'a nginx::Installed>,
    /// The programs of those subjects that are peers.
    pub(crate) peers: &'a Found,
    /// When the experiment began.
    pub(crate) began: Instant,
}

/// Which run it is.
pub(crate) struct Slot<'a> {
    pub(crate) index: usize,
    pub(crate) cell: Cell,
    pub(crate) block: usize,
    pub(crate) subject: &'a Subject,
}

impl Bench<'_> {
    fn round_trip_ns(&self) -> Option<f64> {
        placement::round_trip_ns(self.cpus.server, self.cpus.client)
    }

    /// Waits, within bounds, until the CPUs lie as the experiment wants it.
    pub(crate) fn wait_for_placement(&self) {
        let deadline = Instant::now() + PLACEMENT_PATIENCE;
        while !self.experiment.placement.allows(self.round_trip_ns().map(Placement::of))
            && self.stop.signal().is_none()
            && Instant::now() < deadline
        {
            std::thread::sleep(PLACEMENT_TICK);
        }
    }
}

/// The user wants to stop; the run is dropped.
struct Stopped;

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

/// Nobody.
impl Observer for () {
    fn ready(&mut self, _: i32) {}

    fn at(&mut self, _: Mark, _: i32, _: i32) {}
}

/// Makes one run. Returns nothing when it was stopped before its end.
///
/// # Errors
/// When the run could not even be tried: nothing to start, no port, no soaker. Whatever the
/// subjects do wrong is in the record.
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
    let protocol = slot.cell.protocol();
    let mut address = network.free_address(protocol)?;
    if let Some(port) = slot.subject.known_peer().and_then(|peer| peer.port) {
        address.set_port(port);
    }
    let values = Values::of(bench, slot, address)?;
    let server_command = values.fill(&slot.subject.command_template(protocol));
    let client_command = values.fill(&bench.experiment.load_template(protocol, slot.subject));
    let server_config = configure(bench, slot, address)?;
    let record = RunRecord {
        schema: RUN_SCHEMA.to_owned(),
        index: slot.index,
        cell: slot.cell,
        block: slot.block,
        subject: slot.subject.name.clone(),
        at_s: bench.began.elapsed().as_secs_f64(),
        server_command,
        server_config,
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
        failures: Vec::new(),
    };
    let before_ns = bench.round_trip_ns();
    let (sender, events) = channel();
    bench.stop.wake(sender.clone());
    let start = |role, place, cpu, command: &[String]| {
        process::start(bench.helper, place, cpu, command, role, sender.clone())
    };

    let server = start(Role::Server, &network.server, bench.cpus.server, &record.server_command)?;
    let accounting = slot.subject.accounting.unwrap_or(bench.experiment.accounting);
    let detail = match accounting {
        Accounting::IdleClockOnly => Detail::Clocks,
        Accounting::IdleClock | Accounting::Soaker => Detail::Full,
    };
    let mut run = Run {
        bench,
        network,
        events,
        record,
        server,
        detail,
        server_memory: Vec::new(),
        kernel_memory: Vec::new(),
        observer,
    };
    let ready = match run.wait_until_ready(slot.subject.ready_check(protocol), address) {
        Ok(ready) => ready,
        Err(Stopped) => return Ok(None),
    };
    if ready {
        let meter = Meter::start(accounting, bench.helper, bench.cpus)?;
        run.look_at_memory(true, true);
        run.observer.ready(run.server.pid());
        let before = Bystanders::take()?;
        let (place, cpu) = (&run.network.client, bench.cpus.client);
        let client = start(Role::Client, place, cpu, &run.record.client_command)?;
        let (warmup_s, window_s) = bench.experiment.pace_s(protocol);
        match run.follow_client(client, Duration::from_secs_f64(warmup_s + window_s))? {
            Ok(samples) => {
                run.record.others = Some(before.until(&Bystanders::take()?));
                run.stop_server();
                run.record.distance = Some(Distance { before_ns, after_ns: bench.round_trip_ns() });
                run.account(samples, &meter);
            }
            Err(Stopped) => return Ok(None),
        }
    } else {
        run.stop_server();
    }
    Ok(Some(run.record))
}

struct Run<'a> {
    bench: &'a Bench<'a>,
    network: &'a Network,
    events: Receiver<Event>,
    record: RunRecord,
    server: Process,
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
    fn wait_until_ready(&mut self, check: Ready, address: SocketAddr) -> Result<bool, Stopped> {
        let deadline = Instant::now() + READY_PATIENCE;
        loop {
            let (ready, patience) = match check {
                Ready::Json => (false, READY_PATIENCE),
                Ready::Tcp => (self.accepts(address), PROBE_TICK),
                Ready::Udp => (self.is_bound(address), PROBE_TICK),
            };
            if ready {
                return Ok(true);
            }
            let patience = patience.min(deadline.saturating_duration_since(Instant::now()));
            match self.events.recv_timeout(patience) {
                Ok(Event::Stop) => return Err(Stopped),
                Ok(Event::Line(_, line)) => {
                    let Some((event, value)) = contract::event_of(&line) else { continue };
                    if event == "ready" {
                        self.record.ready = Some(value);
                        if check == Ready::Json {
                            return Ok(true);
                        }
                    }
                }
                Ok(Event::Closed(_)) if check == Ready::Json => break,
                Ok(Event::Closed(_)) | Err(_) => {}
            }
            if self.server.has_ended() || Instant::now() >= deadline {
                break;
            }
        }
        // The end of a process comes a moment after that of its output.
        let ended = self.died_within(Duration::from_millis(200));
        let exit = self.server.finish(Duration::ZERO, !ended);
        let waited = READY_PATIENCE.as_secs();
        let how = if ended { exit.to_string() } else { format!("not ready after {waited} s") };
        self.fail(Failure::ServerNotReady { why: with_stderr(how, &self.server) });
        self.record.server_exit = Some(exit);
        Ok(false)
    }

    fn accepts(&self, address: SocketAddr) -> bool {
        let patience = Duration::from_millis(500);
        self.network.client.run(move || TcpStream::connect_timeout(&address, patience)).is_ok()
    }

    /// UDP has no handshake; that a socket has the port is all that can be seen from outside.
    fn is_bound(&self, address: SocketAddr) -> bool {
        self.network.server.run(move || procfs::is_udp_bound(address.port()))
    }

    /// Reads the client's lines, samples at its marks, and sees it to its end. `measuring` is how
    /// long it is to load.
    fn follow_client(
        &mut self,
        mut client: Process,
        measuring: Duration,
    ) -> Result<Result<Vec<Sides>, Stopped>, LabError> {
        let limit = measuring + CLIENT_PATIENCE;
        let mut deadline = Instant::now() + limit;
        let mut samples = Vec::new();
        let mut asked = false;
        loop {
            match self.events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(Event::Stop) => return Ok(Err(Stopped)),
                Ok(Event::Closed(Role::Client)) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(Event::Closed(Role::Server)) => {
                    // Its end comes a moment after that of its output. A server that only closed
                    // its output may go on.
                    if !asked && self.died_within(Duration::from_millis(300)) {
                        client.signal(Signal::SIGINT);
                        deadline = Instant::now() + STOP_PATIENCE;
                        asked = true;
                    }
                }
                Ok(Event::Line(Role::Server, line)) => self.note_server_line(&line),
                Ok(Event::Line(Role::Client, line)) => match contract::event_of(&line) {
                    Some((event, _)) if event == "window_start" || event == "window_end" => {
                        let cpus = self.bench.cpus;
                        let server = (cpus.server, self.server.pid());
                        let client = (cpus.client, client.pid());
                        samples.push(SideSample::take_both(server, client, self.detail)?);
                        let mark = match &*event {
                            "window_end" => Mark::WindowEnd,
                            _ => Mark::WindowStart,
                        };
                        self.observer.at(mark, server.1, client.1);
                        self.look_at_memory(mark == Mark::WindowEnd, mark == Mark::WindowStart);
                    }
                    Some((event, value)) if event == "result" => self.record.load = Some(value),
                    _ => {}
                },
                Err(RecvTimeoutError::Timeout) => {
                    if !asked {
                        self.fail(Failure::ClientTimeout { limit_s: limit.as_secs_f64() });
                    }
                    client.signal(Signal::SIGTERM);
                    asked = true;
                    break;
                }
            }
        }
        let exit = client.finish(STOP_PATIENCE, asked);
        if !asked && (exit.killed || exit.code != Some(0)) {
            let why = with_stderr(exit.to_string(), &client);
            self.fail(Failure::ClientFailed { why });
        }
        self.record.client_exit = Some(exit);
        Ok(Ok(samples))
    }

    fn look_at_memory(&mut self, server: bool, kernel: bool) {
        if self.detail == Detail::Full {
            let pid = self.server.pid();
            self.server_memory.extend(server.then(|| ProcessMemory::take(pid)));
            self.kernel_memory.extend(kernel.then(KernelMemory::take));
        }
    }

    fn note_server_line(&mut self, line: &str) {
        match contract::event_of(line) {
            Some((event, value)) if event == "final" => self.record.server_final = Some(value),
            _ => {}
        }
    }

    fn died_within(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        while !self.server.has_ended() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.server.has_ended()
    }

    /// Asks the server to stop, reads what it says at its end, and judges how it ended.
    fn stop_server(&mut self) {
        if self.record.server_exit.is_some() {
            return;
        }
        let died = self.server.has_ended();
        self.server.signal(Signal::SIGTERM);
        let exit = self.server.finish(STOP_PATIENCE, !died);
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
    }

    /// Turns samples and meter into the CPU use of the window.
    fn account(&mut self, samples: Vec<Sides>, meter: &Meter) {
        let window = match self.record.load.as_ref().map(LoadResult::read) {
            None => {
                let why = "the load generator printed no result".to_owned();
                self.fail(Failure::BadLine { why });
                return;
            }
            Some(Err(why)) => {
                self.fail(Failure::BadLine { why: format!("the result line: {why}") });
                return;
            }
            Some(Ok(result)) => {
                let window = result.window();
                [window.start_monotonic_ns, window.end_monotonic_ns]
            }
        };
        let marks = samples.len();
        let Ok(samples) = <[Sides; 2]>::try_from(samples) else {
            let why = format!("{marks} marks instead of window_start and window_end");
            self.fail(Failure::BadLine { why });
            return;
        };
        if let (&[server_at_ready, server_at_end], &[kernel_at_ready, kernel_under_load]) =
            (&self.server_memory[..], &self.kernel_memory[..])
        {
            self.record.memory = Some(MemoryUse {
                server_at_ready,
                server_at_end,
                kernel_at_ready,
                kernel_under_load,
            });
        }
        match cpu_use(meter, &samples, self.bench.cpus.shared, window) {
            Ok(cpu) => self.record.cpu = Some(cpu),
            Err(why) => self.fail(Failure::NoAccounting { why }),
        }
    }
}

fn with_stderr(how: String, process: &Process) -> String {
    match process.stderr() {
        said if said.is_empty() => how,
        said => format!("{how}; it said: {said}"),
    }
}

/// Writes the configuration of a subject that needs one, and returns it.
fn configure(
    bench: &Bench<'_>,
    slot: &Slot<'_>,
    address: SocketAddr,
) -> Result<Option<String>, LabError> {
    let (Some(settings), Point::Http(point)) = (&slot.subject.nginx, slot.cell.point) else {
        return Ok(None);
    };
    let (Some(site), Some(installed)) = (bench.site, bench.nginx) else { return Ok(None) };
    let text = installed.configuration(settings, point, address);
    let path = nginx::path(site.directory());
    std::fs::write(&path, &text).map_err(|error| LabError::write(&path, error))?;
    Ok(Some(text))
}

fn option_unless_zero(option: &str, value: u32) -> impl Iterator<Item = String> {
    let words = (value != 0).then(|| [option.to_owned(), value.to_string()]);
    words.into_iter().flatten()
}

/// What the placeholders of commands stand for in a run.
struct Values {
    /// Parts of words.
    texts: BTreeMap<&'static str, String>,
    /// Whole words that stand for any number of words.
    lists: BTreeMap<&'static str, Vec<String>>,
}

impl Values {
    fn of(bench: &Bench<'_>, slot: &Slot<'_>, address: SocketAddr) -> Result<Values, LabError> {
        let millis = |seconds: f64| format!("{}", (seconds * 1e3).round());
        let (warmup_s, window_s) = bench.experiment.pace_s(slot.cell.protocol());
        let texts = BTreeMap::from([
            ("{twinring}", bench.binary.to_owned()),
            ("{addr}", address.to_string()),
            ("{ip}", address.ip().to_string()),
            ("{port}", address.port().to_string()),
            ("{warmup_ms}", millis(warmup_s)),
            ("{window_ms}", millis(window_s)),
            ("{server_cpu}", bench.cpus.server.to_string()),
            ("{client_cpu}", bench.cpus.client.to_string()),
            ("{engine}", slot.subject.load_engine().to_owned()),
        ]);
        let mut values = Values { texts, lists: BTreeMap::new() };
        if let Some(program) = slot.subject.peer.as_ref().and_then(|peer| bench.peers.get(peer)) {
            values.texts.insert("{peer}", program.display().to_string());
            values.lists.insert("{peer_options}", slot.subject.peer_options(&slot.cell.point));
        }
        match slot.cell.point {
            Point::Tcp(point) => {
                values.numbers([
                    ("{connections}", point.connections),
                    ("{message_bytes}", point.message_bytes),
                    ("{depth}", point.depth),
                ]);
                let churn = option_unless_zero("--churn", point.churn);
                let options = option_unless_zero("--rate", point.rate_per_s).chain(churn);
                values.lists.insert("{options}", options.collect());
            }
            Point::Udp { streams, packets_per_s, message_bytes } => values.numbers([
                ("{streams}", streams),
                ("{packets_per_s}", packets_per_s),
                ("{message_bytes}", message_bytes),
            ]),
            Point::Http(point) => {
                values.numbers([
                    ("{connections}", point.connections),
                    ("{file_bytes}", point.file_bytes),
                    ("{depth}", point.depth),
                ]);
                if let Some(site) = bench.site {
                    values.http(site, point, address)?;
                }
            }
        }
        Ok(values)
    }

    fn numbers(&mut self, numbers: [(&'static str, u32); 3]) {
        self.texts.extend(numbers.map(|(name, number)| (name, number.to_string())));
    }

    fn http(&mut self, site: &Site, point: HttpPoint, address: SocketAddr) -> Result<(), LabError> {
        let text = |path: PathBuf| path.display().to_string();
        let (certificate, key) = (text(site.certificate()), text(site.key()));
        self.texts.extend([
            ("{work}", text(site.directory().to_owned())),
            ("{config}", text(nginx::path(site.directory()))),
            ("{root}", text(site.root())),
            ("{certificate}", certificate.clone()),
            ("{key}", key.clone()),
        ]);
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let urls = site.urls(point, address)?;
        let address = address.to_string();
        let tls = ["--listen-tls", &address, "--tls-cert", &certificate, "--tls-key", &key];
        let plain = ["--listen", &address];
        let mut options = vec![site.verify_body(point)];
        if point.tls {
            options.extend(["--tls-ca".to_owned(), certificate.clone()]);
        }
        if !point.keepalive {
            options.push("--no-keepalive".to_owned());
        }
        options.extend(option_unless_zero("--rate", point.rate_per_s));
        self.lists.extend([
            ("{listen}", words(if point.tls { &tls } else { &plain })),
            ("{urls}", urls),
            ("{options}", options),
        ]);
        Ok(())
    }

    /// The command with its placeholders filled in.
    fn fill(&self, template: &[String]) -> Vec<String> {
        let fill_word = |word: &String| {
            self.texts.iter().fold(word.clone(), |word, (name, value)| word.replace(name, value))
        };
        let words = template.iter().flat_map(|word| match self.lists.get(word.as_str()) {
            Some(words) => words.clone(),
            None => vec![fill_word(word)],
        });
        words.collect()
    }
}
