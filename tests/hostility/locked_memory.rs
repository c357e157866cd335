//! Little or no locked memory (RLIMIT_MEMLOCK), without the capability that passes it over: rings are
//! charged to it since Linux 6.14, and pages that are sent without a copy are on every kernel.

use crate::support::*;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

pub(crate) const TESTS: &[Test] =
    tests![a_service_can_be_restarted_at_once, rights_that_are_dropped_later_do_not_count];

/// The command, where every user may execute it.
fn binary_for_all() -> &'static Path {
    static COPY: OnceLock<(PathBuf, Option<tempfile::TempDir>)> = OnceLock::new();
    let (path, _) = COPY.get_or_init(|| {
        let built = Path::new(TWINRING);
        let mut trial = Command::new(built);
        trial.arg("--version").uid(OTHERS).gid(OTHERS).stdout(Stdio::null());
        if trial.status().is_ok() {
            return (built.to_owned(), None);
        }
        let directory = tempfile::tempdir().expect("a directory for temporary files");
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(directory.path(), mode).expect("a directory of ours");
        let copy = directory.path().join("twinring");
        fs::copy(built, &copy).expect("room for the command");
        (copy, Some(directory))
    });
    path
}

/// Users without other processes: rings are charged to a user, and released some time after they
/// are closed.
const OTHERS: u32 = 61_000;

fn somebody_new() -> u32 {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    OTHERS + std::process::id() % 100 * 40 + COUNT.fetch_add(1, Relaxed) % 40
}

/// Whether rings are charged on this kernel.
fn are_rings_charged() -> bool {
    let user = somebody_new();
    let mut probe = program_limited(binary_for_all(), "-l 0");
    probe.uid(user).gid(user);
    let (_, stdout, stderr) = run_to_its_end(probe.args(["probe", "--json"]));
    let line: Value = serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("{stderr}"));
    line["refusal"]["layer"] == "memlock"
}

/// The kernel releases the memory charged for rings late. A restarted service, with a limit for as
/// many rings as it has workers, found no memory for them and failed.
fn a_service_can_be_restarted_at_once() {
    testing::needs_root("it needs a user whose locked memory nobody else uses");
    let user = somebody_new();
    let start = || {
        let mut command = program_limited(binary_for_all(), "-l 430");
        command.uid(user).gid(user);
        command.args(["serve", "echo", "--json", "--listen", "127.0.0.1:0"]);
        command.args(["--engine", "io_uring", "--workers", "2"]);
        Server::spawn(command)
    };
    for _ in 0..20 {
        // It is killed.
        drop(start());
    }
    ping(&connect(start().address()), &pattern(1, 5000));
}

/// Root ignored the limit when it probed the rings, but not when it created them, after it had
/// dropped its capabilities: `auto` failed where it should have used epoll.
fn rights_that_are_dropped_later_do_not_count() {
    testing::needs_root("it changes users, mounts or networks");
    let charged = are_rings_charged();
    let user = somebody_new().to_string();
    for rights in [&[][..], &["--user", &user, "--group", &user]] {
        for (engine, sandbox) in [("auto", None), ("auto", Some("off")), ("io_uring", None)] {
            let mut command = limited("-l 64");
            command.args(["serve", "echo", "--json", "--listen", "127.0.0.1:0"]);
            command.args(["--engine", engine]).args(rights);
            command.args(sandbox.iter().flat_map(|parts| ["--sandbox", parts]));
            let keeps_rights = sandbox.is_some() && rights.is_empty();
            if engine == "io_uring" && charged {
                assert_ended(&mut command, 1, &["RLIMIT_MEMLOCK", "ulimit -l"]);
                continue;
            }
            let server = Server::spawn(command);
            let taken = server.ready["engine"].as_str().expect("a name").to_owned();
            let possible = !charged || keeps_rights;
            assert_eq!(taken, if possible { "io_uring" } else { "epoll" }, "{}", server.ready);
            ping(&connect(server.address()), &pattern(1, 5000));
            assert_eq!(server.terminate().code, Some(0));
        }
    }
}
