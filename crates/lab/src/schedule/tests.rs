//! Experiments on a machine whose runs are known. It has a clock of its own, so that nothing waits.

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../../tests/common/records.rs"]
mod records;

use std::cell::{Cell as Shared, RefCell};

use serde_json::{Value, json};

use super::*;
use crate::placement::Placement;
use std::time::Instant;

/// A run: block and subject.
type Made = (Cell, usize, String);

/// Stands for a run in which a host was lost.
const HOST_LOST: &str = "host lost";

/// A machine that makes the run that it is told to make, at once.
struct Known<'a> {
    /// The record of the next run; `None` stops it before its end.
    run: &'a mut dyn FnMut(&Slot<'_>) -> Option<Value>,
    /// Stops behind as many runs.
    stopped_after: usize,
    runs: usize,
    clock: Shared<Instant>,
    slept: Shared<Duration>,
    /// How the CPUs lie, sample after sample; the last one stays.
    placements: RefCell<Vec<Option<Placement>>>,
    samples: Shared<usize>,
}

impl<'a> Known<'a> {
    fn new(run: &'a mut dyn FnMut(&Slot<'_>) -> Option<Value>) -> Known<'a> {
        Known {
            run,
            stopped_after: usize::MAX,
            runs: 0,
            clock: Shared::new(Instant::now()),
            slept: Shared::new(Duration::ZERO),
            placements: RefCell::new(vec![None]),
            samples: Shared::new(0),
        }
    }
}

impl Machine for Known<'_> {
    fn now(&self) -> Instant {
        self.clock.get()
    }

    fn sleep(&self, duration: Duration) {
        self.clock.set(self.clock.get() + duration);
        self.slept.set(self.slept.get() + duration);
    }

    fn placement(&self) -> Option<Placement> {
        self.samples.set(self.samples.get() + 1);
        let mut placements = self.placements.borrow_mut();
        if placements.len() > 1 { placements.remove(0) } else { placements[0] }
    }

    fn is_stopped(&self) -> bool {
        self.runs >= self.stopped_after
    }

    fn run(&mut self, slot: &Slot<'_>) -> Result<Attempt, LabError> {
        self.runs += 1;
        let Some(mut record) = (self.run)(slot) else { return Ok(Attempt::Stopped) };
        if record.is_null() {
            return Err(LabError::Machine { why: "it is on fire".to_owned() });
        }
        if record == HOST_LOST {
            return Ok(Attempt::Void);
        }
        record["cell"] = json!(slot.cell);
        Ok(Attempt::Made(Box::new(records::read(record))))
    }

    fn store(&mut self, _: &RunRecord) -> Result<(), LabError> {
        Ok(())
    }
}

/// Two subjects in one cell, or with `more` in their contests and cells.
fn experiment(pairs: usize) -> Experiment {
    Experiment { pairs, spare_pairs: 3, ..records::experiment() }
}

/// A flawless run.
fn flawless(slot: &Slot<'_>) -> Value {
    records::record(slot.index, slot.block, &slot.subject.name, 1.5)
}

/// A run beside other work.
fn disturbed(slot: &Slot<'_>) -> Value {
    let mut run = flawless(slot);
    run["others"]["cpu_s"] = json!(2.0);
    run
}

/// A run with wrong answers.
fn wrong(slot: &Slot<'_>) -> Value {
    let mut run = flawless(slot);
    run["load"]["errors"]["mismatch"] = json!(7);
    run
}

/// What an experiment measures on a network, and how it ends.
fn measure_on(
    networks: &[NetKind],
    experiment: &Experiment,
    machine: &mut Known<'_>,
) -> (Vec<Made>, Result<Ended, LabError>) {
    let mut runs = Vec::new();
    let ended = measure(experiment, networks, 5, machine, &mut runs);
    for (index, run) in runs.iter().enumerate() {
        assert_eq!(run.index, index);
    }
    (runs.into_iter().map(|run| (run.cell, run.block, run.subject)).collect(), ended)
}

fn measured(
    experiment: &Experiment,
    run: &mut dyn FnMut(&Slot<'_>) -> Option<Value>,
) -> Vec<Vec<String>> {
    let (runs, ended) = measure_on(&[NetKind::Rps], experiment, &mut Known::new(run));
    assert_eq!(ended.unwrap(), Ended::Done);
    blocks(&runs)
}

/// The subjects of each block, in the order in which they were run. The blocks of a cell are numbered
/// without gaps.
fn blocks(runs: &[Made]) -> Vec<Vec<String>> {
    let mut blocks: Vec<Vec<String>> = Vec::new();
    for (_, block, subject) in runs {
        assert!(*block == blocks.len() || *block + 1 == blocks.len(), "{runs:?}");
        if *block == blocks.len() {
            blocks.push(Vec::new());
        }
        blocks[*block].push(subject.clone());
    }
    blocks
}

fn reversed(block: &[String]) -> Vec<String> {
    block.iter().rev().cloned().collect()
}

/// With a third subject, which is compared with the first.
fn with_a_third(mut experiment: Experiment) -> Experiment {
    let mut third = experiment.subjects[1].clone();
    third.name = "third".to_owned();
    experiment.subjects.push(third);
    experiment
}

#[test]
fn all_pairs_are_run_in_mirrored_order() {
    let blocks = measured(&experiment(9), &mut |slot| Some(flawless(slot)));
    assert_eq!(blocks.len(), 9);
    for two in blocks.chunks(2) {
        assert_eq!(two[0].len(), 2);
        assert_ne!(two[0][0], two[0][1]);
        assert!(two.get(1).is_none_or(|second| *second == reversed(&two[0])), "{blocks:?}");
    }
}

#[test]
fn a_disturbed_block_is_run_again_in_reverse_order_as_often_as_there_are_spares() {
    // The second run of the third block.
    let once = measured(&experiment(8), &mut |slot| {
        Some(if slot.index == 5 { disturbed(slot) } else { flawless(slot) })
    });
    assert_eq!(once.len(), 9);
    assert_eq!(once[8], reversed(&once[2]));
    let always = measured(&experiment(8), &mut |slot| Some(disturbed(slot)));
    assert_eq!(always.len(), 8 + 3);
}

#[test]
fn a_void_subject_is_not_run_again_and_the_others_are() {
    let of_wrong = |blocks: &[Vec<String>], name: &str| {
        blocks.iter().flatten().filter(|subject| *subject == name).count()
    };
    let mut second_is_wrong = |slot: &Slot<'_>| {
        Some(if slot.subject.name == "io_uring" { wrong(slot) } else { flawless(slot) })
    };
    let three = measured(&with_a_third(experiment(8)), &mut second_is_wrong);
    let counts = ["epoll", "io_uring", "third"].map(|name| of_wrong(&three, name));
    assert_eq!(counts, [8, 1, 8]);
    // Of two, nobody is left to be compared with. The block is completed.
    let two = measured(&experiment(8), &mut second_is_wrong);
    assert_eq!(two.iter().map(Vec::len).collect::<Vec<_>>(), [2]);
    // It voids its own cell only.
    let mut in_one_cell = |slot: &Slot<'_>| {
        let is_wrong = slot.cell.net == NetKind::Lo && slot.subject.name == "io_uring";
        Some(if is_wrong { wrong(slot) } else { flawless(slot) })
    };
    let networks = [NetKind::Rps, NetKind::Lo];
    let (runs, _) = measure_on(&networks, &experiment(8), &mut Known::new(&mut in_one_cell));
    let [rps, lo]: [Vec<Made>; 2] =
        networks.map(|net| runs.iter().filter(|(cell, ..)| cell.net == net).cloned().collect());
    assert_eq!((blocks(&rps).len(), blocks(&lo).len()), (8, 1));
}

#[test]
fn a_cell_is_measured_until_its_interval_is_narrow_enough() {
    let blocks_with = |until: &str, scatter: f64, is_disturbed: bool| {
        let until = Some(toml::from_str(until).unwrap());
        let experiment = Experiment { until, ..experiment(8) };
        let mut run = |slot: &Slot<'_>| {
            let mut run = if is_disturbed { disturbed(slot) } else { flawless(slot) };
            let sign = if slot.index.is_multiple_of(3) { 1.0 } else { -1.0 };
            run["cpu"]["server_cpu"]["busy_s"] = json!(1.5 + sign * scatter);
            Some(run)
        };
        measured(&experiment, &mut run).len()
    };
    let cap = "interval_percent = 2.0\nmax_pairs = 13";
    assert_eq!(blocks_with(cap, 0.0, false), 8, "it is narrow from the start");
    assert_eq!(blocks_with(cap, 0.3, false), 14, "two at a time, up to the cap");
    assert_eq!(blocks_with("interval_percent = 1000.0\nmax_pairs = 13", 0.3, false), 8);
    // Blocks that do not count make no interval narrow. The repeated ones come on top of the cap: 8 + 3,
    // then two at a time up to 13 + 3.
    assert_eq!(blocks_with(cap, 0.0, true), 17);
}

#[test]
fn the_slowest_in_a_closed_loop_decides_the_rate_of_everybody() {
    let mut paced = experiment(8);
    paced.tcp.as_mut().unwrap().load_percent = vec![50, 0];
    let mut rates = Vec::new();
    let mut run = |slot: &Slot<'_>| {
        rates.push((slot.cell.point.load_percent(), slot.rate_per_s));
        let answered = if slot.subject.name == "epoll" { 123_456 } else { records::ANSWERED };
        let mut run = records::record_of(slot.index, slot.block, &slot.subject.name, 1.5, answered);
        run["rate_per_s"] = json!(slot.rate_per_s);
        Some(run)
    };
    let (runs, ended) = measure_on(&[NetKind::Rps], &paced, &mut Known::new(&mut run));
    assert_eq!((runs.len(), ended.unwrap()), (8 * 2 * 2, Ended::Done));
    // First each subject once, in a closed loop: 123,456 answers in 2 s are 61,728/s.
    assert_eq!(rates[..2], [(0, None), (0, None)]);
    let expected = |it: &(u32, Option<u32>)| *it == (50, Some(30_000)) || *it == (0, None);
    assert!(rates[2..].iter().all(expected), "{rates:?}");
    assert_eq!(rates[2..].iter().filter(|it| it.0 == 50).count(), 8 * 2);
    // Where nobody answers, there is no rate, and only the closed loop is measured.
    let mut silent = |slot: &Slot<'_>| {
        let mut run = flawless(slot);
        run["load"] = Value::Null;
        Some(run)
    };
    let (runs, ended) = measure_on(&[NetKind::Rps], &paced, &mut Known::new(&mut silent));
    assert_eq!(ended.unwrap(), Ended::Done);
    assert!(!runs.is_empty() && runs.iter().all(|(cell, ..)| cell.point.load_percent() == 0));
}

#[test]
fn a_request_to_stop_ends_it_behind_what_was_measured() {
    // Within a run, which has no record.
    let mut run = |slot: &Slot<'_>| (slot.index < 5).then(|| flawless(slot));
    let mut machine = Known::new(&mut run);
    let (runs, ended) = measure_on(&[NetKind::Rps], &experiment(8), &mut machine);
    assert_eq!((runs.len(), machine.runs, ended.unwrap()), (5, 6, Ended::Stopped));
    // Between two blocks.
    let mut run = |slot: &Slot<'_>| Some(flawless(slot));
    let mut machine = Known { stopped_after: 4, ..Known::new(&mut run) };
    let (runs, ended) = measure_on(&[NetKind::Rps], &experiment(8), &mut machine);
    assert_eq!((runs.len(), ended.unwrap()), (4, Ended::Stopped));
}

#[test]
fn after_an_error_the_runs_before_it_are_there() {
    let mut run =
        |slot: &Slot<'_>| Some(if slot.index == 3 { Value::Null } else { flawless(slot) });
    let (runs, ended) = measure_on(&[NetKind::Rps], &experiment(8), &mut Known::new(&mut run));
    assert_eq!((runs.len(), ended.unwrap_err().exit_code()), (3, 1));
}

#[test]
fn a_block_in_which_a_host_was_lost_is_run_again_at_once_and_is_no_spare() {
    // In the first run of the second block, and in the second run of what repeats it.
    let mut lost = vec![2, 3];
    let mut run = |slot: &Slot<'_>| match lost.first() == Some(&slot.index) {
        true => {
            lost.remove(0);
            Some(json!(HOST_LOST))
        }
        false => Some(flawless(slot)),
    };
    let (runs, ended) = measure_on(&[NetKind::Rps], &experiment(8), &mut Known::new(&mut run));
    assert_eq!(ended.unwrap(), Ended::Done);
    let blocks = blocks(&runs);
    // The run without a partner has a number of its own.
    assert_eq!(blocks.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1, 2, 2, 2, 2, 2, 2, 2]);
    assert_eq!((&blocks[1][0], &blocks[2]), (&blocks[2][0], &reversed(&blocks[0])));
}

/// Wherever it stops, the whole of it is what it would have been: with repeated and excluded blocks, hosts that were
/// lost, and rates that were found out.
#[test]
fn an_experiment_that_is_resumed_goes_on_where_it_stopped() {
    let until = Some(toml::from_str("interval_percent = 0.001\nmax_pairs = 10").unwrap());
    let mut tried = Experiment { until, ..with_a_third(experiment(6)) };
    tried.tcp.as_mut().unwrap().load_percent = vec![50, 0];
    let mut made = |slot: &Slot<'_>| {
        let scatter = if slot.index.is_multiple_of(3) { 0.1 } else { 0.0 };
        let mut run = match slot.index {
            7 => disturbed(slot),
            9.. if slot.subject.name == "third" => wrong(slot),
            _ => flawless(slot),
        };
        run["cpu"]["server_cpu"]["busy_s"] = json!(1.5 + scatter);
        run["rate_per_s"] = json!(slot.rate_per_s);
        Some(run)
    };
    let mut whole = Vec::new();
    let nets = [NetKind::Rps];
    let mut machine = Known::new(&mut made);
    measure(&tried, &nets, 5, &mut machine, &mut whole).unwrap();
    let per_rate = tried.subjects.len();
    assert_eq!(machine.runs, whole.len() + per_rate, "each subject once for the rate");
    // In the middle of blocks and between them.
    for stop in (0..whole.len()).step_by(5) {
        let mut made = made;
        let mut machine = Known::new(&mut made);
        let mut runs = whole[..stop].to_vec();
        let ended = measure(&tried, &nets, 5, &mut machine, &mut runs);
        assert_eq!(ended.unwrap(), Ended::Done);
        assert_eq!(runs[..stop], whole[..stop]);
        let of = |runs: &[RunRecord]| -> Vec<(Cell, Vec<String>)> {
            let mut blocks: Vec<(Cell, usize, Vec<String>)> = Vec::new();
            for run in runs {
                match blocks.iter_mut().find(|it| (it.0, it.1) == (run.cell, run.block)) {
                    Some((.., subjects)) => subjects.push(run.subject.clone()),
                    None => blocks.push((run.cell, run.block, vec![run.subject.clone()])),
                }
            }
            blocks.into_iter().map(|(cell, _, subjects)| (cell, subjects)).collect()
        };
        let (mut expected, resumed) = (of(&whole), of(&runs));
        let known = whole[..stop].iter().filter(|run| run.rate_per_s.is_some()).count();
        let live = runs.len() - stop;
        assert_eq!(machine.runs, live + if known > 0 { 0 } else { per_rate }, "{stop}");
        if resumed != expected {
            // A block was cut. What was made of it stands in front of its repetition, which goes without a subject that
            // turned out to be wrong.
            let cut = (0..).find(|at| resumed[*at] != expected[*at]).unwrap();
            assert!(resumed[cut].1.len() < expected[cut].1.len(), "{stop}: {resumed:?}");
            let repeated = &resumed[cut + 1];
            expected[cut].1.retain(|name| name != "third" || repeated.1.contains(name));
            assert_eq!(*repeated, expected[cut], "{stop}");
        }
    }
}

#[test]
fn runs_of_another_plan_are_refused() {
    let mut run = |slot: &Slot<'_>| Some(flawless(slot));
    let mut runs = Vec::new();
    let nets = [NetKind::Rps];
    measure(&experiment(8), &nets, 5, &mut Known::new(&mut run), &mut runs).unwrap();
    runs.swap(4, 5);
    let before = runs.clone();
    let mut machine = Known::new(&mut run);
    let error = measure(&experiment(8), &nets, 5, &mut machine, &mut runs).unwrap_err();
    assert!(error.to_string().contains("run 5 of the bundle"), "{error}");
    assert_eq!((machine.runs, runs), (0, before), "all stay");
}

#[test]
fn a_block_waits_a_minute_at_most_for_the_placement_that_is_wanted() {
    let waits = |placement: Wanted, samples: &[Option<Placement>], stopped_after: usize| {
        let experiment = Experiment { placement, ..experiment(1) };
        let mut run = |slot: &Slot<'_>| Some(flawless(slot));
        let placements = RefCell::new(samples.to_vec());
        let mut machine = Known { placements, stopped_after, ..Known::new(&mut run) };
        let (runs, _) = measure_on(&[NetKind::Rps], &experiment, &mut machine);
        assert_eq!(runs.len(), 2);
        (machine.samples.get(), machine.slept.get())
    };
    let never = usize::MAX;
    let [close, apart] = [Placement::Close, Placement::Apart].map(Some);
    assert_eq!(waits(Wanted::Any, &[apart], never), (0, Duration::ZERO));
    assert_eq!(waits(Wanted::Close, &[close], never), (1, Duration::ZERO));
    assert_eq!(waits(Wanted::Close, &[None], never), (1, Duration::ZERO));
    assert_eq!(waits(Wanted::Close, &[apart, apart, close], never), (3, 2 * PLACEMENT_TICK));
    assert_eq!(waits(Wanted::Apart, &[close, apart], never), (2, PLACEMENT_TICK));
    assert_eq!(waits(Wanted::Close, &[apart], never).1, PLACEMENT_PATIENCE);
    assert_eq!(waits(Wanted::Close, &[apart], 0), (1, Duration::ZERO), "who stops does not wait");
}
