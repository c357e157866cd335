//! Subjects compared with themselves: what is recognised, counted and said.

use crate::common::records::{bundle, record};
use serde_json::{Value, json};
use twinring_lab::summary::{AaCounts, Verdict};
use twinring_lab::warnings::WarningKind;
use twinring_lab::{Experiment, NetKind, Style, Subject, markdown, table};

/// The built-in experiment, with one of its cells.
fn experiment() -> Experiment {
    let mut experiment = Experiment::find("aa").unwrap();
    let tcp = experiment.tcp.as_mut().unwrap();
    (tcp.connections, tcp.message_bytes) = (vec![100], vec![128]);
    experiment
}

/// A deviation that looks like chance and is the same in every test.
fn scatter(number: usize) -> f64 {
    ((number * 7919 + 13) % 101) as f64 / 101.0 - 0.5
}

/// Blocks in which the first of each pair of twins needs so many times the CPU of the second.
fn runs(blocks: usize, epoll: f64, io_uring: f64) -> Vec<Value> {
    let block = |block: usize| {
        [
            ("epoll", 1.6 * epoll),
            ("epoll-again", 1.6),
            ("io_uring", io_uring),
            ("io_uring-again", 1.0),
        ]
        .into_iter()
        .enumerate()
        .map(move |(place, (name, busy_s))| {
            let index = 4 * block + place;
            record(index, block, name, busy_s * (1.0 + 0.02 * scatter(index)))
        })
    };
    (0..blocks).flat_map(block).collect()
}

#[test]
fn the_built_in_experiment_compares_each_engine_with_itself_and_nothing_else() {
    let experiment = Experiment::find("aa").unwrap();
    let cells: Vec<String> =
        experiment.cells(&[NetKind::Rps]).iter().map(ToString::to_string).collect();
    for wanted in ["1 x 128 B on rps", "100 x 128 B on rps", "100 x 16 KB on rps"] {
        assert!(cells.iter().any(|cell| cell == wanted), "{cells:?}");
    }
    assert_eq!(experiment.pairs, 24);
    let bundle = bundle(self::experiment(), runs(24, 1.0, 1.0));
    let summary = bundle.summary.as_ref().unwrap();
    let compared: Vec<_> = summary.cells[0]
        .comparisons
        .iter()
        .map(|it| (it.subject.as_str(), it.baseline.as_str()))
        .collect();
    assert_eq!(compared, [("epoll-again", "epoll"), ("io_uring-again", "io_uring")]);
}

#[test]
fn equal_subjects_pass() {
    let bundle = bundle(experiment(), runs(24, 1.0, 1.0));
    let summary = bundle.summary.as_ref().unwrap();
    for comparison in &summary.cells[0].comparisons {
        assert!(matches!(comparison.verdict, Verdict::AaPassed { .. }), "{:?}", comparison.verdict);
        // It checks the method; it is not what the method is for.
        assert_eq!(comparison.q_value, None);
        let aa = comparison.aa.as_ref().unwrap();
        assert_eq!((aa.counts.groups, aa.counts.false_verdicts, aa.counts.chance), (3, 0, 1.0));
        let pairs: Vec<usize> = aa.resolution.iter().map(|it| it.pairs).collect();
        let percent: Vec<f64> = aa.resolution.iter().map(|it| it.percent).collect();
        assert_eq!(pairs, [8, 16, 32]);
        assert!(percent[0] > percent[1] && percent[1] > percent[2], "{percent:?}");
    }
    let counts = AaCounts { groups: 6, false_verdicts: 0, chance: 1.0 };
    assert_eq!(summary.aa, Some(counts));
    assert!(bundle.warnings.is_empty(), "{:?}", bundle.warnings);
    for report in [markdown(&bundle), table(&bundle, Style::for_stdout())] {
        // A terminal has it in several lines.
        let report = report.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(report.contains("A/A passed"), "{report}");
        let told = "of 6 groups of 8 pairs of subjects compared with themselves none shows a";
        assert!(report.contains(told), "{report}");
        assert!(report.contains("32 pairs detect"), "{report}");
    }
}

#[test]
fn a_difference_is_called_a_false_positive() {
    let bundle = bundle(experiment(), runs(24, 1.2, 1.0));
    let summary = bundle.summary.as_ref().unwrap();
    let verdicts: Vec<_> = summary.cells[0].comparisons.iter().map(|it| &it.verdict).collect();
    let winner = "epoll-again".to_owned();
    assert_eq!(verdicts[0], &Verdict::AaFailed { winner });
    assert!(matches!(verdicts[1], Verdict::AaPassed { .. }), "{verdicts:?}");
    let AaCounts { groups, false_verdicts, chance } = summary.aa.unwrap();
    assert_eq!((groups, false_verdicts), (6, 3));
    // By hand: 1 - the sum of C(6, k) 0.05^k 0.95^(6-k) for k up to 2.
    assert!((chance - 0.002_229_843_75).abs() < 1e-9, "{chance}");
    let kinds: Vec<_> = bundle.warnings.iter().map(|warning| warning.kind).collect();
    assert_eq!(kinds, [WarningKind::AaFalseVerdict, WarningKind::AaFalseVerdict]);
    let report = markdown(&bundle);
    assert!(report.contains("A/A failed, a false positive: epoll-again ahead"), "{report}");
    assert!(report.contains("3 show a difference, which is a false positive"), "{report}");
}

#[test]
fn other_subjects_than_twins_are_compared_with_the_baseline_as_ever() {
    let mut experiment = experiment();
    let third = Subject { features: Some("batch=1".to_owned()), ..experiment.subjects[0].clone() };
    experiment.subjects.push(Subject { name: "third".to_owned(), ..third });
    let mut all = runs(8, 1.0, 1.0);
    for block in 0..8 {
        all.push(record(100 + block, block, "third", 1.4 * (1.0 + 0.02 * scatter(block))));
    }
    for (index, run) in all.iter_mut().enumerate() {
        run["index"] = json!(index);
    }
    let bundle = bundle(experiment, all);
    let compared: Vec<_> = bundle.summary.as_ref().unwrap().cells[0]
        .comparisons
        .iter()
        .map(|it| (it.subject.as_str(), it.baseline.as_str(), it.aa.is_some()))
        .collect();
    let expected = [
        ("io_uring", "epoll", false),
        ("third", "epoll", false),
        ("epoll-again", "epoll", true),
        ("io_uring-again", "io_uring", true),
    ];
    assert_eq!(compared, expected);
}
