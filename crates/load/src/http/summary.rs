use super::counts::Counts;
use super::settings::Settings;
use super::tls::Agreed;
use super::work::Outcome;
use crate::recorder::{Trouble, Troubles};
use crate::report::{connections, head, of_requests};
use crate::run::{LoadError, Ran, Share};
use twinring_wire::HttpResult;
use twinring_wire::histogram::{EncodedHistogram, Latency};
use twinring_wire::http as wire;
use twinring_wire::http::{Bytes, Errors, Histograms, Statuses, Tls, Url};
use twinring_wire::requests::Connections;

/// URLs that a result lists.
const URLS_REPORTED_MAX: usize = 100;

/// What was agreed on with the server.
#[derive(Default)]
struct Handshakes {
    made: u64,
    resumed: u64,
    first: Option<Agreed>,
    /// The fewest streams that the server allowed on a connection.
    streams_max: Option<u64>,
}

/// Combines the threads' results.
///
/// # Errors
/// Without a single connection there is nothing to report.
pub(super) fn report(
    settings: &Settings,
    ran: &Ran,
    outcomes: Vec<Outcome>,
) -> Result<HttpResult, LoadError> {
    let (mut all, mut counts) = (Share::nothing(), Counts::new(settings));
    let mut handshakes = Handshakes::default();
    for outcome in outcomes {
        all.merge(outcome.share);
        counts.merge(outcome.counts);
        handshakes.made += outcome.handshakes;
        handshakes.resumed += outcome.resumed;
        handshakes.first = handshakes.first.or(outcome.agreed);
        let limits = [handshakes.streams_max, outcome.streams_max];
        handshakes.streams_max = limits.into_iter().flatten().min();
    }
    let target = settings.targets.first().map_or_else(String::new, |target| target.origin());
    ran.check_connected(&all, &target, settings.connections)?;
    let open = settings.rate_per_s.is_some();
    let connections = Connections {
        kept_open: Some(counts.kept_open),
        ..connections(&all, ran, settings.connections)
    };
    let latency_from = match (open, settings.keepalive) {
        (true, _) => "intended",
        (false, true) => "send",
        (false, false) => "connect",
    };
    let requests = of_requests(&all, ran, latency_from, connections, &settings.gates);
    Ok(HttpResult {
        head: head(wire::SCHEMA, target, ran.engine(), ran.interrupted),
        settings: settings_report(settings, handshakes),
        bytes: Bytes {
            sent: counts.sent_bytes,
            received: counts.received_bytes,
            bodies: counts.content_bytes,
        },
        statuses: statuses(&counts.statuses),
        status_codes: (counts.codes.iter())
            .map(|(status, count)| (status.to_string(), *count))
            .collect(),
        raw_latency_us: open.then(|| Latency::of(&counts.raw_ns)),
        ttfb_us: Latency::of(&counts.ttfb_ns),
        connect_us: Latency::of(&counts.connect_ns),
        histograms: Some(Histograms {
            raw: open.then(|| EncodedHistogram::of(&counts.raw_ns)),
            ttfb: EncodedHistogram::of(&counts.ttfb_ns),
            connect: EncodedHistogram::of(&counts.connect_ns),
        }),
        time_series: counts.series.report(),
        urls: urls(settings, &counts),
        errors: errors(&all.recorder.troubles),
        all: requests,
    })
}

fn settings_report(settings: &Settings, handshakes: Handshakes) -> wire::Settings {
    let tls = settings.is_tls().then(|| Tls {
        ca: settings.tls.ca.as_ref().map(|file| file.display().to_string()),
        insecure: settings.tls.insecure,
        full_handshake: settings.tls.full_handshake,
        protocol: handshakes.first.as_ref().map(|first| first.protocol.clone()),
        cipher_suite: handshakes.first.as_ref().map(|first| first.cipher_suite.clone()),
        handshakes: handshakes.made,
        resumed: handshakes.resumed,
    });
    wire::Settings { tls, streams_max: handshakes.streams_max, ..settings.report() }
}

fn statuses([of_2xx, of_3xx, of_4xx, of_5xx, other]: &[u64; 5]) -> Statuses {
    Statuses { of_2xx: *of_2xx, of_3xx: *of_3xx, of_4xx: *of_4xx, of_5xx: *of_5xx, other: *other }
}

fn urls(settings: &Settings, counts: &Counts) -> Vec<Url> {
    let rows = settings.targets.iter().zip(&counts.urls).take(URLS_REPORTED_MAX);
    rows.map(|(target, counted)| Url {
        url: target.url.clone(),
        weight: target.weight,
        sent: counted.sent,
        answered: counted.answered,
        failed: counted.failed,
    })
    .collect()
}

fn errors(troubles: &Troubles) -> Errors {
    Errors {
        connect: troubles.count(Trouble::Connect),
        tls: troubles.count(Trouble::Tls),
        reset: troubles.count(Trouble::Reset),
        closed_early: troubles.count(Trouble::ClosedEarly),
        timeout: troubles.count(Trouble::Timeout),
        malformed: troubles.count(Trouble::Malformed),
        status: troubles.count(Trouble::Status),
        length: troubles.count(Trouble::Length),
        hash: troubles.count(Trouble::Hash),
        goaway: troubles.count(Trouble::GoAway),
        stream_reset: troubles.count(Trouble::StreamReset),
        refused_stream: troubles.count(Trouble::RefusedStream),
        other: troubles.count(Trouble::Other),
    }
}
