//! Bundles: what is in them, that edits are detected, and that a lab which is interrupted, killed
//! or out of space leaves a readable bundle and nothing else.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::missing::{is_root, missing};
use crate::common::{
    HttpSketch, Sketch, UdpSketch, calm, fakes, run_as_it_is, run_text, runs, summary, voids,
};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use twinring_lab::result::State;
use twinring_lab::{LabError, NetKind, Outcome, Stop, compare, rerender, verify};

fn files(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap().flatten();
    let mut names: Vec<_> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn a_bundle_holds_until_any_of_it_is_edited() {
    let out = tempfile::tempdir().unwrap();
    let outcome = Sketch { others: &["foreign"], ..Sketch::default() }.run(out.path()).unwrap();
    let directory = &outcome.directory;
    let all = ["bundle.json", "manifest.sha256", "report.html", "report.md", "runs.jsonl"];
    assert_eq!(files(directory), all);
    let verification = verify(directory).unwrap();
    assert!(verification.holds() && verification.figures > 10, "{verification}");
    assert_eq!((verification.runs, verification.exit_code()), (2, 0));

    let edit = |name: &str, from: &str, to: &str| {
        let path = directory.join(name);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{from} in {name}");
        fs::write(&path, text.replacen(from, to, 1)).unwrap();
        let found = verify(directory).unwrap();
        fs::write(&path, text).unwrap();
        assert!(!found.holds() && found.exit_code() == 1, "{name}: {from} -> {to}");
        found.problems.join("\n")
    };
    edit("report.md", "sketch", "Sketch");
    edit("report.html", "sketch", "Sketch");
    assert!(edit("bundle.json", "\"counted\": ", "\"counted\": 9").contains("summary."));
    // A warning that does not depend on what was measured.
    let warning = "\"kind\": \"loopback_accounting\"";
    let edited = edit("bundle.json", warning, "\"kind\": \"noisy\"");
    assert!(edited.contains("warnings[") && edited.contains("].kind is"), "{edited}");
    // The raw data themselves, with the manifest brought into line.
    let found = edit("runs.jsonl", "\"answered\":", "\"answered\":1");
    assert!(found.contains("runs.jsonl was changed") && found.contains("raw data give"), "{found}");
    assert!(verify(directory).unwrap().holds());
}

#[test]
fn an_edited_bundle_with_a_new_manifest_is_still_found_out() {
    let out = tempfile::tempdir().unwrap();
    let outcome = Sketch { others: &["foreign"], ..Sketch::default() }.run(out.path()).unwrap();
    let path = outcome.directory.join("bundle.json");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replacen("\"counted\": ", "\"counted\": 9", 1)).unwrap();
    let sums = Command::new("sha256sum")
        .args(["bundle.json", "runs.jsonl", "report.md", "report.html"])
        .current_dir(&outcome.directory)
        .output()
        .unwrap();
    fs::write(outcome.directory.join("manifest.sha256"), sums.stdout).unwrap();
    let found = verify(&outcome.directory).unwrap();
    let names_it = |problem: &String| problem.contains("counted");
    assert!(!found.holds() && found.problems.iter().any(names_it), "{found}");
    assert!(!found.problems.iter().any(|problem| problem.contains("manifest")), "{found}");
    // Rendering it again computes the figures from the raw data.
    rerender(&outcome.directory).unwrap();
    assert!(verify(&outcome.directory).unwrap().holds());
}

#[test]
fn sha256sum_can_read_the_manifest() {
    let out = tempfile::tempdir().unwrap();
    let outcome = Sketch::default().run(out.path()).unwrap();
    let check = Command::new("sha256sum")
        .args(["--check", "--strict", "manifest.sha256"])
        .current_dir(&outcome.directory)
        .output()
        .unwrap();
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));
}

#[test]
fn namespaces_are_used_where_rights_allow_and_said_otherwise() {
    let sketch = Sketch { net: "auto", ..Sketch::default() };
    let passes = |outcome: &Outcome| voids(&summary(outcome).cells[0], "echo").is_empty();
    let out = tempfile::tempdir().unwrap();
    let outcome = sketch.run(out.path()).unwrap();
    let network = &outcome.bundle.networks[0];
    match &outcome.bundle.network_fallback {
        Some(why) => {
            missing("root", why);
            assert_eq!(network.kind, NetKind::Lo);
        }
        None => {
            assert_eq!(network.kind, NetKind::Rps);
            assert!(!network.server_rps.is_empty() && !network.client_rps.is_empty());
            assert!(passes(&outcome), "{:?}", summary(&outcome).cells[0].findings);
        }
    }
    let devices = files(Path::new("/sys/class/net"));
    assert!(!devices.iter().any(|name| name == "server0" || name == "client0"), "{devices:?}");
}

#[test]
fn each_network_does_what_it_says_and_is_counted() {
    if !is_root() {
        return;
    }
    let out = tempfile::tempdir().unwrap();
    // Of fewer than a thousand answers the audits of a network say nothing.
    let sketch = Sketch { net: "all", window_s: 1.5, ..Sketch::default() };
    let outcome = sketch.run(out.path()).unwrap();
    let kinds: Vec<NetKind> = outcome.bundle.networks.iter().map(|it| it.kind).collect();
    assert_eq!(kinds, [NetKind::Rps, NetKind::Lo, NetKind::Napi]);
    let napi = outcome.bundle.networks.last().unwrap();
    let cpus = [outcome.bundle.cpus.server, outcome.bundle.cpus.client];
    assert!(napi.napi_cpus == cpus && napi.server_rps == "0", "{napi:?}");
    for cell in &summary(&outcome).cells {
        // Steered packets are counted for the whole machine: on loopback those of others void it.
        if cell.cell.net != NetKind::Lo {
            assert_eq!(voids(cell, "echo"), [], "{}: {:?}", cell.cell, cell.findings);
        }
    }
    for kind in kinds {
        let of_kind = runs(&outcome).into_iter().filter(|run| run.cell.net == kind);
        let counts = of_kind.filter_map(|run| {
            let cpu = run.cpu?;
            assert!(cpu.server.minor_faults.is_some() && cpu.client.minor_faults.is_some());
            Some([cpu.server_cpu.counts, cpu.client_cpu.counts])
        });
        // A process that has ended by the time of the last sample has no network to count in.
        let counts = counts.flatten().find(|counts| counts.tcp_retransmits.is_some());
        let counts = counts.unwrap_or_else(|| panic!("nothing is counted on {kind}"));
        assert!(counts.net_rx_runs.is_some(), "{counts:?}");
        assert_eq!(counts.device_drops, Some(0), "{counts:?}");
        assert_eq!(counts.napi_threads_ns.is_some_and(|ns| ns > 0), kind == NetKind::Napi);
    }
    let verified = verify(&outcome.directory).unwrap();
    assert!(verified.holds(), "{verified}");
}

#[test]
fn a_network_that_cannot_be_had_is_an_error_that_says_so() {
    // A thread without rights: as another user inside a user namespace of its own would be.
    let out = tempfile::tempdir().unwrap();
    let experiment = Sketch { net: "rps", ..Sketch::default() }.text();
    let file = out.path().join("sketch.toml");
    fs::write(&file, experiment).unwrap();
    if !is_root() {
        return;
    }
    fs::set_permissions(out.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let copy = out.path().join("fakes");
    fs::copy(fakes(), &copy).unwrap();
    let run = |net: &str| {
        fs::write(&file, Sketch { net, window_s: 1.0, ..Sketch::default() }.text()).unwrap();
        let mut command = Command::new(&copy);
        command.arg("lab").arg(&file).arg(out.path().join(net));
        std::os::unix::process::CommandExt::uid(&mut command, 65_534);
        // While it was copied another test may have started a process, which has the copy open for
        // writing until it runs its own program.
        wait_until("the copy can be run", || match command.output() {
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => None,
            output => Some(output.unwrap()),
        })
    };
    let refused = run("rps");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("rps") && said.contains("unshare") && said.contains("EPERM"), "{said}");
    let fallen_back = run("auto");
    let said = String::from_utf8_lossy(&fallen_back.stdout);
    // Lines are broken where they are long.
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("plain loopback") && said.contains("on lo"), "{said}");
    // Ticks of 10 ms took the place of the idle clock, and nobody was told.
    let coarse = "is precise to 2.0 % of the window";
    let bundle = bundle_in(&out.path().join("auto")).unwrap();
    let report = twinring_lab::markdown(&calm(&bundle));
    assert!(report.contains("coarse CPU time"), "{report}");
    for (name, text) in [("bundle.json", "\"busy_unsure_share\": 0.0"), ("report.md", coarse)] {
        assert!(fs::read_to_string(bundle.join(name)).unwrap().contains(text), "{name}");
    }
    let runs = fs::read_to_string(bundle.join("runs.jsonl")).unwrap();
    assert!(runs.contains("\"busy_unsure_s\":0.0"), "{runs}");
    assert_eq!(fallen_back.status.code(), Some(0));
}

#[test]
fn a_bundle_of_datagrams_holds_until_any_of_it_is_edited() {
    let out = tempfile::tempdir().unwrap();
    let sketch = UdpSketch { others: &["foreign"], pairs: 2, ..UdpSketch::default() };
    let outcome = sketch.run(out.path()).unwrap();
    let directory = &outcome.directory;
    let verification = verify(directory).unwrap();
    assert!(verification.holds() && verification.figures > 10, "{verification}");
    let path = directory.join("runs.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    for field in ["lost", "due", "received_per_second", "kernel_drops"] {
        let edited = text.replacen(&format!("\"{field}\":"), &format!("\"{field}\":1"), 1);
        assert_ne!(text, edited);
        fs::write(&path, edited).unwrap();
        let found = verify(directory).unwrap();
        let recomputed = found.problems.iter().any(|problem| problem.contains("raw data give"));
        assert!(recomputed, "{field}: {found}");
    }
    fs::write(&path, text).unwrap();
    assert!(verify(directory).unwrap().holds());
    let html = fs::read_to_string(directory.join("report.html")).unwrap();
    assert!(html.contains("20 streams x 50/s x 172 B"));
    assert!(html.contains("Send lateness"));
    assert!(!html.contains("http://") && !html.contains("https://"), "it must open offline");
}

#[test]
fn a_bundle_of_http_holds_until_any_of_it_is_edited_and_its_files_are_gone() {
    let out = tempfile::tempdir().unwrap();
    let sketch = HttpSketch { others: &["foreign"], pairs: 2, ..HttpSketch::default() };
    let outcome = sketch.run(out.path()).unwrap();
    let directory = &outcome.directory;
    let all = ["bundle.json", "manifest.sha256", "report.html", "report.md", "runs.jsonl"];
    assert_eq!(files(directory), all);
    let verification = verify(directory).unwrap();
    assert!(verification.holds() && verification.figures > 10, "{verification}");
    let path = directory.join("runs.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    for field in ["bodies", "answered", "status"] {
        let edited = text.replacen(&format!("\"{field}\":"), &format!("\"{field}\":1"), 1);
        assert_ne!(text, edited);
        fs::write(&path, edited).unwrap();
        let found = verify(directory).unwrap();
        let recomputed = found.problems.iter().any(|problem| problem.contains("raw data give"));
        assert!(recomputed, "{field}: {found}");
    }
    fs::write(&path, text).unwrap();
    rerender(directory).unwrap();
    assert!(verify(directory).unwrap().holds());
    let html = fs::read_to_string(directory.join("report.html")).unwrap();
    assert!(html.contains("4 connections x 1000 B over HTTP on lo"));
    let markdown = fs::read_to_string(directory.join("report.md")).unwrap();
    assert!(markdown.contains("first byte p50, us"), "{markdown}");
    assert!(markdown.contains("content, MB/s"), "{markdown}");
}

#[test]
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

/// Its runs are of the version that excused voids of disturbed runs; then intervals and verdicts were of
/// another procedure, and some fields had other names.
#[test]
fn bundles_of_earlier_versions_are_verified_by_their_figures_and_rendered_again() {
    let old =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/measurements/published-frevib");
    let out = tempfile::tempdir().unwrap();
    for name in files(&old) {
        fs::copy(old.join(&name), out.path().join(&name)).unwrap();
    }
    let file = out.path().join("bundle.json");
    let before = fs::File::open(old.join("bundle.json.zst")).unwrap();
    let before = ruzstd::decoding::StreamingDecoder::new(before).unwrap();
    let mut before: serde_json::Value = serde_json::from_reader(before).unwrap();
    before["schema"] = "twinring.lab.bundle/3".into();
    let cell = &mut before["summary"]["cells"][0];
    let excluded = cell.as_object_mut().unwrap().remove("excluded_blocks").unwrap();
    cell["spoilt_blocks"] = excluded;
    let comparison = &mut cell["comparisons"][0];
    let needed = comparison.as_object_mut().unwrap().remove("p_value_needed").unwrap();
    comparison["level"] = needed;
    comparison["server_cpu"]["low"] = 0.5.into();
    comparison["verdict"] = serde_json::json!({"is": "only_one_keeps_up", "winner": "epoll"});
    // What is left to find are figures; the manifest knows nothing of what is changed here.
    let figures = |bundle: &serde_json::Value| -> Vec<String> {
        fs::remove_file(out.path().join("bundle.json.zst")).ok();
        fs::write(&file, bundle.to_string()).unwrap();
        let found = verify(out.path()).unwrap();
        assert!(found.figures > 500, "{found}");
        assert!(found.notes.iter().any(|note| note.contains("bundle/3")), "{found}");
        found.problems.iter().filter(|it| it.contains("raw data give")).cloned().collect()
    };
    assert_eq!(figures(&before), [] as [String; 0]);
    let ratio = &mut before["summary"]["cells"][0]["comparisons"][0]["server_cpu"]["ratio"];
    *ratio = 9.0.into();
    assert!(figures(&before)[0].contains("server_cpu.ratio"));

    let bundle = rerender(out.path()).unwrap();
    assert_eq!(bundle.schema, twinring_lab::result::BUNDLE_SCHEMA);
    let found = verify(out.path()).unwrap();
    assert!(found.holds() && found.notes.is_empty(), "{found}");
}

/// Bundles named the directories that programs and files of an experiment lay in.
#[test]
fn a_bundle_has_prices_and_no_paths_of_its_machine() {
    let out = tempfile::tempdir().unwrap();
    let sketch = HttpSketch { others: &["burn"], pairs: 2, ..HttpSketch::default() };
    let outcome = sketch.run(out.path()).unwrap();
    let directory = &outcome.directory;
    let places = [out.path(), fakes().parent().unwrap()].map(|it| it.display().to_string());
    for name in files(directory) {
        let text = fs::read_to_string(directory.join(&name)).unwrap();
        for place in &places {
            assert!(!text.contains(place), "{name} has {place}");
        }
    }
    let prices = outcome.bundle.prices.as_ref().unwrap();
    if outcome.bundle.cpus.shared {
        assert!(prices.unavailable.as_ref().unwrap().contains("one CPU"));
        return;
    }
    // The fakes have made them up.
    assert_eq!((prices.median("syscall_ns"), prices.median("copy_ns_per_kb")), (Some(100.0), None));
}

/// The names of all fields, but those of lines that programs printed and of settings of a kernel.
fn field_names(value: &serde_json::Value, names: &mut std::collections::BTreeSet<String>) {
    const FOREIGN: &[&str] = &["ready", "load", "server_final", "mitigations", "sysctls", "limits"];
    match value {
        serde_json::Value::Object(fields) => {
            for (name, value) in fields {
                names.insert(name.clone());
                if !FOREIGN.contains(&name.as_str()) {
                    field_names(value, names);
                }
            }
        }
        serde_json::Value::Array(items) => {
            items.iter().for_each(|item| field_names(item, names));
        }
        _ => {}
    }
}

#[test]
fn every_field_is_documented_and_every_file_is_read_back_as_it_was_written() {
    let document = include_str!("../../../../docs/bundle.md");
    let others: &[&str] = &["foreign"];
    let text = |which: usize| match which {
        0 => Sketch { others, pairs: 5, net: "auto", ..Sketch::default() }.text(),
        1 => UdpSketch { others, ..UdpSketch::default() }.text(),
        _ => HttpSketch { others, ..HttpSketch::default() }.text(),
    };
    let mut names = std::collections::BTreeSet::new();
    for which in 0..3 {
        let out = tempfile::tempdir().unwrap();
        let outcome = run_as_it_is(&text(which), out.path(), &Stop::new()).unwrap();
        let read = |name: &str| fs::read_to_string(outcome.directory.join(name)).unwrap();
        let value: serde_json::Value = serde_json::from_str(&read("bundle.json")).unwrap();
        field_names(&value, &mut names);
        let bundle: twinring_lab::result::Bundle = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(bundle, outcome.bundle);
        assert_eq!(serde_json::to_value(&bundle).unwrap(), value);
        for line in read("runs.jsonl").lines() {
            let value: serde_json::Value = serde_json::from_str(line).unwrap();
            field_names(&value, &mut names);
            let run: twinring_lab::result::RunRecord =
                serde_json::from_value(value.clone()).unwrap();
            assert_eq!(serde_json::to_value(&run).unwrap(), value);
        }
        let found =
            compare::bundles(&outcome.directory, &outcome.directory, &compare::Options::default());
        let line = found.unwrap().json_line().unwrap();
        field_names(&serde_json::from_str(&line).unwrap(), &mut names);
    }
    let missing: Vec<_> =
        names.iter().filter(|name| !document.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "docs/bundle.md does not name {missing:?}");
}

/// An experiment in cells enough that it goes on when some are void: there nobody is run again.
fn in_many_cells(experiment: &str) -> String {
    let connections = "connections = [2, 3, 4, 5, 6, 7, 8, 9]";
    let streams = "streams = [17, 18, 19, 20, 21, 22, 23, 24]";
    experiment.replace("connections = [4]", connections).replace("streams = [20]", streams)
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

fn wait_until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited too long until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn bundle_in(out: &Path) -> Option<PathBuf> {
    let directories = fs::read_dir(out).unwrap().flatten().map(|entry| entry.path());
    directories.into_iter().find(|path| path.join("runs.jsonl").exists())
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

#[test]
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

#[test]
fn an_interrupted_lab_of_datagrams_leaves_a_valid_partial_bundle() {
    let out = tempfile::tempdir().unwrap();
    let sketch = UdpSketch { others: &["lossy"], pairs: 100, net: "auto", ..UdpSketch::default() };
    let mut lab = start_lab_on(out.path(), &sketch.text());
    let bundle = wait_for_runs(out.path(), 3);
    let mine = wait_until("a run is on", || Some(children(&lab)).filter(|it| it.len() >= 2));
    kill(Pid::from_raw(lab.id() as i32), Signal::SIGINT).unwrap();
    assert_eq!(lab.wait().unwrap().code(), Some(130));
    assert!(!mine.iter().any(|pid| is_alive(*pid)), "processes left behind");
    let verification = verify(&bundle).unwrap();
    assert!(verification.holds() && verification.runs >= 3, "{verification}");
}

#[test]
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

#[test]
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

#[test]
fn a_full_disk_is_an_error_and_what_was_written_stays_readable() {
    // A small file system in a mount namespace of this thread only.
    let worker = std::thread::spawn(|| {
        let flags = nix::mount::MsFlags::MS_REC | nix::mount::MsFlags::MS_PRIVATE;
        let entered = unshare(CloneFlags::CLONE_NEWNS)
            .and_then(|()| nix::mount::mount(None::<&str>, "/", None::<&str>, flags, None::<&str>));
        if let Err(errno) = entered {
            return missing("root", format!("no mount namespace: {errno}"));
        }
        let out = tempfile::tempdir().unwrap();
        let none = nix::mount::MsFlags::empty();
        // Room for the first bundle.json and a run or two.
        let size = Some("size=64k");
        nix::mount::mount(Some("none"), out.path(), Some("tmpfs"), none, size).unwrap();
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
        let remount = nix::mount::MsFlags::MS_REMOUNT;
        nix::mount::mount(Some("none"), out.path(), Some("tmpfs"), remount, more).unwrap();
        let rendered = rerender(&bundle).unwrap();
        assert!(rendered.summary.is_some_and(|summary| summary.runs == verification.runs));
        let verification = verify(&bundle).unwrap();
        assert!(verification.holds() && bundle.join("report.html").exists(), "{verification}");
    });
    worker.join().unwrap();
}

#[test]
fn what_is_not_a_bundle_is_refused() {
    let out = tempfile::tempdir().unwrap();
    assert!(matches!(verify(out.path()), Err(LabError::Read { .. })));
    fs::write(out.path().join("bundle.json"), "{\"schema\":\"other/1\"}").unwrap();
    let error = verify(out.path()).unwrap_err();
    assert!(error.to_string().contains("other/1"), "{error}");
}

#[test]
fn progress_goes_to_standard_error_only() {
    let out = tempfile::tempdir().unwrap();
    let file = out.path().join("short.toml");
    fs::write(&file, Sketch::default().text()).unwrap();
    let output = Command::new(fakes()).arg("lab").arg(&file).arg(out.path()).output().unwrap();
    assert!(output.status.success());
    let first = BufReader::new(&*output.stdout).lines().next().unwrap().unwrap();
    assert!(first.starts_with("sketch"), "{first}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("1 runs"));
}
