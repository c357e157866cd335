//! The commands of a run: templates with their placeholders filled in, and the configuration file
//! of a server that needs one.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::cpus::CpuList;
use crate::error::LabError;
use crate::experiment::{Arrivals, Axis, Experiment, Point, Protocol, UnderTest};
use crate::peers::configured;
use crate::runner::{Bench, Slot};
use crate::site::{CERTIFICATE, CONFIGURATION, KEY, ROOT};

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

/// What each placeholder stands for: any number of words where it is a whole word, else the only one.
struct Words(BTreeMap<String, Vec<String>>);

impl Words {
    fn set(&mut self, name: &str, value: impl ToString) {
        self.0.insert(format!("{{{name}}}"), vec![value.to_string()]);
    }

    fn fill_in(&self, text: &str) -> String {
        let fill = |text: String, (name, words): (&String, &Vec<String>)| match &words[..] {
            [word] => text.replace(name, word),
            _ => text,
        };
        self.0.iter().fold(text.to_owned(), fill)
    }

    fn fill(&self, template: &[String]) -> Vec<String> {
        let words = template.iter().flat_map(|word| match self.0.get(word) {
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
        let path = site.path(CONFIGURATION);
        std::fs::write(&path, text).map_err(|error| LabError::write(&path, error))?;
    }
    let server = words.fill(&slot.subject.command_template(&slot.cell));
    if let Some(via) = via {
        // An experiment whose cells cannot be divided was refused.
        let part = slot.cell.point.divided(via.generators).unwrap_or(slot.cell.point);
        words = self::words(bench, slot, &part, address, server_cpus)?;
        words.set("twinring", &via.program);
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
    let mut words = Words(BTreeMap::new());
    let room = (2 * point.get(Axis::Connections)).max(point.get(Axis::Files)) + 64;
    let (cpus, engine) = (bench.load_cpus(), bench.load_engine(slot));
    words.set("twinring", bench.binary);
    words.set("addr", address);
    words.set("ip", address.ip());
    words.set("port", address.port());
    words.set("server_cpus", server_cpus);
    words.set("engine", engine);
    words.set("room", room.max(ROOM_LEAST));
    words.set("streams", point.get(Axis::Depth).max(STREAMS_LEAST));
    for (spec, value) in point.axes() {
        words.set(spec.key, value);
    }
    if let Some(program) = slot.subject.peer.as_ref().and_then(|peer| bench.peers.get(peer)) {
        words.set("peer", program.display());
    }
    let mut options = load_options(bench.experiment, point, slot.rate_per_s, &cpus, engine);
    if let (Protocol::Http, Some(site)) = (point.protocol(), bench.site) {
        let path = |file: &str| site.path(file).display().to_string();
        let (certificate, key) = (path(CERTIFICATE), path(KEY));
        options.push(site.verify_body(point));
        let mut listen = vec!["--listen".to_owned(), address.to_string()];
        if point.is(Axis::Tls) {
            options.extend(["--tls-ca".to_owned(), certificate.clone()]);
            let cert =
                ["--tls-cert".to_owned(), certificate.clone(), "--tls-key".to_owned(), key.clone()];
            listen[0] += "-tls";
            listen.extend(cert);
        }
        if point.is(Axis::Http2) && point.get(Axis::Depth) > STREAMS_LEAST {
            listen.extend(["--http2-streams".to_owned(), point.get(Axis::Depth).to_string()]);
        }
        words.0.insert("{listen}".to_owned(), listen);
        let template = bench.experiment.load_template(Protocol::Http, slot.subject);
        // They may have to be written to a file.
        if template.iter().any(|word| word == "{urls}") {
            words.0.insert("{urls}".to_owned(), site.urls(point, address)?);
        }
        for (name, value) in [
            ("work", path("")),
            ("config", path(CONFIGURATION)),
            ("root", path(ROOT)),
            ("certificate", certificate),
            ("key", key),
        ] {
            words.set(name, value);
        }
    }
    words.0.insert("{options}".to_owned(), options);
    Ok(words)
}

/// The options of `twinring load` for the point of a grid on these CPUs, which gets this rate if it gives none itself.
pub fn load_options(
    experiment: &Experiment,
    point: &Point,
    rate_per_s: Option<u32>,
    cpus: &CpuList,
    engine: &str,
) -> Vec<String> {
    let (protocol, (warmup_s, window_s)) = (point.protocol(), experiment.pace_s(point.protocol()));
    let millis = |seconds: f64| Some(format!("{}ms", (seconds * 1e3).round()));
    let of = |axis: Axis| Some(point.get(axis).to_string());
    let parts = experiment.via.as_ref().map_or(1, |via| via.generators);
    let rate = rate_per_s.map_or(point.rate_per_s(), |rate| rate / parts);
    let is_random = experiment.grid(protocol).is_some_and(|it| it.arrivals == Arrivals::Poisson);
    let (tcp, udp) = (protocol == Protocol::Tcp, protocol == Protocol::Udp);
    let closes = point.on(Axis::Keepalive) == Some(0);
    // Whether there is the option, its name, and its value.
    let options = [
        (!udp, "-c", of(Axis::Connections)),
        (udp, "--streams", of(Axis::Streams)),
        (udp, "--pps", of(Axis::PacketsPerS)),
        (tcp || udp, "-s", of(Axis::Bytes)),
        (udp, "--drain", Some("100ms".to_owned())),
        (tcp, "--depth", of(Axis::Depth)),
        (!tcp && !udp, "--pipeline", of(Axis::Depth)),
        (true, "-d", millis(window_s)),
        (true, "--warmup", millis(warmup_s)),
        (true, "--threads", Some(cpus.all().len().to_string())),
        (true, "--pin", Some(cpus.to_string())),
        (true, "--engine", Some(engine.to_owned())),
        (rate > 0, "--rate", Some(rate.to_string())),
        (rate > 0 && is_random, "--arrivals", Some("poisson".to_owned())),
        (point.is(Axis::Churn), "--churn", of(Axis::Churn)),
        (point.is(Axis::Http2), "--http2", None),
        (closes, "--no-keepalive", None),
        // What is measured is handshakes, and not whether a server resumes.
        (closes && point.is(Axis::Tls), "--tls-full-handshake", None),
        (true, "--json", None),
    ];
    let given = options.into_iter().filter(|(is_given, ..)| *is_given);
    given.flat_map(|(_, option, value)| [option.to_owned()].into_iter().chain(value)).collect()
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
    fn load_engine<'a>(&'a self, slot: &Slot<'a>) -> &'a str {
        match self.experiment.under_test(slot.cell.protocol()) {
            UnderTest::Both => slot.subject.engine.as_deref().unwrap_or("auto"),
            UnderTest::Server => self.load_engine,
        }
    }
}
