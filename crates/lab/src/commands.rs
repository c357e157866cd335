//! The commands of a run: templates with their placeholders filled in, and the configuration file
//! of a server that needs one.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::error::LabError;
use crate::experiment::{HttpPoint, Point};
use crate::host::End;
use crate::net::Network;
use crate::runner::{Bench, Slot};
use crate::site::{Site, nginx};

/// Writes the configuration of a subject that needs one, and returns it.
pub(crate) fn configure(
    bench: &Bench<'_>,
    network: &Network,
    slot: &Slot<'_>,
    address: SocketAddr,
) -> Result<Option<String>, LabError> {
    let (Some(settings), Point::Http(point)) = (&slot.subject.nginx, slot.cell.point) else {
        return Ok(None);
    };
    let Some(installed) = bench.nginx else { return Ok(None) };
    let text = installed.configuration(settings, point, address);
    network.server.host.configure(bench.site, &text)?;
    Ok(Some(text))
}

fn option_unless_zero(option: &str, value: u32) -> impl Iterator<Item = String> {
    let words = (value != 0).then(|| [option.to_owned(), value.to_string()]);
    words.into_iter().flatten()
}

/// What the placeholders of commands stand for in a run.
pub(crate) struct Values {
    /// Parts of words.
    texts: BTreeMap<&'static str, String>,
    /// Whole words that stand for any number of words.
    lists: BTreeMap<&'static str, Vec<String>>,
}

impl Values {
    /// For a process at `end` of the network, with its `point` of the load.
    ///
    /// # Errors
    /// When a list of URLs cannot be written.
    pub(crate) fn of(
        bench: &Bench<'_>,
        network: &Network,
        slot: &Slot<'_>,
        end: &End,
        point: Point,
        address: SocketAddr,
        template: &[String],
    ) -> Result<Values, LabError> {
        let millis = |seconds: f64| format!("{}", (seconds * 1e3).round());
        let (warmup_s, window_s) = bench.experiment.pace_s(slot.cell.protocol());
        // Each load generator's own; the server is told that of the first.
        let is_client = network.clients.iter().any(|client| std::ptr::eq(client, end));
        let client_cpu = if is_client { end.cpu } else { bench.cpus.client };
        let texts = BTreeMap::from([
            ("{twinring}", end.host.binary(bench.binary).to_owned()),
            ("{addr}", address.to_string()),
            ("{ip}", address.ip().to_string()),
            ("{port}", address.port().to_string()),
            ("{warmup_ms}", millis(warmup_s)),
            ("{window_ms}", millis(window_s)),
            ("{server_cpu}", network.server.cpu.to_string()),
            ("{client_cpu}", client_cpu.to_string()),
            ("{engine}", slot.subject.load_engine().to_owned()),
        ]);
        let mut values = Values { texts, lists: BTreeMap::new() };
        if let Some(program) = slot.subject.peer.as_ref().and_then(|peer| bench.peers.get(peer)) {
            values.texts.insert("{peer}", program.display().to_string());
            values.lists.insert("{peer_options}", slot.subject.peer_options(&slot.cell.point));
        }
        match point {
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
                if let Some(site) = end.host.site(bench.site) {
                    // They may have to be written to a file there.
                    let urls = match template.iter().any(|word| word == "{urls}") {
                        true => end.host.urls(site, point, address)?,
                        false => Vec::new(),
                    };
                    values.http(site, point, address, urls);
                }
            }
        }
        Ok(values)
    }

    fn numbers(&mut self, numbers: [(&'static str, u32); 3]) {
        self.texts.extend(numbers.map(|(name, number)| (name, number.to_string())));
    }

    fn http(&mut self, site: &Site, point: HttpPoint, address: SocketAddr, urls: Vec<String>) {
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
    }

    /// The command with its placeholders filled in.
    pub(crate) fn fill(&self, template: &[String]) -> Vec<String> {
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
