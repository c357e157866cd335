//! Servers under kernel.io_uring_disabled. The setting applies to the whole machine: for some
//! seconds no process can create a ring. So this is a separate program with one test: cargo runs
//! one program after the other, and .config/nextest.toml makes cargo-nextest do the same with this
//! one. Run nothing else that needs io_uring beside it.

mod support;

use support::*;

const TESTS: &[Test] = tests![servers_start_with_every_setting];

fn main() -> std::process::ExitCode {
    testing::run(&[TESTS])
}

const SETTING: &str = "/proc/sys/kernel/io_uring_disabled";

/// Puts the setting back when dropped, and also when this program is killed: a shell in a session of its own
/// waits for the end of its input. Until it has ended a lock keeps other runs of this test waiting, which
/// would otherwise take our setting for the one to put back.
struct Setting {
    shell: Child,
}

impl Setting {
    fn set(value: &str) -> Setting {
        testing::needs_root("it sets kernel.io_uring_disabled");
        let lock = File::open(SETTING).expect("Linux 6.6 or newer");
        lock.lock().expect("the other run of this test ends");
        let before = fs::read_to_string(SETTING).expect("a setting");
        let script =
            format!("trap '' TERM INT HUP; cat > /dev/null; echo {} > {SETTING}", before.trim());
        let mut shell = Command::new("setsid");
        shell.args(["sh", "-c", &script]).stdin(Stdio::piped()).stdout(lock);
        let shell = shell.spawn().expect("a shell");
        fs::write(SETTING, value).expect("root may set it");
        Setting { shell }
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        self.shell.wait().expect("the shell ends");
    }
}

/// Starts each server with these arguments; the engine each runs on, and why not the other.
fn engines(arguments: &[&str]) -> [(String, String); 3] {
    let site = http::Site::usual();
    let started = [
        Server::echo("auto", arguments),
        Server::http("auto", site.path(), arguments),
        Server::udp("auto", arguments),
    ];
    started.map(|server| {
        let text = |name: &str| server.ready[name].as_str().unwrap_or_default().to_owned();
        let told = (text("engine"), text("why_not"));
        assert_eq!(server.terminate().code, Some(0));
        told
    })
}

/// At 1 the default failed with EPERM as root: the setting was read behind Landlock, the error taken
/// for a 0, and the capabilities dropped that the rings needed. With --user it failed too: the
/// capability that --user takes away was counted.
fn servers_start_with_every_setting() {
    let disabled = Setting::set("1");
    // As root, in another group, and as user nobody: rings for root only, unless it drops its rights.
    for (arguments, expected) in [
        (&[][..], "io_uring"),
        (&["--group", "nogroup"], "io_uring"),
        (&["--user", "nobody"], "epoll"),
        (&["--sandbox", "off"], "io_uring"),
        (&["--sandbox", "off", "--user", "nobody"], "epoll"),
        (&["--sandbox", "ring,seccomp,landlock,no_new_privs"], "io_uring"),
        (&["--sandbox", "capabilities"], "epoll"),
    ] {
        for (engine, why_not) in engines(arguments) {
            assert_eq!(engine, expected, "{arguments:?}: {why_not}");
            let is_told = why_not.contains("io_uring_disabled is 1");
            assert_eq!(is_told, expected == "epoll", "{why_not}");
        }
    }
    let asked = "serve echo --listen 127.0.0.1:0 --engine io_uring --user nobody";
    assert_ends(asked, 1, &["io_uring_disabled is 1", "fix:"]);
    drop(disabled);
    // No process at all.
    let disabled = Setting::set("2");
    for (engine, why_not) in engines(&[]) {
        assert_eq!(engine, "epoll");
        assert!(why_not.contains("io_uring_disabled is 2"), "{why_not}");
    }
    // Both engines cannot run, which is said once; the server serves.
    let server = Server::echo("both", &[]);
    assert_eq!((&server.ready["engine"], &server.ready["workers"]), (&"epoll".into(), &2.into()));
    let ended = server.terminate();
    assert_eq!((ended.code, &ended.last["engines"]), (Some(0), &Value::Null));
    let told = "--engine both: io_uring cannot be used";
    assert_eq!(ended.stderr.matches(told).count(), 1, "{}", ended.stderr);
    assert!(ended.stderr.contains("io_uring_disabled is 2"), "{}", ended.stderr);
    drop(disabled);
    let _everybody = Setting::set("0");
    assert!(engines(&[]).iter().all(|(engine, _)| engine == "io_uring"));
}
