//! The commands of a run: templates with their placeholders filled in, and the configuration file
//! of a server that needs one.

use std::net::SocketAddr;

use crate::bench::{Bench, Slot};
use crate::error::LabError;
use crate::experiment::{Arrivals, Point};
use crate::host::share::part;
use crate::host::{End, Host};
use crate::net::Network;
use crate::peers::SECOND_LOADS;
use crate::site::h2o;
use crate::values::{Place, Values};

/// Writes the configuration of a subject that needs one to the host of its server, and returns it.
pub(crate) fn configure(
    bench: &Bench<'_>,
    host: &Host,
    slot: &Slot<'_>,
    address: SocketAddr,
) -> Result<Option<String>, LabError> {
    let Point::Http(point) = slot.cell.point else { return Ok(None) };
    let is_h2o = slot.subject.peer.as_deref() == Some(h2o::PEER);
    let text = match (&slot.subject.nginx, bench.nginx, bench.site) {
        (Some(settings), Some(installed), _) => installed.configuration(settings, point, address),
        (None, _, Some(site)) if is_h2o => h2o::configuration(site, point, address),
        _ => return Ok(None),
    };
    host.configure(bench.site, &text)?;
    Ok(Some(text))
}

/// What the placeholders stand for, for a process at `end` of the network, with its `point` of the load.
///
/// # Errors
/// When a list of URLs cannot be written.
pub(crate) fn values(
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
    // The CPUs of this process, and of the first process at the other end.
    let index = network.clients.iter().position(|client| std::ptr::eq(client, end));
    let client_cpus = if index.is_some() { &end.cpus } else { &bench.cpus.client };
    let server = if index.is_some() { &network.servers[0] } else { end };
    let server_cpus = bench.cpus_of_server(server, slot);
    let mut values = Values::none();
    for (name, value) in [
        ("{twinring}", end.host.binary(bench.binary).to_owned()),
        ("{addr}", address.to_string()),
        ("{ip}", address.ip().to_string()),
        ("{port}", address.port().to_string()),
        ("{warmup_ms}", millis(warmup_s)),
        ("{window_ms}", millis(window_s)),
        ("{server_cpu}", server_cpus.first().to_string()),
        ("{server_cpus}", server_cpus.to_string()),
        ("{client_cpu}", client_cpus.first().to_string()),
        ("{client_cpus}", client_cpus.to_string()),
        ("{load_threads}", client_cpus.all().len().to_string()),
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
    match point {
        Point::Tcp(point) => point.fill(&mut values, &place),
        Point::Http(point) => point.fill(&mut values, &place)?,
        Point::Udp(_) => {}
    }
    Ok(values)
}
