//! From what the threads counted to the report.

use super::counts::Counts;
use super::report::{
    Bytes, Connections, ErrorCounts, Histograms, Report, SettingsReport, Statuses, TlsReport,
    URLS_REPORTED_MAX, UrlReport,
};
use super::settings::Settings;
use super::tls::Agreed;
use super::worker::Outcome;
use crate::gates::Gate;
use crate::report::{EncodedHistogram, Lag, Latency, RequestsReport, WholeRun};
use crate::run::{LoadError, Ran, Share};

/// What came of TLS.
#[derive(Default)]
struct Handshakes {
    made: u64,
    resumed: u64,
    first: Option<Agreed>,
}

/// Puts together what the threads handed in.
///
/// # Errors
/// Without a single connection there is nothing to report.
pub(super) fn report(
    settings: &Settings,
    ran: Ran,
    outcomes: Vec<Outcome>,
) -> Result<Report, LoadError> {
    let (mut all, mut counts) = (Share::nothing(), Counts::new(settings));
    let mut handshakes = Handshakes::default();
    for outcome in outcomes {
        all.merge(outcome.share);
        counts.merge(outcome.counts);
        handshakes.made += outcome.handshakes;
        handshakes.resumed += outcome.resumed;
        handshakes.first = handshakes.first.or(outcome.agreed);
    }
    let target = settings.targets.first().map_or_else(String::new, |target| target.origin());
    ran.check_connected(&all, &target, settings.connections)?;
    let window = ran.window();
    let open = settings.rate_per_s.is_some();
    let counted = &all.recorder;
    let requests = RequestsReport::of(&all, window.seconds);
    let latency_us = Latency::of(&counted.latency_ns);
    let at_once = ran.served_at_once_max;
    Ok(Report {
        event: "result",
        schema: "twinring.load.http/1",
        target,
        engine: ran.features.engine().to_string(),
        features: ran.features,
        why_not: ran.why_not,
        interrupted: ran.interrupted,
        settings: settings_report(settings, handshakes),
        window,
        requests,
        whole_run: WholeRun::of(counted),
        bytes: Bytes {
            sent: counts.sent_bytes,
            received: counts.received_bytes,
            bodies: counts.content_bytes,
        },
        statuses: statuses(counts.statuses),
        latency_us,
        latency_from: match (open, settings.keepalive) {
            (true, _) => "intended",
            (false, true) => "send",
            (false, false) => "connect",
        },
        raw_latency_us: open.then(|| Latency::of(&counts.raw_ns)),
        ttfb_us: Latency::of(&counts.ttfb_ns),
        connect_us: Latency::of(&counts.connect_ns),
        schedule_lag_us: open.then(|| Lag::of(&counted.lag_ns)),
        histogram: EncodedHistogram::of(&counted.latency_ns),
        histograms: Histograms {
            raw: open.then(|| EncodedHistogram::of(&counts.raw_ns)),
            ttfb: EncodedHistogram::of(&counts.ttfb_ns),
            connect: EncodedHistogram::of(&counts.connect_ns),
        },
        time_series: counts.series.report(),
        urls: urls(settings, &counts),
        connections: Connections::of(&all, settings.connections, at_once, counts.kept_open),
        errors: ErrorCounts::of(&counted.troubles),
        gates: gates(settings, &all, &requests),
        cpu: crate::cpu::report(&all.cpu),
        first_error: all.recorder.first_error.map(|(_, what)| what),
        runtime_counters: ran.counters,
        latency_ns: all.recorder.latency_ns,
    })
}

fn settings_report(settings: &Settings, handshakes: Handshakes) -> SettingsReport {
    let tls = settings.is_tls().then(|| TlsReport {
        ca: settings.tls.ca.clone(),
        insecure: settings.tls.insecure,
        full_handshake: settings.tls.full_handshake,
        protocol: handshakes.first.as_ref().map(|first| first.protocol.clone()),
        cipher_suite: handshakes.first.as_ref().map(|first| first.cipher_suite.clone()),
        handshakes: handshakes.made,
        resumed: handshakes.resumed,
    });
    SettingsReport { tls, ..settings.report() }
}

fn statuses([of_2xx, of_3xx, of_4xx, of_5xx, other]: [u64; 5]) -> Statuses {
    Statuses { of_2xx, of_3xx, of_4xx, of_5xx, other }
}

fn urls(settings: &Settings, counts: &Counts) -> Vec<UrlReport> {
    let rows = settings.targets.iter().zip(&counts.urls).take(URLS_REPORTED_MAX);
    rows.map(|(target, counted)| UrlReport {
        url: target.url.clone(),
        weight: target.weight,
        sent: counted.sent,
        answered: counted.answered,
        failed: counted.failed,
    })
    .collect()
}

fn gates(settings: &Settings, all: &Share, requests: &RequestsReport) -> Vec<Gate> {
    let (answers, unsent, hopeless) =
        (&all.recorder.latency_ns, &all.unsent.waited_ns, &all.hopeless_ns());
    let p99 = settings.slo_p99.map(|limit| Gate::slo_p99(limit, answers, &[unsent, hopeless]));
    let errors = settings.max_error_rate.map(|limit| Gate::max_error_rate(limit, requests));
    p99.into_iter().chain(errors).collect()
}
