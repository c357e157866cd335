//! The messages of command and library where io_uring is refused. The refusals are real: seccomp
//! filters and limits, applied to a thread whose children inherit them.

mod support;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};
use std::os::unix::process::CommandExt;
use std::sync::{Mutex, PoisonError};
use support::*;

const TESTS: &[Test] = tests![
    the_table_has_a_verdict_first_and_agrees_with_json,
    seccomp_is_named_with_its_fix_for_any_errno_and_call,
    serve_reports_the_reason_and_falls_back_only_by_default,
    memlock_is_named_where_rings_are_charged_to_it,
    exhausted_descriptors_are_an_error_and_not_a_reason_to_fall_back,
    prices_are_positive_inside_their_intervals_and_documented,
    refused_calls_are_named_with_a_fix,
    cpus_that_cannot_be_measured_are_refused_with_those_that_can,
];

fn main() -> std::process::ExitCode {
    testing::run(&[TESTS])
}

const EVERY_CALL: [i64; 3] =
    [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];

/// Runs `test` on a thread of its own, which `prepare` has changed, and the processes that it starts.
fn apart<R: Send>(prepare: impl FnOnce() + Send, test: impl FnOnce() -> R + Send) -> R {
    let both = || {
        prepare();
        test()
    };
    thread::scope(|scope| scope.spawn(both).join().unwrap())
}

/// Runs `test` where `calls` answer `errno`.
fn forbidding<R: Send>(calls: &[i64], errno: i32, test: impl FnOnce() -> R + Send) -> R {
    let arch = TargetArch::try_from(std::env::consts::ARCH).unwrap();
    let rules = calls.iter().map(|call| (*call, Vec::new())).collect();
    let answer = SeccompAction::Errno(errno as u32);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, answer, arch).unwrap();
    let program: BpfProgram = filter.try_into().unwrap();
    // Also sets no_new_privs, for this thread alone.
    apart(move || seccompiler::apply_filter(&program).unwrap(), test)
}

/// Runs `test` where processes have no CAP_IPC_LOCK.
fn without_ipc_lock<R: Send>(test: impl FnOnce() -> R + Send) -> R {
    use caps::{CapSet, Capability, drop, has_cap};
    let prepare = || {
        // Without CAP_SETPCAP there is no privilege to lose either.
        if has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP).unwrap() {
            drop(None, CapSet::Bounding, Capability::CAP_IPC_LOCK).unwrap();
        }
    };
    apart(prepare, test)
}

/// The line of `probe --json`.
fn json(command: &mut Command) -> Value {
    let (code, stdout, stderr) = run_to_its_end(command.args(["probe", "--json"]));
    assert_eq!((code, stdout.lines().count()), (Some(0), 1), "{stderr}");
    let line: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((&line["event"], &line["schema"]), (&"probe".into(), &"twinring.probe/1".into()));
    line
}

fn the_table_has_a_verdict_first_and_agrees_with_json() {
    let line = json(&mut twinring());
    let (_, text, _) = run(&["probe"]);
    assert!(text.starts_with("io_uring: ") && !text.contains('\x1b'), "{text:?}");
    for section in ["engines", "limits"] {
        assert!(text.lines().any(|line| line == section), "{section} in {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    if line["verdict"]["state"] == "refused" {
        assert!(line["chosen"].is_null() && !line["refusal"].is_null());
        return;
    }
    assert!(text.starts_with(line["verdict"]["text"].as_str().unwrap()), "{text}");
    for feature in line["uring"]["features"].as_array().unwrap() {
        let allowed = if feature["refusal"].is_null() { "yes" } else { "no" };
        let name = feature["kernel_name"].as_str().unwrap();
        let row = text.lines().map(str::trim).find(|line| line.contains(name)).unwrap();
        assert!(row.starts_with(allowed), "{row}");
    }
    assert_eq!(line["chosen"]["sq_entries"], 512);
}

fn seccomp_is_named_with_its_fix_for_any_errno_and_call() {
    // A sysctl would be named first.
    testing::needs_io_uring();
    let [setup, enter, register] = EVERY_CALL;
    for (calls, errno, name) in [
        (&EVERY_CALL[..], libc::EPERM, "io_uring"),
        (&EVERY_CALL, libc::EACCES, "io_uring"),
        (&EVERY_CALL, libc::ENOSYS, "io_uring"),
        (&[setup], libc::EPERM, "io_uring_setup"),
        (&[enter], libc::EPERM, "io_uring_enter"),
        (&[register], libc::EPERM, "io_uring_register"),
    ] {
        let (table, line) = forbidding(calls, errno, || (run(&["probe"]).1, json(&mut twinring())));
        assert!(table.starts_with("io_uring: refused by seccomp: "), "{table}");
        assert_eq!(line["verdict"]["state"], "refused");
        assert_eq!(line["refusal"]["layer"], "seccomp", "{line}");
        assert_eq!(line["environment"]["seccomp_filter"], true);
        assert!(line["refusal"]["what"].as_str().unwrap().contains(name), "{line}");
        let fix = line["refusal"]["fix"].as_str().unwrap();
        assert!(fix.contains("io_uring_setup, io_uring_enter and io_uring_register"), "{fix}");
    }
}

fn serve_reports_the_reason_and_falls_back_only_by_default() {
    let serve = ["serve", "echo", "--listen", "127.0.0.1:0", "--sandbox-check", "--json"];
    let asked = [&serve[..], &["--engine", "io_uring"]].concat();
    forbidding(&EVERY_CALL, libc::EPERM, || {
        assert_ended(twinring().args(&asked), 1, &["seccomp", "fix: "]);
    });
    // By default it runs on epoll, and says why in one line.
    let (_, text, _) = forbidding(&EVERY_CALL, libc::ENOSYS, || run(&serve));
    let mut lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let ready = lines.find(|line| line["event"] == "ready").unwrap();
    assert_eq!(ready["engine"], "epoll");
    let why = ready["why_not"].as_str().unwrap();
    assert!(why.contains("seccomp") && why.contains("fix: ") && !why.contains('\n'), "{why}");
}

fn memlock_is_named_where_rings_are_charged_to_it() {
    testing::needs_io_uring();
    // 64 KiB hold the small rings of the probe, 0 KiB none.
    for kib in [64, 0] {
        let line = without_ipc_lock(|| json(&mut limited(&format!("-l {kib}"))));
        assert_eq!(line["environment"]["memlock_bytes"]["soft"], kib * 1024);
        assert_eq!(line["environment"]["cap_ipc_lock"], false);
        if line["uring"]["memlock_charged"] == false {
            assert_eq!(line["verdict"]["state"], "best", "{line}");
            continue;
        }
        assert_eq!(line["refusal"]["layer"], "memlock", "{line}");
        let fix = line["refusal"]["fix"].as_str().unwrap();
        assert!(fix.contains("ulimit -l 2") && fix.contains("LimitMEMLOCK="), "{fix}");
    }
}

fn exhausted_descriptors_are_an_error_and_not_a_reason_to_fall_back() {
    testing::needs_io_uring();
    // Room for one ring or one file, and no more.
    let line = json(&mut limited("-n 4"));
    assert_eq!(line["refusal"]["layer"], "resources", "{line}");
}

/// Measuring keeps two CPUs busy for seconds: one at a time.
static MEASURING: Mutex<()> = Mutex::new(());

/// The price list of the command, run as user nobody if this is root.
fn measured() -> Value {
    let _alone = MEASURING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut command = twinring();
    if nix::unistd::geteuid().is_root() {
        command.uid(65534).gid(65534);
    }
    let (_, stdout, stderr) = run_to_its_end(command.args(["probe", "--measure", "--json"]));
    let mut line: Value = serde_json::from_str(&stdout).expect(&stderr);
    line["prices"].take()
}

/// Prices that every machine can measure, unless it is so busy that fewer than six rounds fit into
/// the time.
fn assert_measured(prices: &Value, name: &str) {
    let price = &prices[name];
    assert!(price["median"].is_number() || price["unavailable"] == "too little time", "{price}");
}

fn prices_are_positive_inside_their_intervals_and_documented() {
    let prices = measured();
    let documented = include_str!("../docs/json.md");
    for (name, price) in prices.as_object().unwrap() {
        assert!(documented.contains(&format!("\"{name}\"")), "{name}");
        if !name.ends_with("_ns") {
            continue;
        }
        if let Some(why) = price["unavailable"].as_str() {
            assert!(!why.is_empty(), "{name}");
            continue;
        }
        let [low, median, high] = ["low", "median", "high"].map(|it| price[it].as_f64().unwrap());
        assert!(0.0 < low && low <= median && median <= high && high < 1e9, "{name}: {price}");
    }
    assert_measured(&prices, "syscall_ns");
    assert_measured(&prices, "wakeup_ns");
}

fn refused_calls_are_named_with_a_fix() {
    let prices = forbidding(&[libc::SYS_membarrier], libc::EPERM, measured);
    if prices["cpus"].as_array().unwrap().len() == 2 {
        let why = prices["notification_busy_ns"]["unavailable"].as_str().unwrap();
        assert!(why.contains("membarrier(2)"), "{why}");
    }
    assert_measured(&prices, "syscall_ns");
}

fn cpus_that_cannot_be_measured_are_refused_with_those_that_can() {
    for (cpus, told) in [
        ("0", "expected two CPUs"),
        ("0,99999", "neither a CPU nor a range"),
        ("0,0", "CPU 0 is given twice"),
        ("0,1023", "choose two of ["),
    ] {
        assert_ends(&format!("probe --measure --cpus {cpus}"), 2, &[told]);
    }
    assert_ends("probe --cpus 0,1", 2, &["--measure"]);
}
