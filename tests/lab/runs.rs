//! Runs that fail, by real commands with known faults, and what the lab leaves behind when it is interrupted, killed or
//! out of space.

use crate::measured::{Measured, bundle_in, script, twinring};
use crate::support::*;
use nix::sched::{CloneFlags, unshare};
use serde_json::json;
use std::process::Output;
use twinring_lab::analysis::Effect;
use twinring_lab::{NetKind, recomputed, rerender, verify};

pub(crate) const TESTS: &[Test] = tests![
    each_fault_of_a_server_is_named_and_a_clean_one_is_left_alone,
    each_fault_of_a_load_generator_is_named,
    a_foreign_server_that_ends_badly_has_all_its_pairs,
    what_cannot_be_calibrated_is_a_failure_with_its_reason,
    a_pair_that_a_check_excludes_is_replaced_while_there_are_spare_ones,
    an_interrupted_lab_leaves_a_valid_partial_bundle_and_no_process,
    a_killed_lab_takes_everything_with_it_and_its_bundle_can_be_read,
    a_full_disk_is_an_error_and_what_was_written_stays_readable,
    each_network_does_what_it_says_and_is_counted,
    a_network_that_cannot_be_had_is_an_error_that_says_so,
    a_peer_is_started_as_it_wants_it_and_a_missing_one_is_left_out,
    nginx_is_configured_and_ends_well
];

/// How a shell starts our server, which says when it is ready.
const SERVE: &str = "\"$0\" serve echo --listen \"$1\" --allow any --engine epoll --json";

/// `lab run` of short pairs, which goes on beside other tests.
fn lab(name: &Path, out: &Path, options: &[&str]) -> Command {
    let mut lab = Command::new(TWINRING);
    lab.args(["lab", "run"]).arg(name).args(["--busy", "--no-prices", "--out"]).arg(out);
    lab.args(options).stdout(Stdio::piped()).stderr(Stdio::piped());
    lab
}

/// An experiment of TCP with these servers, each a script of a shell, and perhaps a load generator that is one.
fn experiment(servers: &[(&str, &str)], load: Option<&str>) -> String {
    let subject = |(name, script): &(&str, &str)| {
        let command = json!(["sh", "-c", script, "{twinring}", "{addr}"]);
        format!("[[subjects]]\nname = \"{name}\"\nready = \"json\"\ncommand = {command}\n")
    };
    let load = load.map(|script| json!(["sh", "-c", script, "{twinring}", "{addr}", "{options}"]));
    let load = load.map_or(String::new(), |words| format!("load = {words}\n"));
    let subjects: String = servers.iter().map(subject).collect();
    format!(
        "schema = \"twinring.lab.experiment/4\"\nname = \"faults\"\npairs = 1\nnet = \"lo\"\nwarmup_s = 0.1\n\
         window_s = 2.0\n[tcp]\nconnections = [4]\nmessage_bytes = [128]\n{load}{subjects}"
    )
}

/// Runs the text of an experiment; what was void, as `subject: check: what`, and the exit code.
fn voids(text: &str) -> (Vec<String>, Output) {
    let out = tempfile::tempdir().unwrap();
    let file = out.path().join("faults.toml");
    fs::write(&file, text).unwrap();
    let output = lab(&file, &out.path().join("bundles"), &[]).output().unwrap();
    let bundle = bundle_in(&out.path().join("bundles"));
    let stored: Value =
        serde_json::from_slice(&fs::read(bundle.join("bundle.json")).unwrap()).unwrap();
    // What was written is what is read.
    let read = recomputed(&bundle).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), stored);
    let findings = stored["summary"]["cells"][0]["findings"].as_array().unwrap();
    // Steered packets are counted for the whole machine, and other tests have networks that steer.
    let is_void = |it: &&Value| it["effect"] == "void" && it["check"] != "network";
    let said = |it: &Value| {
        [&it["subject"], &it["check"], &it["what"]].map(|it| it.as_str().unwrap()).join(": ")
    };
    (findings.iter().filter(is_void).map(said).collect(), output)
}

fn each_fault_of_a_server_is_named_and_a_clean_one_is_left_alone() {
    let clean = format!("exec {SERVE}");
    let dies = format!("{SERVE} & sleep 1; kill -9 $!; echo 'out of cheese' >&2; exit 7");
    let deaf = format!("trap '' TERM; {SERVE} & wait; sleep 60");
    let forks = format!("trap 'kill $!; exit 0' TERM; {SERVE} & wait");
    let servers = [
        ("clean", &*clean),
        ("forks", &*forks),
        ("crashes", "echo 'I was never meant to run' >&2; exit 3"),
        ("unready", "sleep 60"),
        ("dies", &*dies),
        ("deaf", &*deaf),
    ];
    let (found, _) = voids(&experiment(&servers, None));
    for (start, what) in [
        ("crashes: server_runs: the server was not ready", "exit code 3; it said: I was never"),
        ("unready: server_runs: the server was not ready", "not ready after 10 s"),
        ("dies: server_runs", "exit code 7"),
        ("dies: server_runs", "out of cheese"),
        ("deaf: server_runs: the server did not stop", "because it did not end in time"),
    ] {
        let is_it = |it: &String| it.starts_with(start) && it.contains(what);
        assert!(found.iter().any(is_it), "{start} {what}: {found:#?}");
    }
    let is_well = |it: &String| it.starts_with("clean:") || it.starts_with("forks:");
    assert!(!found.iter().any(is_well), "{found:#?}");
}

fn each_fault_of_a_load_generator_is_named() {
    let clean = format!("exec {SERVE}");
    let broken = "load_runs: the load generator failed: exit code 5; it said: broken";
    for (script, expected) in [
        ("echo broken >&2; exit 5", broken),
        ("true", "result: the load generator printed no result"),
        ("\"$0\" load tcp \"$@\" | sed -u 's/\"answered\":/\"answered\":1/'", "result: "),
        ("\"$0\" load tcp \"$@\"; sleep 60", "load_runs: the load generator was not done after"),
    ] {
        let (found, output) = voids(&experiment(&[("a", &clean), ("b", &clean)], Some(script)));
        for subject in ["a", "b"] {
            let start = format!("{subject}: {expected}");
            assert!(found.iter().any(|it| it.starts_with(&start)), "{start}: {found:#?}");
        }
        assert_eq!(output.status.code(), Some(1), "nothing could be measured: {output:?}");
    }
}

/// One that exits with 143 after SIGTERM, as a JVM does, was run twice and then no more.
fn a_foreign_server_that_ends_badly_has_all_its_pairs() {
    let script = format!("trap 'kill $!; exit 143' TERM; {SERVE} >&2 & wait");
    let text = experiment(&[("a", &script), ("b", &script)], None)
        .replace("\"json\"", "\"tcp\"")
        .replace("pairs = 1", "pairs = 3")
        .replace("window_s = 2.0", "window_s = 0.3");
    let said = String::from_utf8_lossy(&voids(&text).1.stdout).into_owned();
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("3 pairs, 6 needed") || said.contains("of 3 pairs left out"), "{said}");
}

/// The exit code was 0, and nothing said why.
fn what_cannot_be_calibrated_is_a_failure_with_its_reason() {
    let text = experiment(&[("a", "echo cheese >&2; exit 3")], None)
        .replace("[128]", "[128]\nload_percent = [25]");
    let out = tempfile::tempdir().unwrap();
    let file = out.path().join("faults.toml");
    fs::write(&file, text).unwrap();
    let output = lab(&file, &out.path().join("bundles"), &[]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("it said: cheese"), "{output:?}");
}

/// It was not replaced, and rows stayed unclear.
fn a_pair_that_a_check_excludes_is_replaced_while_there_are_spare_ones() {
    let clean = format!("exec {SERVE}");
    let late = "\"$0\" load tcp \"$@\" | sed -u 's/\"schedule_lag_us\":{[^}]*}/\"schedule_lag_us\":\
                {\"p50\":1.0,\"p99\":9e6,\"max\":9e6}/;s/\"saturated\":false/\"saturated\":true/'";
    let text = experiment(&[("a", &clean), ("b", &clean)], Some(late))
        .replace("pairs = 1", "pairs = 1\nspare_pairs = 2")
        .replace("window_s = 2.0", "window_s = 0.3")
        .replace("[128]", "[128]\nrate_per_s = [100]");
    let said = String::from_utf8_lossy(&voids(&text).1.stdout).into_owned();
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("3 of 3 pairs left out"), "{said}");
}

/// `quick` at full load, which takes far longer than the test.
fn long(out: &Path) -> Command {
    let options =
        ["--pairs", "100", "--window", "0.3", "--warmup", "0.1", "--set", "load_percent=0"];
    lab(Path::new("quick"), out, &options)
}

/// Starts it, and waits for its third run; returns its bundle and the processes of the next run.
fn started(out: &Path) -> (Child, PathBuf, Vec<i32>) {
    let lab = long(out).spawn().unwrap();
    let mut bundle = PathBuf::new();
    wait_until("there are runs", || {
        let bundles = fs::read_dir(out).into_iter().flatten().flatten();
        bundle = bundles.map(|entry| entry.path()).next().unwrap_or_default();
        let text = fs::read_to_string(bundle.join("runs.jsonl")).unwrap_or_default();
        text.lines().count() >= 3
    });
    assert!(bundle.join("work/root/1024.bin").exists());
    let mut children: Vec<i32> = Vec::new();
    wait_until("a run is on", || {
        let tasks = fs::read_dir(format!("/proc/{}/task", lab.id())).unwrap().flatten();
        let of_task = |task: fs::DirEntry| fs::read_to_string(task.path().join("children"));
        let lists = tasks.flat_map(of_task).collect::<Vec<_>>().join(" ");
        children = lists.split_whitespace().flat_map(str::parse).collect();
        children.len() >= 2
    });
    (lab, bundle, children)
}

fn are_gone(pids: &[i32]) -> bool {
    let lives = |pid: &i32| {
        fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
    };
    !pids.iter().any(lives)
}

fn an_interrupted_lab_leaves_a_valid_partial_bundle_and_no_process() {
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let out = tempfile::tempdir().unwrap();
        let (mut lab, bundle, children) = started(out.path());
        kill(Pid::from_raw(lab.id() as i32), signal).unwrap();
        assert_eq!(lab.wait().unwrap().code(), Some(code));
        assert!(are_gone(&children) && !bundle.join("work").exists());
        let verification = verify(&bundle).unwrap();
        assert!(verification.holds() && verification.runs >= 3, "{verification}");
        let mut said = String::new();
        lab.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(said.contains("interrupted by signal"), "{said}");
    }
    // A second signal stops it at once. Both may be delivered together, or the first may already have ended it.
    let out = tempfile::tempdir().unwrap();
    let (mut lab, _, children) = started(out.path());
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        kill(Pid::from_raw(lab.id() as i32), signal).unwrap();
    }
    assert!(matches!(lab.wait().unwrap().code(), Some(130 | 143)));
    wait_until("all are gone", || are_gone(&children));
}

fn a_killed_lab_takes_everything_with_it_and_its_bundle_can_be_read() {
    let out = tempfile::tempdir().unwrap();
    let (mut lab, bundle, children) = started(out.path());
    lab.kill().unwrap();
    lab.wait().unwrap();
    wait_until("all are gone", || are_gone(&children));
    // A line that was being written.
    let path = bundle.join("runs.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let whole = text.rfind('\n').map_or(0, |end| end + 1);
    fs::write(&path, text[..whole].to_owned() + "{\"schema\":\"twinring.lab.ru").unwrap();
    let verification = verify(&bundle).unwrap();
    assert!(verification.holds() && verification.notes.len() == 2, "{verification}");
    rerender(&bundle).unwrap();
    assert!(fs::read_to_string(bundle.join("report.html")).unwrap().contains("unfinished"));
    assert!(verify(&bundle).unwrap().holds());
}

fn a_full_disk_is_an_error_and_what_was_written_stays_readable() {
    // A small file system in a mount namespace of this thread only.
    let worker = thread::spawn(|| {
        use nix::mount::{MsFlags, mount};
        let flags = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        let entered = unshare(CloneFlags::CLONE_NEWNS)
            .and_then(|()| mount(None::<&str>, "/", None::<&str>, flags, None::<&str>));
        if let Err(errno) = entered {
            testing::needs("root", format_args!("no mount namespace: {errno}"));
        }
        let out = tempfile::tempdir().unwrap();
        let disk = |size, flags| mount(Some("none"), out.path(), Some("tmpfs"), flags, Some(size));
        // Room for the first bundle.json and a few runs.
        disk("size=96k", MsFlags::empty()).unwrap();
        let output = long(out.path()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains("No space left"), "{output:?}");
        let bundle = bundle_in(out.path());
        let verification = verify(&bundle).unwrap();
        assert!(verification.holds() && verification.runs >= 1, "{verification}");
        let mut files = fs::read_dir(&bundle).unwrap().flatten();
        assert!(!files.any(|it| it.path().extension().is_some_and(|it| it == "draft")));
        // With space again, the rest of the bundle is made from the runs.
        disk("size=4m", MsFlags::MS_REMOUNT).unwrap();
        let rendered = rerender(&bundle).unwrap();
        assert!(rendered.summary.is_some_and(|summary| summary.runs == verification.runs));
        assert!(verify(&bundle).unwrap().holds() && bundle.join("report.html").exists());
    });
    worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// `quick` over TCP at full load, with more options.
const SMALL: [&str; 6] =
    ["quick", "--protocol", "tcp", "--set=connections=4", "--set=load_percent=0", "--set=bytes=8K"];

fn each_network_does_what_it_says_and_is_counted() {
    testing::needs_root("it makes networks");
    let arguments = [&SMALL[..], &["--net", "all", "--subject", "epoll"]].concat();
    let Measured { bundle, runs, .. } = Measured::take(&arguments, "0.6");
    let napi = bundle.networks.last().unwrap();
    let cpus = [&bundle.cpus.server, &bundle.cpus.client].map(|it| it.first());
    assert!(napi.napi_cpus == cpus && napi.server_rps == "0", "{napi:?}");
    for net in ["lo", "rps", "napi"] {
        // What others do at that moment can end a run early.
        let whole = |run: &&Value| run["cell"]["net"] == net && run["cpu"].is_object();
        let run = runs.iter().find(whole).unwrap_or_else(|| panic!("{net}: {runs:?}"));
        // A load generator may have ended by the last sample, and has no network then.
        let counts = &run["cpu"]["server_cpu"]["counts"];
        let counted = counts["tcp_retransmits"].is_u64() && counts["device_drops"] == 0;
        assert!(counted, "{net}: {counts}");
        for side in ["server_cpu", "client_cpu"] {
            let polled = run["cpu"][side]["counts"]["napi_threads_ns"].as_u64() > Some(0);
            assert_eq!(polled, net == "napi", "{net}: {}", run["cpu"]);
        }
        assert!(run["memory"]["server_at_end"]["peak_rss_bytes"].as_u64() > Some(1 << 20));
        assert!(run["memory"]["kernel_under_load"]["unreclaimable_slab_bytes"].as_u64() > Some(0));
    }
    for cell in bundle.summary.unwrap().cells {
        let void = cell.findings.iter().find(|it| it.effect == Effect::Void);
        // Steered packets are counted for the whole machine: on loopback those of others void it.
        assert!(void.is_none() || cell.cell.net == NetKind::Lo, "{}: {void:?}", cell.cell);
    }
    let devices = fs::read_dir("/sys/class/net").unwrap().flatten();
    let mut names = devices.map(|it| it.file_name().to_string_lossy().into_owned());
    assert!(!names.any(|it| it.len() == 9 && it.chars().skip(1).all(|c| c.is_ascii_hexdigit())));
}

fn a_network_that_cannot_be_had_is_an_error_that_says_so() {
    let is_root = nix::unistd::geteuid().is_root();
    if is_root {
        testing::needs_program("setpriv");
    }
    let out = tempfile::tempdir().unwrap();
    let run = |net: &str| {
        // Root without any capability has no right to make a namespace either.
        let without = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", TWINRING];
        let words = if is_root { &without[..] } else { &without[3..] };
        let mut lab = Command::new(words[0]);
        lab.args(&words[1..]).args(["lab", "run"]).args(SMALL).args(["--pairs", "1", "--net", net]);
        lab.args(["--busy", "--no-prices", "--out"]).arg(out.path().join(net)).output().unwrap()
    };
    let refused = run("rps");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("rps") && said.contains("unshare") && said.contains("EPERM"), "{said}");
    run("auto");
    let bundle = recomputed(&bundle_in(&out.path().join("auto"))).unwrap();
    assert!(bundle.network_fallback.as_ref().unwrap().contains("plain loopback"));
    let report = twinring_lab::markdown(&bundle);
    assert!(report.contains("plain loopback") && report.contains("on lo"), "{report}");
    // Ticks of 10 ms took the place of the idle clock, and nobody was told.
    assert_eq!(report.contains("ticks"), !is_root, "{report}");
}

fn a_peer_is_started_as_it_wants_it_and_a_missing_one_is_left_out() {
    let peers = tempfile::tempdir().unwrap();
    for (name, address) in [("floor-uring", "\"$2\""), ("joakimthun-epoll-echo", "0.0.0.0:6379")] {
        let arguments = format!("--listen {address} --allow any --engine epoll");
        script(peers.path(), name, &format!("exec '{TWINRING}' serve echo {arguments}"));
    }
    let subjects = ["epoll", "floor=floor-uring", "fixed=joakimthun-epoll", "frevib=frevib-uring"];
    let subjects = subjects.map(|name| ["--subject", name]).concat();
    let directory = peers.path().to_str().unwrap();
    let from = ["--peers", directory, "--net", "lo"];
    let Measured { bundle, runs, .. } =
        Measured::take(&[&SMALL[..], &from, &subjects].concat(), "0.6");
    let left_out: Vec<_> = bundle.not_run.iter().map(|it| (&*it.subject, &*it.why)).collect();
    assert!(
        matches!(left_out[..], [("frevib", why)] if why.contains("frevib-uring-echo")),
        "{left_out:?}"
    );
    let of = |subject: &str| runs.iter().find(|run| run["subject"] == subject).unwrap();
    let floor = of("floor");
    let file = peers.path().join("floor-uring").display().to_string();
    let cpu = bundle.cpus.server.to_string();
    // 8 KB are more than its small buffers take.
    let expected =
        json!([file, "--listen", floor["server_command"][2], "--pin", cpu, "--inc", "--split"]);
    assert_eq!(floor["server_command"], expected);
    assert!(of("fixed")["client_command"].to_string().contains(":6379"));
    assert!(runs.iter().all(|run| run["failures"] == json!([])), "{runs:?}");
    let program = bundle.programs.iter().find(|it| it.peer.as_deref() == Some("floor-uring"));
    let program = program.unwrap_or_else(|| panic!("{:?}", bundle.programs));
    assert_eq!((program.path.as_str(), program.sha256.as_ref().unwrap().len()), (&*file, 64));
    // Without anybody left it is an error, and no bundle of nothing.
    fs::write(peers.path().join("go-uring-echo"), "not a program").unwrap();
    let nobody = peers.path().join("nobody");
    let alone = ["--subject", "go-uring", "--out", nobody.to_str().unwrap()];
    let (code, said) = twinring(&[&["lab", "run"], &SMALL[..], &from, &alone].concat());
    assert!(said.contains("not executable") && said.contains("go-uring-echo"), "{said}");
    assert!(code == Some(1) && !nobody.exists(), "{said}");
}

fn nginx_is_configured_and_ends_well() {
    testing::needs_program("nginx");
    let cell = ["quick", "--protocol", "http", "--set", "connections=4", "--net", "lo"];
    let subjects = ["--subject", "epoll", "--subject", "nginx", "--subject", "other=nginx-read"];
    let full = ["--set", "load_percent=0"];
    let runs = Measured::take(&[&cell[..], &full, &subjects].concat(), "0.6").runs;
    let config = |subject: &str| {
        runs.iter().find(|it| it["subject"] == subject).unwrap()["server_config"].to_string()
    };
    assert!(config("nginx").contains("sendfile on;") && config("other").contains("sendfile off;"));
    // Its end after SIGTERM is clean: one process, with code 0.
    assert!(runs.iter().all(|run| run["failures"] == json!([])), "{runs:?}");
}
