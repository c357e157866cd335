//! Each warning is given where there is reason for it, and nowhere else.

use crate::common::records::{bundle, experiment, pairs};
use serde_json::{Value, json};
use twinring_lab::result::Bundle;
use twinring_lab::warnings::{Warning, WarningKind, warnings};
use twinring_lab::{NetKind, NetRecord, Style, markdown, table};

/// Ten pairs with a difference that is easily seen.
fn clean() -> Bundle {
    bundle(experiment(), pairs(10, 1.25))
}

/// A clean bundle of which the runs were changed.
fn with_runs(change: impl Fn(usize, &mut Value)) -> Bundle {
    let mut runs = pairs(10, 1.25);
    runs.iter_mut().enumerate().for_each(|(index, run)| change(index, run));
    bundle(experiment(), runs)
}

/// A clean bundle of another machine.
fn on(change: impl FnOnce(&mut Bundle)) -> Bundle {
    let mut bundle = clean();
    change(&mut bundle);
    bundle.warnings = warnings(&bundle);
    bundle
}

/// The only warning.
fn only(bundle: &Bundle, kind: WarningKind) -> &Warning {
    let [warning] = &bundle.warnings[..] else { panic!("{kind:?}: {:?}", bundle.warnings) };
    assert_eq!(warning.kind, kind, "{warning:?}");
    assert_eq!(warning.advice, kind.advice());
    for report in [markdown(bundle), table(bundle, Style::for_stdout())] {
        assert!(report.contains("Warnings") && report.contains(kind.title()), "{report}");
    }
    warning
}

fn scale(run: &mut Value, factor: f64) {
    let busy_s = run["cpu"]["server_cpu"]["busy_s"].as_f64().unwrap();
    run["cpu"]["server_cpu"]["busy_s"] = json!(busy_s * factor);
}

#[test]
fn where_there_is_no_reason_there_is_no_warning() {
    let bundle = clean();
    assert_eq!(bundle.warnings, []);
    assert!(!markdown(&bundle).contains("Warnings"));
}

#[test]
fn a_load_generator_that_limits_is_named_with_its_share() {
    let bundle = with_runs(|index, run| {
        if index % 2 == 1 {
            run["cpu"]["client_cpu"]["busy_s"] = json!(1.98);
        }
    });
    let warning = only(&bundle, WarningKind::ClientBound);
    assert_eq!(warning.subject.as_deref(), Some("io_uring"));
    assert!(warning.what.contains("busy for 99 % of the window"), "{warning:?}");
}

#[test]
fn what_audits_found_is_said_once_for_a_subject() {
    let bundle = with_runs(|_, run| run["load"]["settings"]["verify"] = json!(false));
    let subjects: Vec<_> =
        bundle.warnings.iter().map(|it| (it.kind, it.subject.as_deref().unwrap())).collect();
    let unverified = WarningKind::UnverifiedPayload;
    assert_eq!(subjects, [(unverified, "epoll"), (unverified, "io_uring")]);

    let bundle = with_runs(|index, run| {
        if index == 1 {
            run["load"]["connections"]["served_at_once_max"] = json!(64);
        }
    });
    let warning = only(&bundle, WarningKind::UnequalAdmission);
    assert!(warning.what.contains("64 served"), "{warning:?}");
}

#[test]
fn too_few_pairs_are_named_with_their_number() {
    let bundle = bundle(experiment(), pairs(7, 1.25));
    let warning = only(&bundle, WarningKind::TooFewPairs);
    assert!(warning.what.contains("7 pairs, and 8 are needed"), "{warning:?}");
}

#[test]
fn an_interval_that_sees_nothing_is_noisy_and_so_is_a_disturbed_cell() {
    let mut runs = pairs(10, 1.0);
    for run in &mut runs {
        let busy_s = run["cpu"]["server_cpu"]["busy_s"].as_f64().unwrap();
        run["cpu"]["server_cpu"]["busy_s"] = json!(1.6 + 8.0 * (busy_s - 1.6));
    }
    let wide = bundle(experiment(), runs);
    let warning = only(&wide, WarningKind::Noisy);
    assert!(warning.what.contains("5 % takes about"), "{warning:?}");

    let disturbed = |blocks: usize| {
        let mut runs = pairs(12, 1.25);
        for run in runs.iter_mut().filter(|run| run["block"].as_u64() < Some(blocks as u64)) {
            run["others"]["cpu_s"] = json!(1.0);
        }
        bundle(experiment(), runs)
    };
    assert_eq!(disturbed(3).warnings, []);
    let disturbed = disturbed(4);
    let warning = only(&disturbed, WarningKind::Noisy);
    assert!(warning.what.contains("4 of 12 blocks"), "{warning:?}");
}

#[test]
fn what_moves_is_named_with_its_size_and_a_steady_ratio_is_told_from_one_that_moves() {
    let both = with_runs(|index, run| scale(run, 1.0 + 0.02 * (index / 2) as f64));
    let kinds: Vec<_> = both.warnings.iter().map(|it| (it.kind, it.subject.as_deref())).collect();
    let drifting = WarningKind::Drifting;
    assert_eq!(kinds, [(drifting, Some("epoll")), (drifting, Some("io_uring"))]);
    assert!(both.warnings[0].what.contains("its ratio to others did not"), "{:?}", both.warnings);

    let one = with_runs(|index, run| {
        if index % 2 == 1 {
            scale(run, 1.0 - 0.015 * (index / 2) as f64);
        }
    });
    let warning = only(&one, WarningKind::Drifting);
    assert!(warning.what.contains("the ratio of io_uring and epoll moved by +1"), "{warning:?}");
    // It is there, and too small to matter.
    let little = with_runs(|index, run| {
        let steady = 1.6 / if index % 2 == 1 { 1.25 } else { 1.0 };
        run["cpu"]["server_cpu"]["busy_s"] = json!(steady * (1.0 + 1e-4 * index as f64));
    });
    let drift = little.summary.as_ref().unwrap().cells[0].subjects[0].drift.unwrap();
    assert!(drift.p_value < 1e-5 && drift.percent < 1.0, "{drift:?}");
    assert_eq!(little.warnings, []);
}

#[test]
fn outliers_are_counted_and_count() {
    let bundle = with_runs(|index, run| {
        if index == 8 {
            scale(run, 1.3);
        }
    });
    let warning = only(&bundle, WarningKind::Outliers);
    assert!(warning.what.contains("of 10 runs of epoll, 1 needed far more"), "{warning:?}");
    let subject = &bundle.summary.as_ref().unwrap().cells[0].subjects[0];
    assert_eq!((subject.counted, subject.outliers.severe_high), (10, 1));
}

#[test]
fn the_machine_is_looked_at() {
    let loopback = on(|bundle| {
        bundle.networks.push(NetRecord {
            kind: NetKind::Lo,
            server_ip: "127.0.0.1".parse().unwrap(),
            server_rps: String::new(),
            client_rps: String::new(),
            napi_cpus: Vec::new(),
            mtu_bytes: None,
            settings: Vec::new(),
        });
    });
    only(&loopback, WarningKind::LoopbackAccounting);
    let siblings = on(|bundle| bundle.cpus.siblings = true);
    assert!(only(&siblings, WarningKind::SharedCore).what.contains("threads of one core"));
    let shared = on(|bundle| bundle.cpus.shared = true);
    assert!(only(&shared, WarningKind::SharedCore).what.contains("share CPU 0"));
    let machine = on(|bundle| bundle.machine.virtualisation = Some("KVM".to_owned()));
    assert!(only(&machine, WarningKind::VirtualMachine).what.contains("KVM"));
    for (boost, governor) in [(Some("1"), None), (Some("on"), None), (None, Some("powersave"))] {
        let turbo = on(|bundle| {
            bundle.machine.boost = boost.map(str::to_owned);
            bundle.machine.governor = governor.map(str::to_owned);
        });
        only(&turbo, WarningKind::Turbo);
    }
    let fixed = on(|bundle| {
        bundle.machine.boost = Some("0".to_owned());
        bundle.machine.governor = Some("performance".to_owned());
        bundle.machine.mitigations.insert("l1tf".to_owned(), "Not affected".to_owned());
        bundle.machine.mitigations.insert("spectre_v2".to_owned(), "Vulnerable".to_owned());
    });
    assert_eq!(fixed.warnings, []);
    let mitigated = on(|bundle| {
        let state = "Mitigation: Retpolines".to_owned();
        bundle.machine.mitigations.insert("spectre_v2".to_owned(), state);
    });
    assert!(only(&mitigated, WarningKind::Mitigations).what.contains("spectre_v2"));
}

#[test]
fn every_kind_has_a_title_of_its_own_and_advice() {
    let mut titles: Vec<_> = WarningKind::ALL.iter().map(|kind| kind.title()).collect();
    titles.sort_unstable();
    titles.dedup();
    assert_eq!(titles.len(), WarningKind::ALL.len());
    assert!(WarningKind::ALL.iter().all(|kind| kind.advice().len() > 20));
    assert!(WarningKind::ALL.is_sorted());
}

#[test]
fn a_ratio_that_depends_on_who_asks_is_told() {
    let with_two = |second_ratio: f64| {
        let mut experiment = experiment();
        let tcp = experiment.tcp.as_mut().unwrap();
        tcp.second_load = ["{plain-load}", "{addr}"].map(str::to_owned).to_vec();
        let mut runs = pairs(10, 1.25);
        runs.extend(pairs(10, second_ratio).into_iter().map(|mut run| {
            run["cell"]["generator"] = json!(1);
            run["index"] = json!(run["index"].as_u64().unwrap() + 20);
            run
        }));
        bundle(experiment, runs)
    };
    assert_eq!(with_two(1.25).warnings, []);
    let bundle = with_two(1.05);
    let warning = only(&bundle, WarningKind::DependsOnGenerator);
    assert!(warning.what.contains("1.25") && warning.what.contains("1.05"), "{warning:?}");
    assert!(warning.cell.unwrap().to_string().contains("second generator"), "{warning:?}");
}
