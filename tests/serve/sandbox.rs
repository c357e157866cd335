//! What a server has given up once it is ready: tried from inside, by `--sandbox-check`, and looked
//! at from outside. That it can live without is shown by all other tests, in which the sandbox is
//! on, too: they fail when it has refused anything.

use crate::support::http::{Site, ask, get};
use crate::support::tls::Identity;
use crate::support::*;

pub(crate) const TESTS: &[Test] = tests![
    feature_sets_that_differ_most_work_in_the_sandbox;
    engines:
    system_calls_files_addresses_and_rights_are_refused_from_inside,
    each_part_works_on_its_own,
    all_threads_are_filtered_and_without_rights,
    servers_become_another_user_or_group_without_capabilities,
    a_crash_ends_the_process
];

pub(crate) const PARTS: [&str; 5] = ["ring", "seccomp", "landlock", "no_new_privs", "capabilities"];

/// The attempts of `--sandbox-check` by name, the ready line, exit code and standard error.
struct Check {
    attempts: HashMap<String, Value>,
    ready: Value,
    code: Option<i32>,
    stderr: String,
}

impl Check {
    fn new(arguments: &[&str]) -> Check {
        let arguments = [&["serve"], arguments, &["--json", "--sandbox-check"]].concat();
        let (code, stdout, stderr) = run(&arguments);
        let lines = stdout.lines().map(|line| serde_json::from_str(line).expect("JSON lines"));
        let lines: Vec<Value> = lines.collect();
        let of = |event: &'static str| lines.iter().filter(move |line| line["event"] == event);
        let named = |line: &Value| (line["attempt"].as_str().expect("a name").into(), line.clone());
        let ready = of("ready").next().expect(&stderr).clone();
        Check { attempts: of("sandbox_check").map(named).collect(), ready, code, stderr }
    }

    fn has(&self, part: &str) -> bool {
        self.ready["sandbox"][part]["on"].as_bool().expect("a part")
    }

    fn was_refused(&self, attempt: &str) -> bool {
        self.attempts[attempt]["refused"].as_bool().expect("an attempt")
    }
}

fn system_calls_files_addresses_and_rights_are_refused_from_inside(engine: &str) {
    let (site, identity) = (Site::new(), Identity::new());
    let (root, log) = (site.file("."), site.file("access.log"));
    // With the last of these arguments the service uses everything it can.
    let all = ["--root", &root, "--admin", "127.0.0.1:0", "--access-log", &log];
    let all = [&all[..], &identity.arguments()].concat();
    for (service, more) in
        [("echo", &["--workers", "2"][..]), ("udp", &[]), ("http", &all[..2]), ("http", &all)]
    {
        let base = [service, "--listen", "127.0.0.1:0", "--engine", engine];
        let check = Check::new(&[&base[..], more].concat());
        assert_eq!(check.code, Some(0), "{engine} {service}: {}", check.stderr);
        assert_eq!(check.attempts.len(), 10);
        for (name, attempt) in &check.attempts {
            let parts = attempt["refused_by"].as_array().expect("parts");
            assert!(check.was_refused(name) || parts.is_empty(), "{engine}: {attempt}");
        }
        let by_filter =
            ["udp_socket", "tcp_connect", "disconnect_listener", "signal_parent", "execute"];
        // Whether by the filter or, with a log to open, by Landlock alone.
        let by_landlock = ["open_elsewhere", "make_file_elsewhere"];
        for (part, names) in [("seccomp", &by_filter[..]), ("landlock", &by_landlock)] {
            let is_refused = names.iter().all(|name| check.was_refused(name));
            assert!(!check.has(part) || is_refused, "{engine} {service}: {part}");
        }
        assert!(!check.has("ring") || engine == "io_uring");
    }
}

fn each_part_works_on_its_own(engine: &str) {
    let site = Site::new();
    let http = ["http", "--listen", "127.0.0.1:0", "--root", &site.file("."), "--engine", engine];
    let check = |parts: &str| Check::new(&[&http[..], &["--sandbox", parts]].concat());
    let all = Check::new(&["echo", "--listen", "127.0.0.1:0", "--engine", engine]);
    let off = check("off");
    assert!(PARTS.iter().all(|part| !off.has(part)));
    assert!(!off.was_refused("udp_socket") && !off.was_refused("open_elsewhere"));
    assert_eq!((off.code, off.stderr.contains("refused")), (Some(0), false));
    for part in PARTS.into_iter().filter(|part| all.has(part)) {
        let alone = check(part);
        assert_eq!(alone.code, Some(0));
        assert!(alone.has(part), "{engine} {part}");
        // Filters and Landlock are taken only with no_new_privs.
        let others = PARTS.iter().filter(|other| **other != part && **other != "no_new_privs");
        assert!(others.into_iter().all(|other| !alone.has(other)), "{engine} {part}");
        match part {
            "seccomp" => assert!(alone.was_refused("udp_socket")),
            "landlock" => {
                assert!(alone.was_refused("open_elsewhere") && alone.was_refused("execute"));
                assert!(!alone.was_refused("udp_socket"), "Landlock knows TCP only");
            }
            "capabilities" => assert!(alone.was_refused("keep_capabilities")),
            "no_new_privs" => assert!(alone.was_refused("gain_privileges")),
            _ => assert!(!alone.was_refused("udp_socket")),
        }
    }
}

/// Not one thread may be left out: each could do what the others are refused.
fn all_threads_are_filtered_and_without_rights(engine: &str) {
    let (site, identity) = (Site::new(), Identity::new());
    let more = ["--workers", "3", "--stats", "60", "--admin", "127.0.0.1:0"];
    let log = ["--access-log", &site.file("access.log")];
    let arguments = [&identity.arguments()[..], &more, &log].concat();
    let server = Server::http(engine, site.path(), &arguments);
    let on = |part: &str| server.ready["sandbox"][part]["on"] == true;
    let statuses = server.threads();
    // Main, three workers, signals, statistics, log, admin; kernel threads of rings aside.
    assert!(statuses.len() >= 8, "{}", statuses.len());
    // Left over from the probe of SQPOLL; no code of ours runs on it.
    for status in statuses.iter().filter(|status| !field_of(status, "Name:").starts_with("iou-")) {
        let none = "0".repeat(16);
        for (part, field, value) in [
            ("seccomp", "Seccomp:", "2"),
            ("no_new_privs", "NoNewPrivs:", "1"),
            ("capabilities", "CapPrm:", &none),
            ("capabilities", "CapEff:", &none),
        ] {
            assert!(!on(part) || field_of(status, field) == value, "{engine} {part}: {status}");
        }
    }
}

/// Root that took a group and nothing else kept all its capabilities, and had less with no option at all.
fn servers_become_another_user_or_group_without_capabilities(engine: &str) {
    testing::needs_root("it changes users, mounts or networks");
    let user = &["--user", "65534", "--group", "65534", "--workers", "2"][..];
    for (arguments, uid) in [(user, "65534"), (&["--group", "65534"], "0")] {
        for server in [Server::echo(engine, arguments), Server::udp(engine, arguments)] {
            let mut expected = vec![("Uid:", [uid; 4].join(" ")), ("Gid:", ["65534"; 4].join(" "))];
            if uid != "0" || server.ready["sandbox"]["capabilities"]["on"] == true {
                expected.extend(["CapEff:", "CapPrm:"].map(|name| (name, "0".repeat(16))));
            }
            for (name, value) in expected {
                assert_eq!(server.status(name), value, "{name}");
            }
            assert!(!server.status("Groups:").split(' ').any(|group| group == "0"));
            if server.ready["service"] == "echo" {
                ping(&connect(server.address()), b"still here");
            }
            server.end();
        }
    }
}

/// Each feature set has its own operations, flags and registrations: a list that lacked one would
/// show here, as an echo that does not come.
fn feature_sets_that_differ_most_work_in_the_sandbox() {
    let site = Site::usual();
    for set in ["multishot=off", "sqpoll_idle_ms=50"] {
        let options = ["--uring", set];
        let off = ["--listen", "127.0.0.1:0", "--sandbox", "off", "--sandbox-check"];
        let mut off = serving(twinring(), "echo", "io_uring", &[&off[..], &options].concat());
        let (code, _, refusal) = run_to_its_end(&mut off);
        if code != Some(0) {
            testing::needs("io_uring", format_args!("{set}: {refusal}"));
        }
        let echo = Server::echo("io_uring", &options);
        let peer = connect(echo.address());
        (1..50).for_each(|number| ping(&peer, &pattern(number, 3000)));
        let udp = Server::udp("io_uring", &options);
        let client = datagrams::client(udp.address());
        (1..50).for_each(|number| datagrams::reflected(&client, &pattern(number, 1000)));
        for send in ["sendfile", "read"] {
            let send = format!("server.send = '{send}'");
            let http = Server::http("io_uring", site.path(), &["--uring", set, &send]);
            assert_same(&ask(&http, &get("/large.bin", "")).body, &pattern(7, 700_001));
            http.end();
        }
        drop(peer);
        echo.end();
        udp.end();
    }
}

/// The standard library's handler for this signal restores its default effect and returns. If that
/// is refused, it is called for the same fault again, for ever.
fn a_crash_ends_the_process(engine: &str) {
    let server = Server::echo(engine, &[]);
    let peer = connect(server.address());
    server.signal(Signal::SIGSEGV);
    wait_until("the handler gave up", || {
        // Signal 11 is bit 10.
        u64::from_str_radix(&server.status("SigCgt:"), 16).expect("a mask") & 1 << 10 == 0
    });
    ping(&peer, b"a signal from outside is no fault");
    server.signal(Signal::SIGSEGV);
    assert_eq!(server.wait().code, None, "{engine}: not ended by the signal");
}
