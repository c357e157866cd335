//! A lab that is interrupted, killed or out of space leaves a readable bundle and nothing else.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::common::{HttpSketch, Sketch, bundle_in, fakes, files, run_text, wait_until};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testing::{Test, tests};
use twinring_lab::result::State;
use twinring_lab::{LabError, Stop, rerender, verify};

pub(crate) const TESTS: &[Test] = tests![
    an_interrupted_lab_leaves_a_valid_partial_bundle,
    a_second_signal_stops_at_once_and_nothing_is_left,
    a_killed_lab_takes_everything_with_it_and_its_bundle_can_be_read,
    a_full_disk_is_an_error_and_what_was_written_stays_readable,
    an_interrupted_lab_of_http_leaves_a_valid_partial_bundle_without_its_files
];

/// An experiment in cells enough that it goes on when some are void: there nobody is run again.
fn in_many_cells(experiment: &str) -> String {
    let connections = "connections = [2, 3, 4, 5, 6, 7, 8, 9]";
    experiment.replace("connections = [4]", connections)
}

/// Starts the lab as a process on an experiment that takes far longer than the test.
fn start_lab(out: &Path) -> Child {
    let sketch = Sketch { others: &["foreign"], pairs: 100, net: "auto", ..Sketch::default() };
    start_lab_on(out, &sketch.text())
}

fn start_lab_on(out: &Path, experiment: &str) -> Child {
    let file = out.join("long.toml");
    fs::write(&file, in_many_cells(experiment)).unwrap();
    let mut lab = Command::new(fakes());
    lab.arg("lab").arg(&file).arg(out).stdout(Stdio::piped()).stderr(Stdio::piped());
    lab.spawn().unwrap()
}

/// The bundle, once it holds `runs` runs.
fn wait_for_runs(out: &Path, runs: usize) -> PathBuf {
    wait_until("there are runs", || {
        let bundle = bundle_in(out)?;
        let text = fs::read_to_string(bundle.join("runs.jsonl")).ok()?;
        (text.lines().count() >= runs).then_some(bundle)
    })
}

/// Processes of `lab`, by the children lists of its threads.
fn children(lab: &Child) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{}/task", lab.id())).into_iter().flatten().flatten();
    let of_task = |task: fs::DirEntry| fs::read_to_string(task.path().join("children"));
    let lists = tasks.flat_map(of_task).collect::<Vec<_>>().join(" ");
    lists.split_ascii_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

fn is_alive(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

fn an_interrupted_lab_leaves_a_valid_partial_bundle() {
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let out = tempfile::tempdir().unwrap();
        let mut lab = start_lab(out.path());
        let bundle = wait_for_runs(out.path(), 3);
        let mine = wait_until("a run is on", || Some(children(&lab)).filter(|it| it.len() >= 2));
        kill(Pid::from_raw(lab.id() as i32), signal).unwrap();
        assert_eq!(lab.wait().unwrap().code(), Some(code));
        assert!(!mine.iter().any(|pid| is_alive(*pid)), "processes left behind");
        let verification = verify(&bundle).unwrap();
        assert!(verification.holds() && verification.runs >= 3, "{verification}");
        let mut said = String::new();
        lab.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(said.contains("interrupted by signal"), "{said}");
    }
}

fn a_second_signal_stops_at_once_and_nothing_is_left() {
    let out = tempfile::tempdir().unwrap();
    let mut lab = start_lab(out.path());
    wait_for_runs(out.path(), 1);
    let mine = wait_until("a run is on", || Some(children(&lab)).filter(|it| it.len() >= 2));
    let pid = Pid::from_raw(lab.id() as i32);
    kill(pid, Signal::SIGINT).unwrap();
    kill(pid, Signal::SIGTERM).unwrap();
    let status = lab.wait().unwrap();
    // Both may be delivered together, or the first may already have ended it.
    assert!(matches!(status.code(), Some(130 | 143)), "{status}");
    wait_until("all are gone", || (!mine.iter().any(|pid| is_alive(*pid))).then_some(()));
}

fn a_killed_lab_takes_everything_with_it_and_its_bundle_can_be_read() {
    let out = tempfile::tempdir().unwrap();
    let mut lab = start_lab(out.path());
    let bundle = wait_for_runs(out.path(), 2);
    let mine = wait_until("a run is on", || Some(children(&lab)).filter(|it| it.len() >= 2));
    lab.kill().unwrap();
    lab.wait().unwrap();
    wait_until("all are gone", || (!mine.iter().any(|pid| is_alive(*pid))).then_some(()));
    // A line that was being written.
    let path = bundle.join("runs.jsonl");
    let mut text = fs::read_to_string(&path).unwrap();
    text.push_str("{\"schema\":\"twinring.lab.ru");
    fs::write(&path, text).unwrap();
    let verification = verify(&bundle).unwrap();
    assert!(verification.holds() && verification.notes.len() == 2, "{verification}");
    let rendered = rerender(&bundle).unwrap();
    assert_eq!(rendered.state, State::Running);
    assert!(fs::read_to_string(bundle.join("report.html")).unwrap().contains("unfinished"));
    assert!(verify(&bundle).unwrap().holds());
}

fn a_full_disk_is_an_error_and_what_was_written_stays_readable() {
    // A small file system in a mount namespace of this thread only.
    let worker = std::thread::spawn(|| {
        use nix::mount::{MsFlags, mount};
        let flags = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        let entered = unshare(CloneFlags::CLONE_NEWNS)
            .and_then(|()| mount(None::<&str>, "/", None::<&str>, flags, None::<&str>));
        if let Err(errno) = entered {
            testing::needs("root", format_args!("no mount namespace: {errno}"));
        }
        let out = tempfile::tempdir().unwrap();
        let none = MsFlags::empty();
        // Room for the first bundle.json and a run or two.
        let size = Some("size=64k");
        mount(Some("none"), out.path(), Some("tmpfs"), none, size).unwrap();
        let sketch = Sketch { others: &["foreign"], pairs: 50, ..Sketch::default() };
        let text = in_many_cells(&sketch.text());
        let error = run_text(&text, out.path(), &Stop::new()).unwrap_err();
        assert!(matches!(&error, LabError::Write { .. }), "{error}");
        assert!(error.to_string().contains("No space left"), "{error}");
        assert_eq!(error.exit_code(), 1);
        let bundle = bundle_in(out.path()).unwrap();
        let verification = verify(&bundle).unwrap();
        assert!(verification.holds() && verification.runs >= 1, "{verification}");
        assert!(!files(&bundle).iter().any(|name| name.ends_with(".draft")), "{bundle:?}");
        // With space again, the rest of the bundle is made from the runs.
        let more = Some("size=4m");
        let remount = MsFlags::MS_REMOUNT;
        mount(Some("none"), out.path(), Some("tmpfs"), remount, more).unwrap();
        let rendered = rerender(&bundle).unwrap();
        assert!(rendered.summary.is_some_and(|summary| summary.runs == verification.runs));
        let verification = verify(&bundle).unwrap();
        assert!(verification.holds() && bundle.join("report.html").exists(), "{verification}");
    });
    worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

fn an_interrupted_lab_of_http_leaves_a_valid_partial_bundle_without_its_files() {
    let out = tempfile::tempdir().unwrap();
    let sketch = HttpSketch { others: &["foreign"], pairs: 100, ..HttpSketch::default() };
    let mut lab = start_lab_on(out.path(), &sketch.text());
    let bundle = wait_for_runs(out.path(), 1);
    assert!(bundle.join("work/root/1000.bin").exists());
    kill(Pid::from_raw(lab.id() as i32), Signal::SIGINT).unwrap();
    assert_eq!(lab.wait().unwrap().code(), Some(130));
    assert!(!bundle.join("work").exists());
    assert!(verify(&bundle).unwrap().holds());
}
