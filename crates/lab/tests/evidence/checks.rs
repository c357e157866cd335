//! Every check fires on a run made to trigger it, whether something disturbed the run or not.

use serde_json::{Value, json};
use testing::{Test, tests};
use twinring_lab::analysis::{Bottleneck, Check, Effect, Finding, check};

use crate::records::{judge, pairs, read, record};
use crate::tampering::{HTTP, UDP, stored_run};

pub(crate) const TESTS: &[Test] = tests![
    every_check_fires_on_a_run_made_for_it_and_not_on_a_clean_one,
    datagrams_and_files_are_checked_as_well,
    whatever_is_at_its_ceiling_is_the_bottleneck,
    a_foreign_server_may_end_badly,
    the_time_that_others_took_is_in_the_tolerance_of_each_check,
    a_late_load_generator_costs_its_pair_unless_most_runs_are_late
];

/// What is changed in a flawless run, by JSON pointer, and which check then fires with which effect.
type Flaw = (Check, Effect, Vec<(&'static str, Value)>);

/// Flaws of a run of TCP, one or more for each check.
fn flaws() -> Vec<Flaw> {
    let failed = |what: &str| vec![("/failures", json!([{"what": what, "why": "so"}]))];
    let counts = |counts: Value| {
        vec![("/cpu/server_cpu/counts", counts.clone()), ("/cpu/client_cpu/counts", counts)]
    };
    let open = |lag_us: f64| {
        vec![
            ("/rate_per_s", json!(100_000)),
            ("/loads/0/settings/mode", json!("open")),
            ("/loads/0/requests/due", json!(200_000)),
            ("/loads/0/schedule_lag_us", json!({"p50": 1.0, "p99": lag_us, "max": 3000.0})),
        ]
    };
    let few = json!({"function_call_interrupts": 9, "reschedule_interrupts": 1, "steered": 0});
    use {Check::*, Effect::*};
    vec![
        (ServerRuns, Void, failed("server_not_ready")),
        (ServerRuns, Void, failed("server_died")),
        (ServerRuns, Void, failed("server_did_not_stop")),
        (LoadRuns, Void, failed("client_failed")),
        (LoadRuns, Excluded, failed("no_accounting")),
        (Network, Void, counts(few)),
        (Result, Void, failed("bad_line")),
        (Result, Void, vec![("/loads/0/requests/per_second", json!(5.0))]),
        (Result, Void, vec![("/loads/0/latency_us/p99", json!(5.0))]),
        (Result, Void, vec![("/loads/0/window/seconds", json!(1.9))]),
        (Load, Void, vec![("/loads/0/settings/connections", json!(64))]),
        (Load, Void, vec![("/loads/0/settings/message_bytes", json!(1))]),
        // A closed loop passed where a rate was asked for.
        (Load, Void, vec![("/rate_per_s", json!(500))]),
        (Load, Void, [open(1.0), vec![("/loads/0/requests/due", json!(150_000))]].concat()),
        (Bytes, Void, vec![("/loads/0/errors/mismatch", json!(1))]),
        (Errors, Void, vec![("/loads/0/errors/reset", json!(1))]),
        // python3 -m http.server was said to leave connections unserved.
        (Admission, Void, vec![("/loads/0/connections/reconnects", json!(1_000_000_000))]),
        (Admission, Void, vec![("/loads/0/connections/served_at_once_max", json!(64))]),
        (Balance, Void, vec![("/loads/0/whole_run/abandoned", json!(1))]),
        // Their sum overflowed, which ended a debug build.
        (
            Balance,
            Void,
            vec![
                ("/loads/0/whole_run/answered", json!(u64::MAX)),
                ("/loads/0/whole_run/failed", json!(u64::MAX)),
            ],
        ),
        (
            Answers,
            Void,
            vec![
                ("/loads/0/requests/answered", json!(0)),
                ("/loads/0/requests/per_second", json!(0.0)),
            ],
        ),
        (Stalled, Void, vec![("/loads/0/connections/min_answered", json!(0))]),
        (Stalled, Void, vec![("/loads/0/requests/oldest_in_flight_us", json!(600_000.0))]),
        (LittlesLaw, Void, vec![("/loads/0/latency_us/mean", json!(700.0))]),
        (Schedule, Excluded, open(2000.0)),
        (Packets, Note, counts(json!({"tcp_retransmits": 11, "device_drops": 8}))),
        (Verified, Note, vec![("/loads/0/settings/verify", json!(false))]),
    ]
}

/// Puts values into a record, also where there was none.
fn put(record: &mut Value, changes: &[(&str, Value)]) {
    for (pointer, value) in changes {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        record.pointer_mut(parent).unwrap()[key] = value.clone();
    }
}

fn effect(found: &[Finding], of: Check) -> Option<Effect> {
    found.iter().find(|finding| finding.check == of).map(|finding| finding.effect)
}

fn every_check_fires_on_a_run_made_for_it_and_not_on_a_clean_one() {
    assert_eq!(check(&read(record(0, 0, "io_uring", 1.6))), []);
    let mut fired = Vec::new();
    for (of, expected, changes) in flaws() {
        let mut made = record(0, 0, "io_uring", 1.6);
        put(&mut made, &changes);
        let found = check(&read(made));
        assert_eq!(effect(&found, of), Some(expected), "{of:?} {changes:?}: {found:?}");
        fired.push(of);
    }
    assert!(Check::all().iter().all(|check| fired.contains(check)), "{fired:?}");
}

/// Flaws of measured runs of UDP and of HTTP.
fn datagrams_and_files_are_checked_as_well() {
    use {Check::*, Effect::*};
    let load = |pointer: &str, value: Value| vec![(format!("/loads/0/{pointer}"), value)];
    let unanswered = || {
        let none = ["received", "received_per_second", "sent_per_second"]
            .map(|it| load(&format!("packets/{it}"), json!(0)));
        [none.concat(), load("packets/lost", json!(100)), load("loss_ratio", json!(1.0))].concat()
    };
    let taken = |flaw: Vec<(String, Value)>| {
        [flaw, vec![("/others/cpu_s".to_owned(), json!(0.19))]].concat()
    };
    let kernel_drops = "/server_final/service_counters/kernel_drops".to_owned();
    let refused = json!([{"what": "client_failed", "why": "no packet came back"}]);
    let without_marks = vec![(
        "/failures".to_owned(),
        json!([{"what": "bad_line", "why": "0 marks instead of window_start and window_end"}]),
    )];
    let failed_with = |code: i32| {
        let failures = ("/failures".to_owned(), refused.clone());
        vec![failures, ("/client_exit/code".to_owned(), json!(code))]
    };
    for (number, of, expected, changes) in [
        (UDP, Bytes, Some(Void), load("packets/mismatched", json!(1))),
        (UDP, Errors, Some(Void), load("errors/receive", json!(1))),
        (UDP, Errors, Some(Void), load("errors/icmp_refused", json!(1))),
        (UDP, Admission, Some(Void), load("streams/opened", json!(9))),
        (UDP, Balance, Some(Void), load("packets/refused", json!(1))),
        (UDP, Balance, Some(Void), load("packets/lost", json!(3))),
        (UDP, Result, Some(Void), load("round_trip_us/p99", json!(20_000.0))),
        (UDP, Result, Some(Void), load("send_lateness_us/p99_9", json!(500.0))),
        (UDP, Result, Some(Void), load("packets/received", json!(99))),
        (UDP, Result, Some(Void), load("loss_ratio", json!(0.5))),
        (UDP, Result, Some(Void), load("kernel_drops", Value::Null)),
        (UDP, Load, Some(Void), load("settings/packets_per_s", json!(25.0))),
        // It leaves out every other packet of its schedule, and says that no more were due.
        (UDP, Load, Some(Void), load("packets/due", json!(50))),
        (
            UDP,
            Stalled,
            Some(Note),
            [
                load("streams/answered", json!(9)),
                vec![("/cell/packets_per_s".to_owned(), json!(60))],
            ]
            .concat(),
        ),
        (UDP, Packets, Some(Note), load("kernel_drops", json!(5))),
        (UDP, Packets, Some(Note), vec![(kernel_drops, json!(5))]),
        (UDP, Verified, Some(Note), load("packets/foreign", json!(3))),
        (UDP, Verified, Some(Note), load("settings/verify", json!(false))),
        // The worst of losses was taken for a broken measurement, and the cell was void.
        (UDP, Answers, Some(Note), unanswered()),
        (UDP, LoadRuns, None, [unanswered(), failed_with(1)].concat()),
        (HTTP, Bytes, Some(Void), load("errors/status", json!(4))),
        (HTTP, Bytes, Some(Void), load("errors/length", json!(4))),
        (HTTP, Bytes, Some(Void), load("errors/hash", json!(4))),
        (HTTP, Bytes, Some(Void), load("errors/malformed", json!(4))),
        (HTTP, Bytes, Some(Void), load("bytes/bodies", json!(1_489_535))),
        // Of a server that sent wrong bytes was said that the load generator failed, which ends with 1 then.
        (HTTP, LoadRuns, None, [load("errors/hash", json!(4)), failed_with(1)].concat()),
        (HTTP, LoadRuns, Some(Void), [load("errors/hash", json!(4)), failed_with(101)].concat()),
        (HTTP, Result, None, [load("errors/hash", json!(4)), without_marks.clone()].concat()),
        (HTTP, Result, Some(Void), without_marks),
        (HTTP, LoadRuns, Some(Void), failed_with(1)),
        (HTTP, Errors, Some(Void), load("errors/closed_early", json!(1))),
        (HTTP, Load, Some(Void), load("settings/keepalive", json!(false))),
        (HTTP, Load, Some(Void), load("settings/pipeline", json!(2))),
        (HTTP, Load, Some(Void), load("settings/urls", json!(2))),
        (HTTP, Admission, Some(Void), load("connections/served_at_once_max", json!(1))),
        (HTTP, Admission, Some(Excluded), taken(load("connections/served_at_once_max", json!(1)))),
        (HTTP, Balance, Some(Void), load("whole_run/answered", json!(15_484))),
        (HTTP, Stalled, Some(Void), load("connections/min_answered", json!(0))),
        (HTTP, LittlesLaw, Some(Void), load("latency_us/mean", json!(17.0))),
        (HTTP, Verified, Some(Note), load("settings/verify_body", Value::Null)),
    ] {
        assert_eq!(check(&read(stored_run(number))), []);
        let mut made = stored_run(number);
        let changes: Vec<(&str, Value)> =
            changes.iter().map(|(pointer, value)| (&**pointer, value.clone())).collect();
        put(&mut made, &changes);
        let found = check(&read(made));
        assert_eq!(effect(&found, of), expected, "{number} {of:?} {changes:?}: {found:?}");
    }
}

fn whatever_is_at_its_ceiling_is_the_bottleneck() {
    for (server_s, client_s, thread_share, expected) in [
        (1.94, 1.5, 0.7, Bottleneck::ServerCpu),
        (1.8, 1.96, 0.7, Bottleneck::ClientCpu),
        (1.8, 1.5, 0.99, Bottleneck::ClientCpu),
        (1.92, 1.92, 0.7, Bottleneck::BothCpus),
        (1.8, 1.8, 0.7, Bottleneck::Neither),
    ] {
        let mut records = pairs(1, 1.0);
        for record in &mut records {
            record["cpu"]["server_cpu"]["busy_s"] = json!(server_s);
            record["cpu"]["client_cpu"]["busy_s"] = json!(client_s);
            record["loads"][0]["cpu"]["busiest_thread_share"] = json!(thread_share);
        }
        let cell = judge(records);
        assert!(cell.subjects.iter().all(|it| it.bottleneck == Some(expected)), "{cell:?}");
    }
}

/// A foreign server that ends badly has served well.
fn a_foreign_server_may_end_badly() {
    let mut made = record(0, 0, "theirs", 1.6);
    put(
        &mut made,
        &[
            ("/failures", json!([{"what": "server_did_not_stop", "why": "so"}])),
            ("/ready", Value::Null),
        ],
    );
    assert_eq!(effect(&check(&read(made)), Check::ServerRuns), Some(Effect::Note));
}

/// A check allows for the time that others had the CPUs, and for no more.
fn the_time_that_others_took_is_in_the_tolerance_of_each_check() {
    use {Check::*, Effect::*};
    for (of, taken_s, expected) in [
        // 600 ms are 100 ms more than a request may wait in a window of 2 s.
        (Stalled, 0.09, Some(Void)),
        (Stalled, 0.11, None),
        // 70 of 100 requests were in flight, and 89 is the least.
        (LittlesLaw, 0.3, Some(Void)),
        (LittlesLaw, 0.5, None),
        (Schedule, 0.0005, Some(Excluded)),
        (Schedule, 0.0011, None),
        (Admission, 1.4, Some(Void)),
        (Admission, 1.6, Some(Excluded)),
        (Answers, 1.4, Some(Void)),
        (Answers, 1.6, Some(Excluded)),
        (Bytes, 1.9, Some(Void)),
    ] {
        let (_, _, changes) = flaws().into_iter().rfind(|(check, ..)| *check == of).unwrap();
        let mut made = record(0, 0, "io_uring", 1.6);
        put(&mut made, &changes);
        put(
            &mut made,
            &[("/others/cpu_s", json!(taken_s)), ("/cpu/sample_delay_us", json!([0.0, 0.0]))],
        );
        assert_eq!(effect(&check(&read(made)), of), expected, "{of:?}, {taken_s} s");
    }
}

/// One late run of nine voided a cell, and with it the other sixteen runs.
fn a_late_load_generator_costs_its_pair_unless_most_runs_are_late() {
    let mut records = pairs(9, 1.25);
    for record in &mut records {
        put(
            record,
            &[
                ("/rate_per_s", json!(100_000)),
                ("/loads/0/settings/mode", json!("open")),
                ("/loads/0/requests/due", json!(200_000)),
                ("/loads/0/schedule_lag_us", json!({"p50": 1.0, "p99": 20.0, "max": 300.0})),
            ],
        );
    }
    for (late, is_void) in [(1, false), (4, false), (5, true)] {
        let mut records = records.clone();
        for pair in 0..late {
            records[2 * pair + 1]["loads"][0]["schedule_lag_us"]["p99"] = json!(2000.0);
        }
        let cell = judge(records);
        let comparison = &cell.comparisons[0];
        assert_eq!(comparison.void.is_some(), is_void, "{late}: {comparison:?}");
        let [left_out] = &comparison.left_out[..] else { panic!("{:?}", comparison.left_out) };
        assert_eq!(
            (&*left_out.side, left_out.pairs, comparison.counted()),
            ("io_uring", late, 9 - late)
        );
    }
}
