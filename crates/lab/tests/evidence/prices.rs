//! What prices explain of differences, from records whose costs are known.

use serde_json::json;
use twinring_lab::result::Bundle;
use twinring_lab::{Experiment, OtherPrices, PriceRecord, Style, explain, markdown};

use crate::common::records::{bundle, record};

const SYSCALL_NS: f64 = 900.0;
const NOTIFICATION_NS: f64 = 3000.0;

/// Eight cells on two networks in which two sides differ in system calls and in notifications, each by itself.
fn experiment() -> Experiment {
    Experiment::from_toml(
        "schema = \"twinring.lab.experiment/3\"\nname = \"known\"\npairs = 8\nnet = \"all\"\n\
         warmup_s = 0.1\nwindow_s = 2.0\n[tcp]\nconnections = [100]\nmessage_bytes = [1, 2, 3, 4]\n\
         load = [\"client\", \"{addr}\"]\n\
         [[subjects]]\nname = \"epoll\"\ncommand = [\"server\", \"{addr}\"]\n\
         [[subjects]]\nname = \"io_uring\"\ncommand = [\"server\", \"{addr}\"]\n",
        "known",
    )
    .unwrap()
}

/// `together` has the notifications follow the system calls in all cells.
fn known(together: bool, prices: Option<&str>) -> Bundle {
    let mut records = Vec::new();
    for (net, shift) in [("lo", 0), ("rps", 3)] {
        for size in 1..=4_u64 {
            for block in 0..8 {
                for subject in ["epoll", "io_uring"] {
                    let is_epoll = subject == "epoll";
                    let syscalls = if is_epoll { 2.0 } else { 0.25 * size as f64 };
                    let notifications = match (is_epoll, together) {
                        (_, true) => 0.5 * syscalls,
                        (true, false) => 1.0,
                        (false, false) => 0.25 * ((size * 3 + shift) % 4) as f64,
                    };
                    let jitter = 1.0 + 0.001 * ((block * 7 + size) % 5) as f64;
                    let ns = 1000.0 + SYSCALL_NS * syscalls + NOTIFICATION_NS * notifications;
                    let mut run = record(
                        records.len(),
                        block as usize,
                        subject,
                        ns * jitter * 200_000.0 / 1e9,
                    );
                    // As much in user mode for everybody, and less than anybody's CPU was busy.
                    for (part, seconds) in [("cpu_s", 0.2), ("user_s", 0.05), ("system_s", 0.15)] {
                        run["cpu"]["server"][part] = json!(seconds);
                    }
                    run["cell"]["net"] = json!(net);
                    run["cell"]["message_bytes"] = json!(size);
                    run["server_final"]["runtime_counters"]["syscalls"] =
                        json!((syscalls * 200_000.0) as u64);
                    let half = (notifications * 100_000.0) as u64;
                    for side in ["server_cpu", "client_cpu"] {
                        run["cpu"][side]["counts"] =
                            json!({"function_call_interrupts": half, "reschedule_interrupts": 0});
                    }
                    records.push(run);
                }
            }
        }
    }
    let mut bundle = bundle(experiment(), records);
    bundle.prices = prices.map(|text| serde_json::from_str::<PriceRecord>(text).unwrap());
    bundle
}

const LIST: &str = r#"{"list": {"syscall_ns": {"median": 900, "low": 880, "high": 910},
    "notification_busy_ns": {"median": 6000, "low": 5900, "high": 6200}}}"#;

fn shown(bundle: &Bundle, price: Option<&str>) -> String {
    let price = price.map(|text| text.parse::<OtherPrices>().unwrap());
    explain(bundle, price.as_ref(), Style { colour: false }).unwrap()
}

fn row<'a>(text: &'a str, begins: &str) -> Vec<&'a str> {
    let line = text.lines().find(|line| line.starts_with(begins));
    let line = line.unwrap_or_else(|| panic!("{begins}: {text}"));
    line[begins.len()..].split("  ").map(str::trim).filter(|it| !it.is_empty()).collect()
}

#[test]
fn known_prices_are_found_and_predict_the_other_cells() {
    let bundle = known(false, Some(LIST));
    let text = shown(&bundle, None);
    let near = |text: &str, ns: f64| {
        let found: f64 = text.replace(',', "").parse().unwrap();
        assert!((found - ns).abs() < 0.02 * ns, "{text} for {ns}");
    };
    let [list, fitted] = row(&text, "system calls")[..] else { panic!("{text}") };
    near(list, SYSCALL_NS);
    near(fitted, SYSCALL_NS);
    // The list has what both sides pay, and the server pays half of it.
    let [list, fitted] = row(&text, "notifications")[..] else { panic!("{text}") };
    near(list, NOTIFICATION_NS);
    near(fitted, NOTIFICATION_NS);
    assert!(text.contains("predicted") && text.contains("fitted"), "{text}");
    let plain = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(plain.contains("fitted to 4 differences in half of the cells"), "{plain}");
    assert!(plain.contains("predict the other 4 wrong by"), "{plain}");
    assert!(plain.contains("not fitted:") && plain.contains("copies"), "{plain}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    assert!(markdown(&bundle).contains("## What explains the differences"));
}

#[test]
fn counts_that_go_together_are_not_told_apart() {
    let bundle = known(true, Some(LIST));
    let plain = shown(&bundle, None).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(plain.contains("cannot tell system calls and notifications apart"), "{plain}");
}

#[test]
fn other_prices_make_other_ratios_and_say_that_they_are_predictions() {
    let bundle = known(false, Some(LIST));
    let text = shown(&bundle, Some("syscall=900ns,interrupt=0ns"));
    // 1000 + 900 x 2 against 1000 + 900 x 0.25, without notifications.
    let found = row(&text, "io_uring : epoll, 100 x 1 B on lo");
    let ratio: f64 = found[1].parse().unwrap();
    assert!((ratio - 2800.0 / 1225.0).abs() < 0.05, "{found:?}");
    assert!(found[2].starts_with("± 0.0") && text.contains("PREDICTION"), "{text}");
    let copies: OtherPrices = "copy=1ns".parse().unwrap();
    let error = explain(&bundle, Some(&copies), Style { colour: false }).unwrap_err();
    assert!(error.to_string().contains("--price copy"), "{error}");
}

#[test]
fn without_prices_a_fit_finds_them_and_without_either_nothing_is_explained() {
    let bundle = known(false, Some(r#"{"unavailable": "it is too old"}"#));
    let text = shown(&bundle, None);
    assert!(text.contains("No price was measured: it is too old."), "{text}");
    assert_eq!(row(&text, "system calls")[0], "–");
    let mut few = known(false, None);
    few.summary.as_mut().unwrap().cells.truncate(2);
    assert!(explain(&few, None, Style { colour: false }).is_err());
    assert!(!markdown(&few).contains("## What explains"));
    // Two cells with a price list are explained, and nothing is judged.
    few.prices = known(false, Some(LIST)).prices;
    let plain = shown(&few, None).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(plain.contains("too few to fit prices") && plain.contains("list"), "{plain}");
}
