//! `serve http` by configuration file, its `--check`, and the user that it becomes.

use crate::support::http::Is::*;
use crate::support::http::*;
use crate::support::tls::Identity;
use crate::support::*;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use testing::{Test, tests};

pub(crate) const TESTS: &[Test] = tests![
    the_command_line_overrides_the_file,
    all_errors_are_reported_with_their_lines,
    errors_without_a_key_are_reported_too,
    check_finds_the_errors_of_a_start_or_prints_ok,
    the_first_problems_are_printed_and_the_others_counted,
    the_example_is_complete_and_right,
    all_threads_become_the_user_and_go_on_serving,
    missing_rights_of_the_user_are_reported_at_the_start,
    root_without_a_user_is_warned_once_and_wrong_users_are_refused
];

const ENGINE: &str = "auto";
const EXAMPLE: &str = include_str!("../../deploy/twinring-http.toml");

/// Runs `serve http` with these arguments, which have to end it: exit code and standard error.
fn refused(arguments: &[&str]) -> (Option<i32>, String) {
    let (code, stdout, stderr) = run(&[&["serve", "http"], arguments].concat());
    assert_eq!(stdout, "", "{arguments:?}");
    (code, stderr)
}

fn configured(text: &str) -> Configured {
    Configured::new(Site::usual(), text)
}

fn the_command_line_overrides_the_file() {
    let configured = configured(
        r#"
        listen = "127.0.0.1:0"
        root = "ROOT"
        workers = 0x2
        index = ["no.html", "hello.txt"]
        max-header-bytes = 1_000
        header = ["*=X-One: 1", "*.txt=X-Two: 2"]
        engine = "epoll"
        json = false
    "#,
    );
    let path = configured.path();
    let config = ["--config", path.to_str().expect("UTF-8")];
    let serve = |more: &[&str]| {
        let mut command = twinring();
        command.args(["serve", "http", "--json"]).args(config).args(more);
        Server::spawn(command)
    };
    let server = serve(&["--workers", "1"]);
    assert_eq!(server.ready["workers"], 1);
    let (content, long) = ("0123456789abcdefghijklmnopqrstuvwxyz", "x".repeat(1000));
    check_http1(
        &server,
        &[
            (get("/", ""), 200, &[Text(content), Field("x-one", "1"), Field("x-two", "2")]),
            (get("/", &format!("X: {long}\r\n")), 431, &[]),
        ],
    );
    server.end();
    // A list on the command line takes the place of the one in the file.
    let server = serve(&["--header", "*=X-Three:3", "--index", "large.bin"]);
    assert_eq!(server.ready["workers"], 2);
    assert_eq!(server.ready["engine"], "epoll");
    check_both(
        &server,
        &[
            (get("/hello.txt", ""), 200, &[Without("x-one"), Field("x-three", "3")]),
            (get("/", ""), 200, &[Length(700_001)]),
        ],
    );
}

fn all_errors_are_reported_with_their_lines() {
    let text = r#"listn = "127.0.0.1:0"
root = "/no/such/directory"
workers = "two"
max-requests = 0
engine = "kqueue"
index = [1]
json = "yes"
idle-timeout = 10
header = ["*=Date: x", "*=A: b"]
check = true
precompressed = ["lz4"]
[table]
[[host]]
root = "ROOT"
[[host]]
names = ["a:80", 5]
roots = "ROOT"
workers = 3
[[host]]
names = []
root = "/no/such/host"
"#;
    let configured = configured(text);
    let path = configured.path();
    let (code, _, told) = configured.check(&[]);
    assert_eq!(code, Some(2), "{told}");
    let told: Vec<&str> = told.lines().collect();
    let at = |line: u32| format!("twinring: {}:{line}: ", path.display());
    let expected = [
        (1, "listn: unknown key; did you mean `listen`?"),
        (3, "workers: expected an integer, found string"),
        (4, "max-requests: 0 is not in 1..18446744073709551615"),
        (5, "engine: "),
        (6, "index: expected a string or strings, found integer"),
        (7, "json: expected true or false, found string"),
        (8, "idle-timeout: expected a string, found integer"),
        (9, "header: the service itself decides on `Date`"),
        (10, "check: this belongs on the command line"),
        (11, "precompressed: "),
        (12, "table: unknown key"),
        (13, "host: names are missing"),
        (16, "names: `a:80` is not a host name"),
        (16, "names: expected a string or strings, found integer"),
        (17, "roots: unknown key; did you mean `root`?"),
        (18, "workers: unknown key"),
        (20, "names: expected at least one"),
    ];
    for ((line, words), told) in expected.iter().zip(&told) {
        let words = format!("{}{words}", at(*line));
        assert!(told.starts_with(&words), "expected {words:?}, found {told:?}");
    }
    assert_eq!(told.len(), expected.len() + 1, "{told:?}");
    assert!(told[expected.len()].contains("--root /no/such/directory"), "{told:?}");
}

fn errors_without_a_key_are_reported_too() {
    check_refuses(&[
        ("root = \"x\"\nroot = \"y\"\n", ":2: duplicate key"),
        ("root = \n", ":1: "),
        ("root = \"ROOT\"\nhost = 5\n", ":2: host: expected tables that begin with [[host]]"),
        ("", "no directory to serve: give --root DIR"),
        ("[[host]]\nnames = \"a.org\"\n", ":1: host: root is missing"),
        ("root = \"ROOT\"\ntls-cert = \"x\"\n", "for TLS, --listen-tls ADDR is missing"),
        ("root = \"ROOT\"\n\u{0}", ":2: "),
        (
            "root = \"ROOT\"\n[[host]]\nnames = \"a.org\"\ntls-cert = \"x\"\n",
            ":2: host: tls-key is missing",
        ),
        // Had no effect.
        (
            "root = \"ROOT\"\ncache-control = \"css/*=no-store\"\n",
            ":2: cache-control: the pattern `css/*`",
        ),
        (&"#".repeat(2 << 20), "is larger than 1048576 bytes"),
    ]);
    let (code, told) = refused(&["--config", "/no/such/file"]);
    assert!(code == Some(2) && told.contains("--config /no/such/file: No such file"), "{told}");
    // Was read until memory ended.
    let (code, told) = refused(&["--config", "/dev/zero", "--check"]);
    assert!(code == Some(2) && told.contains("/dev/zero: is a device, not a regular"), "{told}");
    let binary = configured("");
    std::fs::write(binary.path(), b"\xff\xfe").expect("a file");
    let (code, _, told) = binary.check(&[]);
    assert!(code == Some(2) && told.contains("UTF-8"), "{told}");
}

fn check_finds_the_errors_of_a_start_or_prints_ok() {
    let ok = configured("root = \"ROOT\"\n");
    let (site, etc) = (&ok.site, &ok.etc);
    let (code, stdout, stderr) = ok.check(&[]);
    assert!(code == Some(0) && stdout.ends_with("OK\n") && stderr.is_empty(), "{stdout}{stderr}");
    assert!(stdout.contains(&format!("root {}", site.path().display())), "{stdout}");
    let file = site.path().join("hello.txt");
    let file = file.to_str().expect("text");
    let missing = etc.path().join("missing");
    let log = missing.join("access.log");
    let arguments = ["--spa", "no.html", "--not-found", "sub", "--access-log"];
    let arguments = [&arguments[..], &[log.to_str().expect("text")]].concat();
    let tls = ["--listen-tls", "127.0.0.1:0", "--tls-cert", file, "--tls-key", file];
    let user = ["--user", "no-such-user"];
    let (code, stdout, stderr) = ok.check(&[&arguments[..], &tls, &user].concat());
    assert_eq!((code, stdout.as_str()), (Some(1), ""), "{stderr}");
    let told: Vec<&str> = stderr.lines().collect();
    for (told, words) in told.iter().zip([
        "--spa no.html: No such file",
        "--not-found sub: it is not a regular file",
        "hello.txt",
        "--user no-such-user: unknown user",
        "--access-log",
    ]) {
        assert!(told.contains(words), "{words:?} is not in {told:?}");
    }
    assert_eq!(told.len(), 5, "{told:?}");
    assert!(!missing.exists(), "a check makes no files");
    // Errors about directories of hosts have the place of the host.
    let text = "root = \"ROOT\"\n\n[[host]]\nnames = \"a.org\"\nroot = \"/no/such/host\"\n\
                [[host]]\nnames = \"b.org\"\n[[host]]\nnames = [\"c.org\", \"B.org\"]\n";
    let hosts = configured(text);
    let path = hosts.path();
    let (code, _, stderr) = hosts.check(&[]);
    let place = |line: u32| format!("{}:{line}: ", path.display());
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains(&format!("{}cannot serve --root /no/such/host", place(3))), "{stderr}");
    assert!(stderr.contains(&format!("{}b.org is the name of two hosts", place(8))), "{stderr}");
    assert_eq!(stderr.lines().count(), 2, "{stderr}");
}

/// A file of another program may have thousands of lines of errors.
fn the_first_problems_are_printed_and_the_others_counted() {
    let text: String = (0..1000).map(|number| format!("unknown_{number} = 1\n")).collect();
    let (code, _, stderr) = configured(&text).check(&[]);
    assert_ne!(code, Some(0));
    let told: Vec<&str> = stderr.lines().collect();
    assert_eq!(told.len(), 51, "{stderr}");
    assert!(told[49].contains("unknown_49"), "{stderr}");
    assert_eq!(told[50], "twinring: and 950 more");
}

/// The example with all that is commented out, and with directories that exist.
fn whole_example(etc: &Path) -> String {
    let is_option = |line: &str| {
        line.strip_prefix('#').is_some_and(|rest| rest.starts_with(|first| first != ' '))
    };
    let lines = EXAMPLE.lines().map(|line| match is_option(line) {
        true => &line[1..],
        false => line,
    });
    let text = lines.collect::<Vec<_>>().join("\n");
    ["/srv/www", "/etc/twinring", "/var/log/twinring"]
        .iter()
        .fold(text, |text, name| text.replace(name, &format!("{}{name}", etc.display())))
}

fn the_example_is_complete_and_right() {
    let etc = Site::new();
    for name in ["default", "example.org", "wildcard"] {
        etc.write(&format!("srv/www/{name}/index.html"), b"");
        etc.write(&format!("srv/www/{name}/404.html"), b"");
    }
    etc.write("var/log/twinring/access.log", b"");
    let identity = Identity::new();
    let copy = |from: PathBuf| std::fs::read(from).expect("a file");
    for (certificate, key) in [("chain.pem", "key.pem"), ("example.org.pem", "example.org.key")] {
        etc.write(&format!("etc/twinring/{certificate}"), &copy(identity.certificate()));
        etc.write(&format!("etc/twinring/{key}"), &copy(identity.key()));
    }
    etc.write(
        "etc/twinring/users",
        b"a:$2b$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW\n",
    );
    let mut text = whole_example(etc.path());
    if nix::unistd::Uid::effective().is_root() {
        // The configured user must be able to reopen all files.
        set_mode(etc.path(), 0o755);
        for name in ["var/log/twinring", "var/log/twinring/access.log"] {
            let path = etc.path().join(name);
            std::os::unix::fs::chown(path, Some(65_534), Some(65_534)).expect("root may");
        }
    } else {
        let lines =
            text.lines().filter(|line| !line.starts_with("user") && !line.starts_with("group"));
        text = lines.collect::<Vec<_>>().join("\n");
    }
    let example = Configured { site: Site::new(), etc };
    example.write(&text);
    let (code, stdout, stderr) = example.check(&["--engine", "epoll"]);
    assert!(code == Some(0) && stdout.ends_with("OK\n") && stderr.is_empty(), "{stdout}{stderr}");
    // As it is shipped, with only a directory that exists.
    example.write(EXAMPLE);
    let root = example.etc.path().join("srv/www/default");
    let (code, _, stderr) = example.check(&["--root", root.to_str().expect("text")]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    // Every option is in there.
    let keys: HashSet<&str> = EXAMPLE
        .lines()
        .filter_map(|line| line.trim_start_matches('#').split_once(" = "))
        .map(|(key, _)| key)
        .collect();
    let (_, help, _) = run(&["serve", "http", "--help"]);
    let options: HashSet<&str> = help
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("-h, ").or(Some(line.trim_start())))
        .filter_map(|line| line.strip_prefix("--"))
        .filter_map(|line| line.split([' ', '[']).next())
        .filter(|option| !["help", "config", "check", "sandbox-check"].contains(option))
        .collect();
    assert!(options.len() > 40, "{options:?}");
    let missing: Vec<_> = options.difference(&keys).collect();
    assert!(missing.is_empty(), "not in the example: {missing:?}");
}

/// The identities of all threads of a process, from /proc: user, group, groups.
fn identities(server: &Server) -> HashSet<[String; 3]> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.pid())).expect("it runs");
    // One may have ended since it was listed.
    let status = |task: PathBuf| std::fs::read_to_string(task.join("status")).ok();
    let identity = |status: String| {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a field");
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        [field("Uid:"), field("Gid:"), field("Groups:")]
    };
    tasks.flatten().filter_map(|task| status(task.path())).map(identity).collect()
}

fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("a file of ours");
}

fn all_threads_become_the_user_and_go_on_serving() {
    testing::needs_root("it changes users, mounts or networks");
    let (site, logs) = (Site::usual(), Site::new());
    site.write("private.txt", b"secret");
    set_mode(&site.path().join("private.txt"), 0o600);
    set_mode(site.path(), 0o755);
    set_mode(logs.path(), 0o755);
    let directory = logs.path().join("log");
    std::fs::create_dir(&directory).expect("a directory");
    std::os::unix::fs::chown(&directory, Some(65_534), Some(65_533)).expect("root may");
    let log = directory.join("access.log");
    let log_name = log.to_str().expect("text");
    let arguments = ["--user", "65534", "--group", "65533", "--workers", "2"];
    let more = ["--access-log", log_name, "--admin", "127.0.0.1:0"];
    let server = Server::http(ENGINE, site.path(), &[&arguments[..], &more].concat());
    assert_eq!(ask(&server, &get("/large.bin", "")).status, 200);
    assert_eq!(ask(&server, &get("/private.txt", "")).status, 403, "the rights are gone");
    // A kernel thread of a ring that was only tried out may still be about to end.
    let mut found = HashSet::new();
    wait_until("all threads have the same identity", || {
        found = identities(&server);
        found.len() == 1
    });
    let [user, group, groups] = found.into_iter().next().expect("one");
    assert_eq!(user, "65534 65534 65534 65534");
    assert_eq!(group, "65533 65533 65533 65533");
    assert!(!groups.split(' ').any(|group| group == "0"), "{groups}");
    std::fs::rename(&log, directory.join("old")).expect("a log");
    server.signal(Signal::SIGUSR1);
    wait_until("the new log is there", || log.exists());
    assert_eq!(ask(&server, &get("/hello.txt", "")).status, 200);
    let ended = server.terminate();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "nothing to complain of");
    assert_eq!(ended.count("log_lines"), 3);
}

fn missing_rights_of_the_user_are_reported_at_the_start() {
    testing::needs_root("it changes users, mounts or networks");
    // Nothing can be served.
    let site = Site::usual();
    set_mode(site.path(), 0o700);
    let root = site.path().to_str().expect("text");
    let become_nobody = ["--listen", "127.0.0.1:0", "--user", "65534", "--group", "65534"];
    let refused_and_by_check = |arguments: &[&str]| {
        let (code, told) = refused(arguments);
        let (code_of_check, told_by_check) = refused(&[arguments, &["--check"]].concat());
        assert_eq!(code_of_check, code, "{arguments:?}");
        // A start as root first prints that it runs as root.
        assert!(told.ends_with(&told_by_check), "{told:?} {told_by_check:?}");
        (code, told_by_check)
    };
    let (code, told) = refused_and_by_check(&[&["--root", root][..], &become_nobody].concat());
    assert!(code == Some(1) && told.contains("may not search --root"), "{told}");
    // It may be searched, but not listed.
    set_mode(site.path(), 0o711);
    let listing = ["--root", root, "--autoindex", "html"];
    let (code, told) = refused_and_by_check(&[&listing[..], &become_nobody].concat());
    assert!(code == Some(1) && told.contains("may not list --root"), "{told}");
    set_mode(site.path(), 0o755);
    set_mode(&site.path().join("hello.txt"), 0o600);
    let page = ["--root", root, "--not-found", "hello.txt"];
    let (code, told) = refused_and_by_check(&[&page[..], &become_nobody].concat());
    assert!(code == Some(1) && told.contains("hello.txt: Permission denied"), "{told}");
    // Root without capabilities is a user like others.
    std::os::unix::fs::chown(site.path(), Some(65_534), None).expect("root may");
    set_mode(site.path(), 0o700);
    let (code, told) = refused_and_by_check(&["--root", root, "--listen", "127.0.0.1:0"]);
    assert!(code == Some(1) && told.contains("may not search --root"), "{told}");
    set_mode(site.path(), 0o755);
    // The log can be written, but not reopened: the old one stays open.
    let logs = Site::new();
    set_mode(logs.path(), 0o700);
    let log = logs.path().join("access.log");
    let arguments = [&become_nobody[2..], &["--access-log", log.to_str().expect("text")]].concat();
    let check = ["serve", "http", "--check", "--root", root];
    let (code, stdout, told) = run(&[&check[..], &arguments].concat());
    assert!(code == Some(0) && stdout.ends_with("OK\n"), "{stdout}{told}");
    assert!(told.contains("the old file stays open"), "{told}");
    assert!(!log.exists(), "a check makes no files");
    let server = Server::http("epoll", site.path(), &arguments);
    wait_until("it says so", || server.stderr().contains("the old file stays open"));
    std::fs::rename(&log, logs.path().join("old")).expect("a log");
    server.signal(Signal::SIGHUP);
    wait_until("it is told", || server.stderr().contains("cannot be reopened"));
    ask(&server, &get("/large.bin", ""));
    let ended = server.terminate();
    let old = std::fs::read_to_string(logs.path().join("old")).expect("the log");
    assert_eq!((ended.count("log_lines"), old.lines().count()), (1, 1));
}

fn root_without_a_user_is_warned_once_and_wrong_users_are_refused() {
    let site = Site::usual();
    let root = site.path().to_str().expect("text");
    for (arguments, words) in [
        (["--user", "no-such-user"], "unknown user"),
        (["--group", "no-such-group"], "unknown group"),
        (["--user", "4000000"], "give a --group, too"),
    ] {
        let base = ["--root", root, "--listen", "127.0.0.1:0"];
        let (code, told) = refused(&[&base[..], &arguments].concat());
        assert!(code == Some(1) && told.contains(words), "{told}");
    }
    testing::needs_root("it is warned of");
    let server = Server::http("epoll", site.path(), &[]);
    let ended = server.terminate();
    assert_eq!(ended.stderr.matches("rights of root").count(), 1, "{}", ended.stderr);
}
