//! What runs cost is found, of servers whose cost is known.

use crate::common::missing::missing;
use crate::common::{Sketch, first_cell, options, runs, summary};
use twinring_lab::accounting::CpuUse;
use twinring_lab::profile::Class;
use twinring_lab::record::RunRecord;
use twinring_lab::summary::{Metric, PARTS};
use twinring_lab::{Experiment, Outcome, Stop};

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

/// The same experiment as [`Sketch::run`], with text changed in it or options set.
fn run_changed(text: &str, profile: bool) -> (tempfile::TempDir, Outcome) {
    let out = tempfile::tempdir().unwrap();
    let experiment = Experiment::from_toml(text, "sketch").unwrap();
    let mut options = options(experiment, out.path());
    options.profile = profile;
    let outcome = twinring_lab::run(&options, &Stop::new()).unwrap();
    (out, outcome)
}

#[test]
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

#[test]
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

#[test]
fn the_parts_of_both_sides_add_up_and_the_looks_are_timed() {
    let (_out, outcome) = run(Sketch { others: &["burn"], ..Sketch::default() });
    let runs = runs(&outcome);
    for run in &runs {
        let cpu = run.cpu.as_ref().unwrap();
        for side in [&cpu.server_cpu, &cpu.client_cpu] {
            let sampled_s = side.sampled_s.unwrap();
            assert!(sampled_s > 0.0 && side.look_us.unwrap().iter().all(|us| *us > 0.0));
        }
        assert_eq!(cpu.shared, Some(outcome.bundle.cpus.shared));
    }
    for subject in &first_cell(&outcome).subjects {
        let figures = subject.figures.as_ref().unwrap();
        let busy = [Metric::ServerSideBusyNs, Metric::ClientSideBusyNs].map(|it| figures[it]);
        for (side, busy_ns) in busy.into_iter().enumerate() {
            let sum: f64 = PARTS.iter().map(|part| figures[part[side]]).sum();
            assert!((sum - busy_ns).abs() < 1e-6 * busy_ns, "{figures:?}");
            assert!(PARTS.iter().all(|part| figures[part[side]] >= -1e-9), "{figures:?}");
        }
        assert!((busy[0] - figures[Metric::ServerCpuNs]).abs() < 1e-6);
        assert!(figures[Metric::RssBytes] > 0.0);
    }
}

#[test]
fn a_subject_can_be_run_with_the_idle_clock_alone() {
    let text = Sketch { others: &["burn"], ..Sketch::default() }.text();
    let name = "name = \"burn\"";
    let text = text.replace(name, &format!("{name}\naccounting = \"idle_clock_only\""));
    let (_out, outcome) = run_changed(&text, false);
    let runs = runs(&outcome);
    let is_seen = |runs: &[RunRecord]| {
        let bare = used(runs, "burn");
        bare.server.cpu_s > 0.0 && bare.client.cpu_s > 0.0 && bare.server_cpu.busy_s > 0.0
    };
    let (all, bare) = (of(&runs, "echo"), of(&runs, "burn"));
    assert!(all.memory.is_some() && bare.memory.is_none());
    let (all, bare) = (used(&runs, "echo"), used(&runs, "burn"));
    assert!(!all.server.threads.is_empty() && bare.server.threads.is_empty());
    assert!(is_seen(&runs), "{bare:?}");
    let cost = Experiment::find("accounting-cost").unwrap();
    assert_eq!(cost.subjects.len(), 2);
    assert_ne!(cost.subjects[0].accounting, cost.subjects[1].accounting);
}

/// With a server that uses its CPU. On a loopback that others use the packets are not all its own.
fn worth_a_profile<'a>(others: &'a [&'a str]) -> Sketch<'a> {
    Sketch { clean: "eager", others, net: "auto", window_s: 1.0, ..Sketch::default() }
}

#[test]
fn a_profile_tells_whose_time_it_was_and_is_in_no_figure() {
    let (_out, outcome) = run_changed(&worth_a_profile(&["burn", "lossy"]).text(), true);
    let profile = outcome.bundle.profile.as_ref().unwrap();
    if let Some(why) = profile.problems.first() {
        missing("perf", why);
        return;
    }
    // A voided subject is not worth a profile.
    let names: Vec<&str> = profile.runs.iter().map(|run| run.subject.as_str()).collect();
    assert!(names.contains(&"eager") && !names.contains(&"lossy"), "{names:?}");
    assert_eq!(summary(&outcome).runs, runs(&outcome).len());
    let of = |subject: &str| profile.runs.iter().find(|run| run.subject == subject);
    let server = |subject: &str| of(subject).and_then(|run| run.server.as_ref());
    let eager = server("eager").unwrap();
    assert!(eager.samples > 100 && eager.of(Class::NetworkStack) > 0, "{eager:?}");
    // It needs 500 us of its own for each message, which is more than the kernel does.
    if let Some(burn) = server("burn").filter(|burn| burn.of_the_run() > 100) {
        assert!(burn.share(Class::User) > eager.share(Class::User), "{burn:?}");
    }
    // A read and a write for each message; a few more around the window.
    let counts = of("eager").unwrap().counts.as_ref().unwrap();
    assert!((1.0..4.0).contains(&counts.syscalls_per_unit), "{counts:?}");
    assert!(counts.events.contains_key("recvfrom") || counts.events.contains_key("read"));
    let verified = twinring_lab::verify(&outcome.directory).unwrap();
    assert!(verified.holds(), "{verified}");
    assert!(!outcome.directory.join("profile").exists());
    let markdown = twinring_lab::markdown(&outcome.bundle);
    assert!(markdown.contains("## Profile") && markdown.contains("network stack"), "{markdown}");
}

#[test]
fn an_edited_profile_is_found_out_even_with_a_new_manifest() {
    let (_out, outcome) = run_changed(&worth_a_profile(&[]).text(), true);
    let mut bundle = outcome.bundle.clone();
    let profile = bundle.profile.as_mut().unwrap();
    let Some(server) = profile.runs.first_mut().and_then(|run| run.server.as_mut()) else {
        missing("perf", format!("{:?}", profile.problems));
        return;
    };
    server.samples += 1;
    let text = serde_json::to_string(&bundle).unwrap();
    std::fs::write(outcome.directory.join("bundle.json"), text).unwrap();
    twinring_lab::rerender(&outcome.directory).unwrap();
    let verified = twinring_lab::verify(&outcome.directory).unwrap();
    assert!(verified.problems.iter().any(|it| it.contains("profile of eager")), "{verified}");
}

/// The command lines of processes that this one has started and that still run.
fn own_children() -> Vec<String> {
    let text = |path: String| std::fs::read_to_string(path).unwrap_or_default();
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let children = tasks.flat_map(|task| {
        let children = text(format!("{}/children", task.path().display()));
        children.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    });
    children.map(|pid| text(format!("/proc/{pid}/cmdline")).replace('\0', " ")).collect()
}

#[test]
fn an_interrupted_profile_leaves_a_valid_bundle_and_nothing_else() {
    let out = tempfile::tempdir().unwrap();
    let stop = Stop::new();
    let (watched, request) = (out.path().to_owned(), stop.clone());
    // What perf writes shows that it runs.
    let interrupt = std::thread::spawn(move || {
        for _ in 0..3000 {
            let bundles = std::fs::read_dir(&watched).unwrap().flatten();
            if bundles.into_iter().any(|it| it.path().join("profile/perf.data").exists()) {
                return request.request(15);
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    });
    let text = Sketch { net: "auto", window_s: 2.0, ..Sketch::default() }.text();
    let mut options = options(Experiment::from_toml(&text, "sketch").unwrap(), out.path());
    options.profile = true;
    let outcome = twinring_lab::run(&options, &stop).unwrap();
    interrupt.join().unwrap();
    if stop.signal().is_none() {
        missing("perf", format!("{:?}", outcome.bundle.profile));
        return;
    }
    assert_eq!(outcome.exit_code(), 128 + 15);
    assert!(!outcome.directory.join("profile").exists());
    let directory = outcome.directory.display().to_string();
    assert!(own_children().iter().all(|it| !it.contains(&directory)), "{:?}", own_children());
    let verified = twinring_lab::verify(&outcome.directory).unwrap();
    assert!(verified.holds(), "{verified}");
}
