//! The commands of a run: templates with their placeholders filled in, and the configuration file
//! of a server that needs one.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::bench::{Bench, Slot};
use crate::cpus::CpuList;
use crate::error::LabError;
use crate::experiment::{Arrivals, Axis, Experiment, Point, Protocol, UnderTest};
use crate::peers::configured;

/// Room that nginx and h2o have for connections and open files at least.
const ROOM_LEAST: u32 = 4096;

/// Streams of a connection of HTTP/2 that servers allow at least.
const STREAMS_LEAST: u32 = 128;

pub(crate) struct Commands {
    pub(crate) server: Vec<String>,
    /// The configuration that was written for the server, if it needs one.
    pub(crate) config: Option<String>,
    pub(crate) load: Vec<String>,
}

struct Words {
    /// Parts of words.
    texts: BTreeMap<String, String>,
    /// Whole words that stand for any number of words.
    lists: BTreeMap<&'static str, Vec<String>>,
}

impl Words {
    fn fill_in(&self, text: &str) -> String {
        self.texts.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
    }

    fn fill(&self, template: &[String]) -> Vec<String> {
        let words = template.iter().flat_map(|word| match self.lists.get(word.as_str()) {
            Some(words) => words.clone(),
            None => vec![self.fill_in(word)],
        });
        words.collect()
    }
}

/// The commands of a run whose server listens on `address`, which has these CPUs.
pub(crate) fn commands(
    bench: &Bench<'_>,
    slot: &Slot<'_>,
    address: SocketAddr,
    server_cpus: &CpuList,
) -> Result<Commands, LabError> {
    let via = bench.experiment.via.as_ref();
    let mut words = words(bench, slot, &slot.cell.point, address, server_cpus)?;
    let config = slot.subject.known_peer().and_then(|peer| peer.config());
    let config = config.map(|template| words.fill_in(&configured(template, &slot.cell.point)));
    if let (Some(text), Some(site)) = (&config, bench.site) {
        let path = site.configuration();
        std::fs::write(&path, text).map_err(|error| LabError::write(&path, error))?;
    }
    let server = words.fill(&slot.subject.command_template(&slot.cell));
    if let Some(via) = via {
        // An experiment whose cells cannot be divided was refused.
        let part = slot.cell.point.divided(via.generators).unwrap_or(slot.cell.point);
        words = self::words(bench, slot, &part, address, server_cpus)?;
        words.texts.insert("{twinring}".to_owned(), via.program.clone());
    }
    let template = bench.experiment.load_template(slot.cell.protocol(), slot.subject);
    let load = via.map_or(&[][..], |via| &via.command).iter().cloned().chain(words.fill(&template));
    Ok(Commands { server, config, load: load.collect() })
}

/// What the placeholders stand for, with `point` as the load of a load generator.
fn words(
    bench: &Bench<'_>,
    slot: &Slot<'_>,
    point: &Point,
    address: SocketAddr,
    server_cpus: &CpuList,
) -> Result<Words, LabError> {
    let millis = |seconds: f64| format!("{}", (seconds * 1e3).round());
    let (warmup_s, window_s) = bench.experiment.pace_s(slot.cell.protocol());
    let room = (2 * point.get(Axis::Connections)).max(point.get(Axis::Files)) + 64;
    let mut words = Words { texts: BTreeMap::new(), lists: BTreeMap::new() };
    for (name, value) in [
        ("twinring", bench.binary.to_owned()),
        ("addr", address.to_string()),
        ("ip", address.ip().to_string()),
        ("port", address.port().to_string()),
        ("warmup_ms", millis(warmup_s)),
        ("window_ms", millis(window_s)),
        ("server_cpus", server_cpus.to_string()),
        ("client_cpus", bench.load_cpus().to_string()),
        ("engine", bench.load_engine(slot)),
        ("room", room.max(ROOM_LEAST).to_string()),
        ("streams", point.get(Axis::Depth).max(STREAMS_LEAST).to_string()),
    ] {
        words.texts.insert(format!("{{{name}}}"), value);
    }
    for (spec, value) in point.axes() {
        words.texts.insert(format!("{{{}}}", spec.key), value.to_string());
    }
    if let Some(program) = slot.subject.peer.as_ref().and_then(|peer| bench.peers.get(peer)) {
        words.texts.insert("{peer}".to_owned(), program.display().to_string());
    }
    let (cpus, engine) = (bench.load_cpus(), bench.load_engine(slot));
    let mut options = load_options(bench.experiment, point, slot.rate_per_s, &cpus, &engine);
    if let (Protocol::Http, Some(site)) = (point.protocol(), bench.site) {
        for (name, path) in [
            ("work", site.directory().to_owned()),
            ("config", site.configuration()),
            ("root", site.root()),
            ("certificate", site.certificate()),
            ("key", site.key()),
        ] {
            words.texts.insert(format!("{{{name}}}"), path.display().to_string());
        }
        options.push(site.verify_body(point));
        let tls = point.is(Axis::Tls);
        if tls {
            options.extend(["--tls-ca".to_owned(), site.certificate().display().to_string()]);
        }
        let template = bench.experiment.load_template(Protocol::Http, slot.subject);
        // They may have to be written to a file.
        if template.iter().any(|word| word == "{urls}") {
            words.lists.insert("{urls}", site.urls(point, address)?);
        }
        words.lists.insert(
            "{listen}",
            listen(point, address, words.texts.get("{certificate}"), words.texts.get("{key}")),
        );
    }
    words.texts.insert("{nginx_listen}".to_owned(), nginx_listen(point));
    words.lists.insert("{options}", options);
    Ok(words)
}

fn listen(
    point: &Point,
    address: SocketAddr,
    certificate: Option<&String>,
    key: Option<&String>,
) -> Vec<String> {
    let address = address.to_string();
    let mut words = match (point.is(Axis::Tls), certificate, key) {
        (true, Some(certificate), Some(key)) => {
            vec!["--listen-tls", &address, "--tls-cert", certificate, "--tls-key", key]
        }
        _ => vec!["--listen", &address],
    };
    let streams = point.get(Axis::Depth).to_string();
    if point.is(Axis::Http2) && point.get(Axis::Depth) > STREAMS_LEAST {
        words.extend(["--http2-streams", &streams]);
    }
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn nginx_listen(point: &Point) -> String {
    let parts = [
        (point.workers() > 1, "reuseport"),
        (point.is(Axis::Tls), "ssl"),
        (point.is(Axis::Http2), "http2"),
    ];
    let parts = parts.iter().filter(|(holds, _)| *holds).map(|(_, word)| *word);
    parts.collect::<Vec<_>>().join(" ")
}

/// The options of `twinring load` for the point of a grid on these CPUs, which gets this rate if it gives none itself.
pub fn load_options(
    experiment: &Experiment,
    point: &Point,
    rate_per_s: Option<u32>,
    cpus: &CpuList,
    engine: &str,
) -> Vec<String> {
    let (warmup_s, window_s) = experiment.pace_s(point.protocol());
    let millis = |seconds: f64| format!("{}ms", (seconds * 1e3).round());
    let of = |axis: Axis| point.get(axis).to_string();
    let mut options: Vec<(&str, String)> = match point.protocol() {
        Protocol::Tcp => vec![
            ("-c", of(Axis::Connections)),
            ("-s", of(Axis::Bytes)),
            ("--depth", of(Axis::Depth)),
        ],
        Protocol::Udp => vec![
            ("--streams", of(Axis::Streams)),
            ("--pps", of(Axis::PacketsPerS)),
            ("-s", of(Axis::Bytes)),
            ("--drain", "100ms".to_owned()),
        ],
        Protocol::Http => vec![("-c", of(Axis::Connections)), ("--pipeline", of(Axis::Depth))],
    };
    options.extend([
        ("-d", millis(window_s)),
        ("--warmup", millis(warmup_s)),
        ("--threads", cpus.all().len().to_string()),
        ("--pin", cpus.to_string()),
        ("--engine", engine.to_owned()),
    ]);
    let parts = experiment.via.as_ref().map_or(1, |via| via.generators);
    let rate = rate_per_s.map_or(point.rate_per_s(), |rate| rate / parts);
    if rate > 0 {
        options.push(("--rate", rate.to_string()));
        let grid = experiment.grid(point.protocol());
        if grid.is_some_and(|grid| grid.arrivals == Arrivals::Poisson) {
            options.push(("--arrivals", "poisson".to_owned()));
        }
    }
    if point.is(Axis::Churn) {
        options.push(("--churn", of(Axis::Churn)));
    }
    let mut words: Vec<String> =
        options.into_iter().flat_map(|(option, value)| [option.to_owned(), value]).collect();
    for (holds, flag) in [
        (point.is(Axis::Http2), "--http2"),
        (point.on(Axis::Keepalive) == Some(0), "--no-keepalive"),
        // What is measured is handshakes, and not whether a server resumes.
        (point.is(Axis::Tls) && point.on(Axis::Keepalive) == Some(0), "--tls-full-handshake"),
        (true, "--json"),
    ] {
        if holds {
            words.push(flag.to_owned());
        }
    }
    words
}

impl Bench<'_> {
    /// The CPUs that load generators are pinned to: on other machines those of the option, or CPU 0.
    fn load_cpus(&self) -> CpuList {
        match (&self.experiment.via, &self.experiment.pin.client_cpu) {
            (Some(_), Some(cpus)) => cpus.clone(),
            (Some(_), None) => CpuList::one(0),
            (None, _) => self.cpus.client.clone(),
        }
    }

    /// The engine of the load generator: the same for every subject, unless it is under test as well.
    fn load_engine(&self, slot: &Slot<'_>) -> String {
        match self.experiment.under_test(slot.cell.protocol()) {
            UnderTest::Both => slot.subject.load_engine().to_owned(),
            UnderTest::Server => self.load_engine.to_owned(),
        }
    }
}
