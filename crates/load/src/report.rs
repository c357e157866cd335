//! From the threads' counts to the result line, for all loads over connections, and tables for
//! people.

pub(crate) mod table;

pub use self::table::Table;

use crate::gates::Judged;
use crate::recorder::Recorder;
use crate::requests::{LATE, Share};
use crate::run::Ran;
use crate::settings::Common;
use twinring_wire::Fields;
use twinring_wire::histogram::{EncodedHistogram, Lag, Latency, micros};
use twinring_wire::load::{Head, RATE_TOLERANCE};
use twinring_wire::requests::{Connections, RequestResult, Requests, WholeRun};

/// How a result of this schema begins.
pub(crate) fn head(schema: &str, target: String, ran: &Ran) -> Head {
    Head {
        event: "result".to_owned(),
        schema: schema.to_owned(),
        target,
        engine: ran.features.engine().to_string(),
        features: Fields::of(&ran.features),
        fallback_reason: ran.fallback_reason.clone(),
        interrupted: ran.interrupted,
    }
}

/// The common part of the results of loads over connections.
pub(crate) fn of_requests(
    all: &Share,
    ran: &Ran,
    latency_from: &str,
    common: &Common,
) -> RequestResult {
    let (counted, window, open) = (&all.recorder, ran.window(), common.is_open());
    let hopeless_ns = all.hopeless_ns();
    let mut requests = requests(all, window.seconds, hopeless_ns.len());
    if open && all.due.is_none() {
        // A number of requests: if they leave more slowly than asked for, half of them are ever later.
        let behind_s = counted.lag_ns.value_at_quantile(0.5) as f64 / 1e9;
        requests.rate_reached =
            Some(behind_s <= LATE.as_secs_f64() + RATE_TOLERANCE * window.seconds);
    }
    RequestResult {
        window,
        requests,
        whole_run: whole_run(counted),
        latency_us: Latency::of(&counted.latency_ns),
        latency_from: latency_from.to_owned(),
        raw_latency_us: open.then(|| Latency::of(&counted.raw_ns)),
        connect_us: Latency::of(&counted.connect_ns),
        schedule_lag_us: open.then(|| Lag::of(&counted.lag_ns)),
        histogram: EncodedHistogram::of(&counted.latency_ns),
        connections: Connections {
            asked: common.connections,
            served_at_once_max: ran.served_at_once_max,
            min_answered: match all.connections.established {
                0 => 0,
                _ => all.connections.min_answered,
            },
            ..all.connections
        },
        gates: common.gates.judge(&Judged {
            answers_ns: &counted.latency_ns,
            waits_ns: &[&all.unsent.waited_ns, &hopeless_ns],
            answered: requests.answered,
            unanswered: requests.failed + requests.overdue,
        }),
        first_error: counted.first_error.as_ref().map(|(_, what)| what.clone()),
        cpu: crate::cpu::report(&all.cpu, ran.throttling),
        runtime_counters: Fields::of(&ran.counters),
    }
}

fn requests(all: &Share, seconds: f64, hopeless: u64) -> Requests {
    let counted = &all.recorder;
    Requests {
        due: all.due,
        sent: counted.window.sent,
        answered: counted.window.answered,
        failed: counted.window.failed,
        in_flight_at_end: counted.until_end.in_flight(),
        unsent: all.unsent.count,
        overdue: all.unsent.overdue + hopeless,
        oldest_in_flight_us: Some(micros(all.oldest_ns)),
        per_second: match seconds > 0.0 {
            true => counted.window.answered as f64 / seconds,
            false => 0.0,
        },
        rate_reached: all.due.map(|due| all.unsent.late as f64 <= RATE_TOLERANCE * due as f64),
    }
}

fn whole_run(counted: &Recorder) -> WholeRun {
    WholeRun {
        sent: counted.whole.sent,
        answered: counted.whole.answered,
        failed: counted.whole.failed,
        abandoned: counted.whole.in_flight(),
    }
}
