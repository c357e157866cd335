//! What is left of verdicts when many cells are judged at once, and what it would take.

use crate::common::records::{bundle, experiment, pairs, read, record};
use serde_json::{Value, json};
use twinring_lab::summary::{
    Claim, Comparison, Metric, RequiredPairs, Summary, Verdict, summarise,
};
use twinring_lab::{Correction, Experiment, Style, Until, markdown, table};

/// An experiment of as many cells as there are ratios, and its runs.
fn cells(count: usize, ratios: &[f64]) -> (Experiment, Vec<Value>) {
    let mut experiment = experiment();
    let sizes: Vec<u32> = (0..ratios.len() as u32).map(|cell| 128 + cell).collect();
    let runs = ratios.iter().zip(&sizes).flat_map(|(ratio, size)| {
        let in_cell = move |mut record: Value| {
            record["cell"]["message_bytes"] = json!(size);
            record
        };
        pairs(count, *ratio).into_iter().map(in_cell)
    });
    let runs = runs.collect();
    experiment.tcp.as_mut().unwrap().message_bytes = sizes;
    // Hardly anything is equivalent.
    experiment.equivalence_percent = 0.1;
    (experiment, runs)
}

fn judge_as(correction: Correction, count: usize, ratios: &[f64]) -> Vec<Comparison> {
    let (mut experiment, runs) = cells(count, ratios);
    experiment.correction = correction;
    let runs: Vec<_> = runs.into_iter().map(read).collect();
    let Summary { cells, .. } = summarise(&experiment, 1, &runs);
    cells.into_iter().flat_map(|cell| cell.comparisons).collect()
}

fn judge(count: usize, ratios: &[f64]) -> Vec<Comparison> {
    judge_as(Correction::BenjaminiHochberg, count, ratios)
}

fn ahead() -> Verdict {
    Verdict::Ahead { winner: "io_uring".to_owned(), by_less_than_percent: None }
}

#[test]
fn among_few_cells_a_difference_stands() {
    let judged = judge(8, &[1.25, 1.0, 1.0, 1.0]);
    assert_eq!(judged[0].verdict, ahead());
    // Two of 256 orders, four comparisons.
    assert_eq!(judged[0].q_value, Some(8.0 / 256.0));
    for comparison in &judged[1..] {
        let Verdict::NoDifference { would_have_seen_percent } = comparison.verdict else {
            panic!("{:?}", comparison.verdict)
        };
        // It would have had to be the second of four at 5 %: harder than alone.
        assert_eq!(comparison.p_value_needed, Some(level(2, 4)));
        assert!(
            would_have_seen_percent
                > comparison.ratio(Metric::ServerCpuNs).unwrap().detectable_percent
        );
    }
}

fn level(claimed: usize, of: usize) -> f64 {
    (1.0 - 0.95) * claimed as f64 / of as f64
}

#[test]
fn among_many_cells_a_lone_difference_needs_more_pairs() {
    let mut ratios = vec![1.0; 8];
    ratios[3] = 1.25;
    let judged = judge(8, &ratios);
    let winner = "io_uring".to_owned();
    let taken_back =
        Verdict::NotAfterCorrection { claim: Claim::Ahead, winner, comparisons: ratios.len() };
    assert_eq!(judged[3].verdict, taken_back);
    assert_eq!(
        taken_back.to_string(),
        "io_uring seems ahead, but not after correction for 8 comparisons"
    );
    let hopeless = Verdict::TooFewForSoMany { pairs: 8, comparisons: 8, needed: Some(9) };
    assert_eq!(judged[0].verdict, hopeless);
    assert_eq!(judge(9, &ratios)[3].verdict, ahead());
}

#[test]
fn many_differences_help_each_other() {
    let judged = judge(8, &[1.25; 24]);
    assert!(judged.iter().all(|comparison| comparison.verdict == ahead()));
}

#[test]
fn equivalence_is_judged_together_as_well() {
    let (mut experiment, runs) = cells(8, &[1.25, 1.0, 1.0]);
    experiment.equivalence_percent = 3.0;
    let runs: Vec<_> = runs.into_iter().map(read).collect();
    let summary = summarise(&experiment, 1, &runs);
    let judged: Vec<_> = summary.cells.iter().map(|cell| &cell.comparisons[0]).collect();
    assert_eq!(judged[0].verdict, ahead());
    for comparison in &judged[1..] {
        assert_eq!(comparison.verdict.to_string(), "equivalent within 3 %");
        // Each of two one-sided tests has one of 256 orders, and two of three claim.
        let q_value = comparison.equivalence.unwrap().q_value.unwrap();
        assert!((q_value - 3.0 / 2.0 / 256.0).abs() < 1e-12, "{q_value}");
    }
}

#[test]
fn without_correction_each_verdict_stands_for_itself() {
    let mut ratios = vec![1.0; 8];
    ratios[3] = 1.25;
    let judged = judge_as(Correction::None, 8, &ratios);
    assert_eq!((&judged[3].verdict, judged[3].q_value), (&ahead(), None));
    let interval = judged[0].ratio(Metric::ServerCpuNs).unwrap();
    let would_have_seen_percent = interval.detectable_percent;
    assert_eq!(judged[0].verdict, Verdict::NoDifference { would_have_seen_percent });
}

/// Pairs that are added until the interval is narrow are added until they scatter little.
#[test]
fn with_a_stop_rule_a_difference_has_to_be_clearer() {
    let (mut experiment, runs) = cells(8, &[1.25, 1.0]);
    let runs: Vec<_> = runs.into_iter().map(read).collect();
    let judge = |experiment: &Experiment| summarise(experiment, 1, &runs).cells.remove(0);
    let plain = judge(&experiment).comparisons.remove(0);
    experiment.until = Some(Until { interval_percent: 5.0, max_pairs: 20 });
    for correction in [Correction::BenjaminiHochberg, Correction::None] {
        experiment.correction = correction;
        let stopped = judge(&experiment).comparisons.remove(0);
        assert_eq!((&stopped.verdict, &plain.verdict), (&ahead(), &ahead()));
        // The interval has the level of the test.
        let [wide, narrow] =
            [&stopped, &plain].map(|it| it.ratio(Metric::ServerCpuNs).unwrap().ends.unwrap());
        assert!(wide.low < narrow.low && wide.high > narrow.high, "{wide:?} {narrow:?}");
        assert_eq!((plain.confidence, stopped.confidence), (0.95, 1.0 - (1.0 - 0.95) / 1.4));
        if let Some(q_value) = stopped.q_value {
            assert!((q_value / plain.q_value.unwrap() - 1.4).abs() < 1e-12);
        }
    }
    // 0.0469 alone is enough; after a stop rule it is not.
    let close = [1.01, 1.03, 0.995, 1.04, 1.02, 1.05, 0.99, 1.03];
    let runs: Vec<_> = close
        .into_iter()
        .enumerate()
        .flat_map(|(block, ratio)| {
            let run = |place: usize, subject, busy_s| {
                read(record(2 * block + place, block, subject, busy_s))
            };
            [run(0, "epoll", 1.6), run(1, "io_uring", 1.6 / ratio)]
        })
        .collect();
    let mut verdict = |until: Option<Until>| {
        experiment.until = until;
        summarise(&experiment, 1, &runs).cells.remove(0).comparisons.remove(0).verdict
    };
    assert_eq!(verdict(None), ahead());
    let until = Until { interval_percent: 5.0, max_pairs: 20 };
    assert!(matches!(verdict(Some(until)), Verdict::NoDifference { .. }));
}

#[test]
fn a_cell_without_a_verdict_costs_the_others_nothing() {
    let (experiment, mut runs) = cells(8, &[1.25, 1.0]);
    let alone =
        summarise(&experiment, 1, &runs[..16].iter().cloned().map(read).collect::<Vec<_>>());
    runs[17]["load"]["errors"]["mismatch"] = json!(1);
    let runs: Vec<_> = runs.into_iter().map(read).collect();
    let both = summarise(&experiment, 1, &runs);
    assert!(matches!(both.cells[1].comparisons[0].verdict, Verdict::Void { .. }));
    let q_value = |summary: &Summary| summary.cells[0].comparisons[0].q_value;
    assert_eq!((q_value(&alone), q_value(&both)), (Some(2.0 / 256.0), Some(2.0 / 256.0)));
}

#[test]
fn it_is_told_how_many_pairs_would_do() {
    let (experiment, mut runs) = cells(10, &[1.0]);
    for run in &mut runs {
        // Eight times the scatter.
        let busy_s = run["cpu"]["server_cpu"]["busy_s"].as_f64().unwrap();
        run["cpu"]["server_cpu"]["busy_s"] = json!(1.6 + 8.0 * (busy_s - 1.6));
    }
    let bundle = bundle(experiment, runs);
    let comparison = &bundle.summary.as_ref().unwrap().cells[0].comparisons[0];
    let Verdict::NoDifference { would_have_seen_percent } = comparison.verdict else {
        panic!("{:?}", comparison.verdict)
    };
    let asked: Vec<f64> = comparison.required_pairs.iter().map(|it| it.percent).collect();
    assert_eq!(asked, [1.0, 2.0, 5.0]);
    let pairs: Vec<usize> = comparison.required_pairs.iter().map(|it| it.pairs.unwrap()).collect();
    assert!(pairs[0] > pairs[1] && pairs[1] > pairs[2], "{pairs:?}");
    assert!(would_have_seen_percent > 5.0 && pairs[2] > 10, "{would_have_seen_percent} {pairs:?}");
    let RequiredPairs { percent, pairs } = comparison.required_pairs[2];
    let told = format!("{percent} % would take about {} pairs", pairs.unwrap());
    for report in [markdown(&bundle), table(&bundle, Style::for_stdout())] {
        // A terminal has it in several lines.
        let words = report.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(&told), "{told}: {report}");
    }
}
