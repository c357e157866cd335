//! Servers under kernel.io_uring_disabled. A program of its own, and one test: the setting is that
//! of the whole machine, and no other test may run meanwhile.

mod support;

use std::io::Write;
use std::process::{Child, Command, Stdio};
use support::{Server, run};

const SETTING: &str = "/proc/sys/kernel/io_uring_disabled";

/// Puts the setting back when dropped, and also when this program is killed: a shell waits for the
/// end of its input.
struct Disabled {
    shell: Child,
}

impl Disabled {
    fn set(value: &str) -> Disabled {
        let before = std::fs::read_to_string(SETTING).expect("Linux 6.6 or newer");
        let script =
            format!("trap '' TERM INT HUP; cat > /dev/null; echo {} > {SETTING}", before.trim());
        let mut shell = Command::new("setsid");
        shell.args(["sh", "-c", &script]).stdin(Stdio::piped());
        let shell = shell.spawn().expect("a shell");
        std::fs::write(SETTING, value).expect("root may set it");
        Disabled { shell }
    }
}

impl Drop for Disabled {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        self.shell.wait().expect("the shell ends");
    }
}

/// Starts each server with these arguments; the engine each runs on, and why not the other.
fn engines(arguments: &[&str]) -> Vec<(String, String)> {
    let site = support::http::Site::usual();
    let started = [
        Server::echo("auto", arguments),
        Server::http("auto", site.path(), arguments),
        Server::udp("auto", arguments),
    ];
    let engine = |server: Server| {
        let text = |name: &str| server.ready[name].as_str().unwrap_or_default().to_owned();
        let told = (text("engine"), text("why_not"));
        assert_eq!(server.terminate().code, Some(0));
        told
    };
    started.map(engine).into()
}

/// At 1 the default failed with EPERM as root: the setting was read behind Landlock, the error taken
/// for a 0, and the capabilities dropped that the rings needed. With --user it failed too: the
/// capability that --user takes away was counted.
#[test]
fn servers_start_whatever_the_setting_is() {
    const SANDBOXES: [&[&str]; 6] = [
        &[],
        &["--sandbox", "off"],
        &["--sandbox", "landlock,no_new_privs"],
        &["--sandbox", "seccomp,no_new_privs,ring"],
        &["--sandbox", "capabilities"],
        &["--sandbox", "ring,seccomp,landlock,capabilities,no_new_privs"],
    ];
    // (root, and nobody else): rings for root, unless it was told to give its rights up.
    let disabled = Disabled::set("1");
    for sandbox in SANDBOXES {
        let keeps_rights = !sandbox.concat().contains("capabilities");
        for (engine, why_not) in engines(sandbox) {
            let expected = if keeps_rights { "io_uring" } else { "epoll" };
            assert_eq!(engine, expected, "{sandbox:?}: {why_not}");
            assert_eq!(why_not.contains("io_uring_disabled is 1"), !keeps_rights, "{why_not}");
        }
        for (engine, why_not) in engines(&[sandbox, &["--user", "nobody"]].concat()) {
            assert_eq!(engine, "epoll", "{sandbox:?} as nobody");
            assert!(why_not.contains("io_uring_disabled is 1"), "{why_not}");
        }
        for (engine, _) in engines(&[sandbox, &["--group", "nogroup"]].concat()) {
            assert_eq!(engine == "io_uring", keeps_rights, "{sandbox:?} in another group");
        }
    }
    let asked = ["serve", "echo", "--listen", "127.0.0.1:0", "--engine", "io_uring"];
    let (code, _, told) = run(&[&asked[..], &["--user", "nobody"]].concat());
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("io_uring_disabled is 1") && told.contains("fix:"), "{told}");
    drop(disabled);
    // Nobody at all.
    let disabled = Disabled::set("2");
    for (engine, why_not) in engines(&[]) {
        assert_eq!(engine, "epoll");
        assert!(why_not.contains("io_uring_disabled is 2"), "{why_not}");
    }
    drop(disabled);
    assert!(engines(&[]).iter().all(|(engine, _)| engine == "io_uring"));
    println!("{} sandboxes, as root, as nobody and in another group", SANDBOXES.len());
    std::io::stdout().flush().expect("standard output");
}
