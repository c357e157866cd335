//! The gates of `twinring load http`: which requests at the end of a run breach them.

use crate::support::load::*;
use crate::support::*;
use std::sync::OnceLock;
use std::thread;

pub(crate) const TESTS: &[Test] = tests![
    a_server_that_stops_breaks_the_gates_of_an_open_loop,
    short_requests_in_flight_breach_no_gate,
    requests_of_connections_that_were_never_made_are_overdue
];

/// Its answers until then were quick, and none of them failed. With few requests to each connection, those that it
/// leaves unanswered are in flight when the window ends, and not unsent.
fn a_server_that_stops_breaks_the_gates_of_an_open_loop() {
    for (stops_after_ms, arguments) in [(500, "-c 10 --rate 2000"), (1000, "-c 150 --rate 50")] {
        let first = OnceLock::new();
        let target = answering(move |_| {
            let began = first.get_or_init(Instant::now);
            if began.elapsed() > Duration::from_millis(stops_after_ms) {
                thread::sleep(Duration::from_secs(9));
            }
            ok("hello")
        });
        let load = format!("{arguments} -d 3s --warmup 0s --slo p99=1s --max-error-rate 1%");
        let outcome = run_http("auto", target, &load);
        outcome.expect(3, &[]);
        let overdue = outcome.number("/requests/overdue");
        let unsent = outcome.number("/requests/unsent");
        match stops_after_ms {
            // 3000, or 1000 if the first of all was held up for a second.
            500 => assert!(overdue > 500, "{}", outcome.result),
            // 100, or half of them after a delay of a second. None is unsent; or those of a second if the load generator
            // was delayed at the end, which are not overdue.
            _ => assert!(overdue > 25 && unsent <= 50, "{}", outcome.result),
        }
        let gates = outcome.result["gates"].as_array().expect("gates");
        assert!(gates.len() == 2 && gates.iter().all(|it| it["breached"] == true), "{gates:?}");
    }
}

/// A server that is slow, but answers, has requests in flight at any end, and they are no errors.
fn short_requests_in_flight_breach_no_gate() {
    let target = answering(|_| {
        thread::sleep(Duration::from_millis(2000));
        ok("hello")
    });
    // Each has its first answer inside the window, and its second after all waiting, even if one of
    // them is held up for 300 ms.
    let load = "-c 4 -d 2500ms --warmup 0s --slo p99=5s --max-error-rate 0";
    let outcome = run_http("auto", target, load);
    outcome.expect(0, &[]);
    assert_eq!(outcome.number("/requests/overdue"), 0, "{}", outcome.result);
    assert_eq!(outcome.number("/whole_run/abandoned"), 4, "{}", outcome.result);
}

/// Half of the load was never sent, and all gates were kept.
fn requests_of_connections_that_were_never_made_are_overdue() {
    let target = answering(|_| ok("hello"));
    // From the second address nothing gets to the server.
    let load = "-c 4 --rate 400 -d 2s --warmup 0s --local 127.0.0.1,192.0.2.1 --max-error-rate 1%";
    let outcome = run_http("auto", target, load);
    assert_eq!(outcome.number("/connections/established"), 2, "{}", outcome.result);
    // 400, and what the others did not get to at the end: those of a second at most.
    let (sent, unsent) = (outcome.number("/whole_run/sent"), outcome.number("/requests/unsent"));
    assert!((400..=600).contains(&unsent) && sent + unsent == 800, "{}", outcome.result);
    assert_eq!(outcome.number("/requests/overdue"), 200, "{}", outcome.result);
    let gates = outcome.result["gates"].as_array().expect("gates");
    assert!(gates.iter().all(|it| it["breached"] == true), "{gates:?}");
}
