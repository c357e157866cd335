//! What a server has given up once it is ready: tried from inside, by `--sandbox-check`, and looked
//! at from outside. That it can live without is shown by all other tests, in which the sandbox is
//! on, too: they fail when it has refused anything.

use crate::support::http::Site;
use crate::support::tls::Identity;
use crate::support::{Server, Signal, connect, ping, run, wait_until};
use serde_json::Value;
use std::collections::HashMap;
use testing::{Test, engine_tests, tests};

pub(crate) const TESTS: &[Test] = tests![
    wrong_parts_are_bad_arguments,
    feature_sets_that_differ_most_work_in_the_sandbox,
    a_root_that_needs_capabilities_is_an_error
];
pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![
    each_part_works_on_its_own,
    a_crash_ends_the_process,
    system_calls_files_addresses_and_rights_are_refused_from_inside,
    all_threads_are_filtered_and_without_rights,
    echo_and_reflector_become_another_user,
    root_with_another_group_has_no_capabilities
];

const PARTS: [&str; 5] = ["ring", "seccomp", "landlock", "no_new_privs", "capabilities"];

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
        let mut attempts = HashMap::new();
        let mut ready = Value::Null;
        for line in stdout.lines() {
            let line: Value = serde_json::from_str(line).expect("JSON lines");
            match line["event"].as_str() {
                Some("sandbox_check") => {
                    let name = line["attempt"].as_str().expect("a name").to_owned();
                    attempts.insert(name, line);
                }
                Some("ready") => ready = line,
                _ => {}
            }
        }
        assert!(!ready.is_null(), "{stderr}");
        Check { attempts, ready, code, stderr }
    }

    fn has(&self, part: &str) -> bool {
        self.ready["sandbox"][part]["on"].as_bool().expect("a part")
    }

    fn was_refused(&self, attempt: &str) -> bool {
        self.attempts[attempt]["refused"].as_bool().expect("an attempt")
    }
}

/// With these arguments the service uses everything it can.
fn services(site: &Site, identity: &Identity) -> Vec<Vec<String>> {
    let text = |text: &str| text.to_owned();
    let root = site.path().to_str().expect("UTF-8").to_owned();
    let log = site.path().join("access.log").to_str().expect("UTF-8").to_owned();
    let http = ["http", "--listen", "127.0.0.1:0", "--root"].map(text);
    let admin = ["--admin", "127.0.0.1:0", "--access-log"].map(text);
    let plain = [&http[..], std::slice::from_ref(&root)].concat();
    let all = [&plain[..], &admin, &[log], &identity.arguments()].concat();
    let echo = ["echo", "--listen", "127.0.0.1:0", "--workers", "2"].map(text).to_vec();
    let udp = ["udp", "--listen", "127.0.0.1:0", "--workers", "2"].map(text).to_vec();
    vec![echo, udp, plain, all]
}

fn borrowed(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}

fn system_calls_files_addresses_and_rights_are_refused_from_inside(engine: &str) {
    let (site, identity) = (Site::new(), Identity::new());
    for service in services(&site, &identity) {
        let check = Check::new(&[&borrowed(&service)[..], &["--engine", engine]].concat());
        assert_eq!(check.code, Some(0), "{engine} {service:?}: {}", check.stderr);
        assert_eq!(check.attempts.len(), 10);
        for (name, attempt) in &check.attempts {
            let parts = attempt["refused_by"].as_array().expect("parts");
            assert!(check.was_refused(name) || parts.is_empty(), "{engine}: {attempt}");
        }
        let on = PARTS.iter().filter(|part| check.has(part)).count();
        println!("{engine} {}: {on} parts, {} attempts", service[0], check.attempts.len());
        if check.has("seccomp") {
            for name in
                ["udp_socket", "tcp_connect", "disconnect_listener", "signal_parent", "execute"]
            {
                assert!(check.was_refused(name), "{engine} {service:?}: {name}");
            }
        }
        // Whether by the filter or, with a log to open, by Landlock alone.
        if check.has("landlock") {
            assert!(check.was_refused("open_elsewhere"), "{engine} {service:?}");
            assert!(check.was_refused("make_file_elsewhere"), "{engine} {service:?}");
        }
        assert!(!check.has("ring") || engine == "io_uring");
    }
}

fn each_part_works_on_its_own(engine: &str) {
    let site = Site::new();
    let root = site.path().to_str().expect("UTF-8");
    let check = |parts: &str| {
        Check::new(&[
            "http",
            "--listen",
            "127.0.0.1:0",
            "--root",
            root,
            "--engine",
            engine,
            "--sandbox",
            parts,
        ])
    };
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
        println!("{engine}: {part} by itself");
    }
}

fn wrong_parts_are_bad_arguments() {
    for wrong in ["rings", "off,ring", ""] {
        let (code, _, stderr) = run(&["serve", "echo", "--sandbox", wrong]);
        assert_eq!(code, Some(2), "{stderr}");
        assert!(stderr.contains("expected off, or some of ring, seccomp"), "{stderr}");
    }
}

/// Not one thread may be left out: each could do what the others are refused.
fn all_threads_are_filtered_and_without_rights(engine: &str) {
    let (site, identity) = (Site::new(), Identity::new());
    let log = site.path().join("access.log");
    let mut arguments = identity.arguments();
    let more = ["--workers", "3", "--stats", "60", "--admin", "127.0.0.1:0", "--access-log"];
    arguments.extend(more.map(str::to_owned));
    arguments.push(log.to_str().expect("UTF-8").to_owned());
    let server = Server::http(engine, site.path(), &borrowed(&arguments));
    let on = |part: &str| server.ready["sandbox"][part]["on"] == true;
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.pid())).expect("it runs");
    // One of the kernel's may have ended since it was listed.
    let statuses = tasks.filter_map(|task| {
        std::fs::read_to_string(task.expect("a task").path().join("status")).ok()
    });
    let statuses: Vec<String> = statuses.collect();
    // Main, three workers, signals, statistics, log, admin; kernel threads of rings aside.
    assert!(statuses.len() >= 8, "{}", statuses.len());
    for status in &statuses {
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).expect(name);
            line.split_whitespace().nth(1).expect("a value").to_owned()
        };
        let name = field("Name:");
        // Left over from the probe of SQPOLL; no code of ours runs on it.
        if name.starts_with("iou-") {
            continue;
        }
        assert!(!on("seccomp") || field("Seccomp:") == "2", "{engine} {name}");
        assert!(!on("no_new_privs") || field("NoNewPrivs:") == "1", "{engine} {name}");
        let none = "0".repeat(16);
        assert!(!on("capabilities") || field("CapPrm:") == none, "{engine} {name}");
        assert!(!on("capabilities") || field("CapEff:") == none, "{engine} {name}");
    }
    println!("{engine}: {} threads", statuses.len());
}

fn echo_and_reflector_become_another_user(engine: &str) {
    testing::needs_root("it changes users, mounts or networks");
    let user = ["--user", "65534", "--group", "65534", "--workers", "2"];
    for server in [Server::echo(engine, &user), Server::udp(engine, &user)] {
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid()));
        let status = status.expect("it runs");
        let ids = "65534\t65534\t65534\t65534";
        assert!(status.contains(&format!("Uid:\t{ids}")), "{status}");
        assert!(status.contains(&format!("Gid:\t{ids}")), "{status}");
        if server.ready["service"] == "echo" {
            ping(&connect(server.address()), b"still here");
        }
        server.terminate();
    }
}

/// Root that took a group and nothing else kept all its capabilities, and had less with no option at all.
fn root_with_another_group_has_no_capabilities(engine: &str) {
    testing::needs_root("it changes users, mounts or networks");
    for server in
        [Server::echo(engine, &["--group", "65533"]), Server::udp(engine, &["--group", "65533"])]
    {
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid()));
        let status = status.expect("it runs");
        assert!(status.contains("Gid:\t65533\t65533\t65533\t65533"), "{status}");
        let groups = status.lines().find_map(|line| line.strip_prefix("Groups:"));
        assert_eq!(groups.map(str::trim), Some("65533"));
        if server.ready["sandbox"]["capabilities"]["on"] == true {
            assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
            assert!(status.contains("CapPrm:\t0000000000000000"), "{status}");
        }
        server.terminate();
    }
}

fn feature_sets_that_differ_most_work_in_the_sandbox() {
    work_in_the_sandbox(&["multishot=off", "sqpoll_idle_ms=50"]);
}

/// Each feature set has its own operations, flags and registrations: a list that lacked one would
/// show here, as an echo that does not come.
fn work_in_the_sandbox(sets: &[&str]) {
    let site = Site::new();
    site.write("large.bin", &crate::support::pattern(1, 300_000));
    for set in sets.iter().copied() {
        let options = ["--uring", set];
        let (code, _, refusal) = run(&[
            "serve",
            "echo",
            "--listen",
            "127.0.0.1:0",
            "--engine",
            "io_uring",
            "--uring",
            set,
            "--sandbox",
            "off",
            "--sandbox-check",
        ]);
        if code != Some(0) {
            testing::needs("io_uring", format_args!("{set}: {refusal}"));
        }
        let echo = Server::echo("io_uring", &options);
        let peer = connect(echo.address());
        (1..50).for_each(|number| ping(&peer, &crate::support::pattern(number, 3000)));
        echo.terminate();
        let udp = Server::udp("io_uring", &options);
        let client = crate::support::datagrams::client(udp.address());
        (1..50).for_each(|number| {
            crate::support::datagrams::reflected(&client, &crate::support::pattern(number, 1000));
        });
        udp.terminate();
        for send in ["sendfile", "read"] {
            let http = Server::http(
                "io_uring",
                site.path(),
                &["--uring", set, &format!("server.send = '{send}'")],
            );
            let mut peer = connect(http.address());
            let request = b"GET /large.bin HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
            std::io::Write::write_all(&mut peer, request).expect("room");
            let answer = crate::support::read_to_end(&peer).expect("an answer");
            assert!(answer.starts_with(b"HTTP/1.1 200"), "{set} {send}");
            assert!(answer.ends_with(&crate::support::pattern(1, 300_000)), "{set} {send}");
            http.terminate();
        }
        println!("{set}: echo, datagrams and files");
    }
}

/// The standard library's handler for this signal restores its default effect and returns. If that
/// is refused, it is called for the same fault again, for ever.
fn a_crash_ends_the_process(engine: &str) {
    let server = Server::echo(engine, &[]);
    let peer = connect(server.address());
    server.signal(Signal::SIGSEGV);
    wait_until("the handler gave up", || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid()));
        let status = status.expect("it runs");
        let caught = status.lines().find(|line| line.starts_with("SigCgt:")).expect("a mask");
        let caught = caught.split_whitespace().nth(1).expect("a mask");
        // Signal 11 is bit 10.
        u64::from_str_radix(caught, 16).expect("a mask") & 1 << 10 == 0
    });
    ping(&peer, b"a signal from outside is no fault");
    server.signal(Signal::SIGSEGV);
    assert_eq!(server.wait().code, None, "{engine}: not ended by the signal");
}

/// A tree that root reads only by its capabilities would cause errors once they are dropped: that
/// is reported at the start.
fn a_root_that_needs_capabilities_is_an_error() {
    testing::needs_root("it changes users, mounts or networks");
    let site = Site::new();
    std::os::unix::fs::chown(site.path(), Some(65534), Some(65534)).expect("root");
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(site.path(), private).expect("root");
    let root = site.path().to_str().expect("UTF-8");
    let serve = ["serve", "http", "--listen", "127.0.0.1:0", "--root", root];
    let (code, _, stderr) = run(&[&serve[..], &["--sandbox", "capabilities"]].concat());
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("may not search --root") && stderr.contains("--user"), "{stderr}");
    let others = ["--sandbox", "seccomp,landlock,no_new_privs"];
    let server = Server::http("epoll", site.path(), &others);
    assert_eq!(server.ready["sandbox"]["capabilities"]["on"], false);
}
