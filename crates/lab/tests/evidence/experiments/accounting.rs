//! What runs cost is found, of servers whose cost is known.

use crate::common::{Sketch, first_cell, runs};
use testing::{Test, tests};
use twinring_lab::Outcome;
use twinring_lab::accounting::{CpuUse, IdleClock};
use twinring_lab::record::RunRecord;

pub(crate) const TESTS: &[Test] = tests![
    memory_that_connections_take_is_found_where_it_is,
    children_and_threads_of_a_server_are_counted,
    the_parts_of_both_sides_add_up_and_the_looks_are_timed
];

fn run(sketch: Sketch<'_>) -> (tempfile::TempDir, Outcome) {
    let out = tempfile::tempdir().unwrap();
    let outcome = sketch.run(out.path()).unwrap();
    (out, outcome)
}

fn of<'a>(runs: &'a [RunRecord], subject: &str) -> &'a RunRecord {
    runs.iter().find(|run| run.subject == subject).unwrap()
}

/// What the run of a subject cost.
fn used<'a>(runs: &'a [RunRecord], subject: &str) -> &'a CpuUse {
    of(runs, subject).cpu.as_ref().unwrap()
}

fn memory_that_connections_take_is_found_where_it_is() {
    let grown = |runs: &[RunRecord], subject: &str| {
        let memory = of(runs, subject).memory.unwrap();
        (memory.server_at_end.peak_rss_bytes - memory.server_at_ready.rss_bytes) / 16
    };
    let (_out, outcome) = run(Sketch { others: &["hoards"], connections: 16, ..Sketch::default() });
    let runs = runs(&outcome);
    let (plain, hoarded) = (grown(&runs, "echo"), grown(&runs, "hoards"));
    assert!((1 << 20..2 << 20).contains(&hoarded), "{hoarded}");
    assert!(plain < 512 << 10, "{plain}");
    let memory = of(&runs, "echo").memory.unwrap();
    assert!(memory.kernel_under_load.total_bytes() > 0 && memory.server_at_end.rss_bytes > 0);
    assert!(memory.server_at_end.page_table_bytes > 0);
}

fn children_and_threads_of_a_server_are_counted() {
    // All that `forks` does, its child does.
    let do_their_work = |runs: &[RunRecord]| {
        let [alone, by_child] = ["echo", "forks"].map(|it| used(runs, it).server.cpu_s);
        alone > 0.0 && by_child > alone / 10.0
    };
    let crowd = |runs: &[RunRecord]| {
        let mut threads = used(runs, "crowded").server.threads.iter();
        threads.find(|thread| thread.name == "crowd").map(|thread| thread.threads)
    };
    let (_out, outcome) = run(Sketch { others: &["forks", "crowded"], ..Sketch::default() });
    let runs = runs(&outcome);
    assert!(do_their_work(&runs), "{:?} {:?}", used(&runs, "echo"), used(&runs, "forks"));
    assert_eq!(crowd(&runs), Some(200));
    let of_two = of(&runs, "forks").memory.unwrap().server_at_end;
    assert!(of_two.pss_bytes < of_two.rss_bytes, "{of_two:?}");
}

fn the_parts_of_both_sides_add_up_and_the_looks_are_timed() {
    let (_out, outcome) = run(Sketch { others: &["burn"], ..Sketch::default() });
    let runs = runs(&outcome);
    for run in &runs {
        let cpu = run.cpu.as_ref().unwrap();
        for side in [Some(&cpu.server_cpu), cpu.client_cpu.as_ref()].into_iter().flatten() {
            let sampled_s = side.sampled_s.unwrap();
            assert!(sampled_s > 0.0 && side.look_us.unwrap().iter().all(|us| *us > 0.0));
        }
        assert_eq!(cpu.shared, outcome.bundle.cpus.shared);
        let root = nix::unistd::geteuid().is_root();
        assert_eq!(cpu.idle_clock == IdleClock::TimerList, root, "{:?}", cpu.idle_clock);
    }
    for subject in &first_cell(&outcome).subjects {
        let figures = subject.figures.as_ref().unwrap();
        let parts = [
            figures.server_user_ns,
            figures.server_kernel_ns,
            figures.server_threads_ns,
            figures.server_outside_ns,
        ]
        .map(|part| part.unwrap());
        let busy_ns = figures.server_cpu_ns.unwrap();
        assert!((parts.iter().sum::<f64>() - busy_ns).abs() < 1e-6 * busy_ns, "{figures:?}");
        assert!(parts.iter().all(|part| *part >= -1e-9), "{figures:?}");
        assert!(figures.memory_bytes.unwrap() > 0.0);
    }
}
