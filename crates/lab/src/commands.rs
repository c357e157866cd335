//! The commands of a run: templates with their placeholders filled in, and the configuration file
//! of a server that needs one.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::error::LabError;
use crate::experiment::Point;
use crate::host::End;
use crate::host::share::part;
use crate::net::Network;
use crate::peers::SECOND_LOADS;
use crate::runner::{Bench, Slot};
use crate::workload::{Arrivals, Place};

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

pub(crate) fn option_unless_zero(option: &str, value: u32) -> impl Iterator<Item = String> {
    let words = (value != 0).then(|| [option.to_owned(), value.to_string()]);
    words.into_iter().flatten()
}

/// What the placeholders of commands stand for in a run.
pub(crate) struct Values {
    /// Parts of words.
    texts: BTreeMap<String, String>,
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
        // Each load generator's own; the server gets that of the first.
        let index = network.clients.iter().position(|client| std::ptr::eq(client, end));
        let client_cpu = if index.is_some() { end.cpu } else { bench.cpus.client };
        let mut values = Values { texts: BTreeMap::new(), lists: BTreeMap::new() };
        for (name, value) in [
            ("{twinring}", end.host.binary(bench.binary).to_owned()),
            ("{addr}", address.to_string()),
            ("{ip}", address.ip().to_string()),
            ("{port}", address.port().to_string()),
            ("{warmup_ms}", millis(warmup_s)),
            ("{window_ms}", millis(window_s)),
            ("{server_cpu}", network.server.cpu.to_string()),
            ("{client_cpu}", client_cpu.to_string()),
            ("{engine}", slot.subject.load_engine().to_owned()),
        ] {
            values.text(name, value);
        }
        if let Some(program) = slot.subject.peer.as_ref().and_then(|peer| bench.peers.get(peer)) {
            values.text("{peer}", program.display().to_string());
            values.list("{peer_options}", slot.subject.peer_options(&slot.cell.point));
        }
        for load in &SECOND_LOADS {
            if let Some(program) = bench.peers.get(load.name) {
                values.text(&load.word(), program.display().to_string());
            }
        }
        for (_, key, value) in point.load().axes() {
            values.text(&format!("{{{key}}}"), value.to_string());
        }
        let grid = bench.experiment.grid(slot.cell.protocol());
        let arrivals = grid.map_or(Arrivals::Periodic, |grid| grid.arrivals());
        let parts = network.clients.len();
        let found = slot.rate_per_s.map(|rate| part(rate, parts, index.unwrap_or(0)));
        let rate_per_s = found.unwrap_or(point.rate_per_s());
        let (host, site) = (&end.host, bench.site);
        let place = Place { host, site, address, rate_per_s, arrivals, template };
        point.load().fill(&mut values, &place)?;
        Ok(values)
    }

    pub(crate) fn text(&mut self, name: &str, value: String) {
        self.texts.insert(name.to_owned(), value);
    }

    pub(crate) fn list(&mut self, name: &'static str, words: Vec<String>) {
        self.lists.insert(name, words);
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
