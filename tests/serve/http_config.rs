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
    errors_are_reported_with_their_lines_and_counted,
    errors_of_one_kind_each_are_reported,
    check_finds_the_errors_of_a_start_or_prints_what_holds,
    the_example_is_right,
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
        [server]
        listen = "127.0.0.1:0"
        workers = 0x2
        max-header-bytes = 1_000
        engine = "epoll"
        json = false
        [[site]]
        root = "ROOT"
        index = ["no.html", "hello.txt"]
        rule = [{ headers.X-One = "1" }, { match = "*.txt", headers.X-Two = "2" }]
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
            // Rules match what was asked for, not the file behind it.
            (get("/", ""), 200, &[Text(content), Field("x-one", "1"), Without("x-two")]),
            (get("/hello.txt", ""), 200, &[Text(content), Field("x-two", "2")]),
            (get("/", &format!("X: {long}\r\n")), 431, &[]),
        ],
    );
    server.end();
    // Another root, with the rules of the site in the file.
    configured.etc.write("hello.txt", b"other");
    let server = serve(&["--root", configured.etc.path().to_str().expect("UTF-8")]);
    assert_eq!(server.ready["workers"], 2);
    assert_eq!(server.ready["engine"], "epoll");
    check_both(&server, &[(get("/hello.txt", ""), 200, &[Text("other"), Field("x-one", "1")])]);
}

/// A file of another program may have thousands of lines of errors.
fn errors_are_reported_with_their_lines_and_counted() {
    let text = r#"[server]
listn = "127.0.0.1:0"
workers = "two"
max-requests = 0
check = true
[default]
index = [1, "a/b"]
[[default.rule]]
match = "css/*"
allow = "10.0.0.1/8"
[table]
[[site]]
rule = [{ headers.Date = "x" }, { roots = 1 }]
[[site]]
names = ["a:80", 5]
workers = 3
[[site]]
names = "b"
root = "/no/such/host"
"#;
    let expected = [
        (2, "listn: unknown key; did you mean `listen`?"),
        (3, "workers: `two` is not a count: expected a number"),
        (4, "max-requests: `0` is too small: at least 1"),
        (5, "check: this belongs on the command line"),
        (7, "index: `a/b` is not a file name"),
        (9, "match: the pattern `css/*` matches no path: all paths begin with a slash"),
        (10, "allow: `10.0.0.1/8` is an address inside of 10.0.0.0/8"),
        (11, "table: unknown key"),
        (13, "headers: the service itself decides on `Date`"),
        (13, "roots: unknown key"),
        (15, "names: `a:80` is not a host name"),
        (16, "workers: write `workers = 3` in [server]"),
    ];
    let configured = configured(text);
    let path = configured.path();
    let (code, _, told) = configured.check(&[]);
    assert_eq!(code, Some(2), "{told}");
    let lines: Vec<&str> = told.lines().collect();
    for ((line, words), told) in expected.iter().zip(&lines) {
        let words = format!("twinring: {}:{line}: {words}", path.display());
        assert!(told.starts_with(&words), "expected {words:?}, found {told:?}");
    }
    assert_eq!(lines.len(), expected.len() + 1, "{told}");
    assert!(lines[expected.len()].contains("cannot serve root /no/such/host"), "{told}");
    configured.write(&(0..60).map(|number| format!("unknown_{number} = 1\n")).collect::<String>());
    let (_, _, told) = configured.check(&[]);
    assert_eq!(told.lines().count(), 51, "{told}");
    assert!(told.contains("unknown_49") && told.ends_with("twinring: and 10 more\n"), "{told}");
}

fn errors_of_one_kind_each_are_reported() {
    let rule = |keys: &str| format!("[[site]]\nroot = \"ROOT\"\nrule = [{keys}]\n");
    let many = (0..2001).map(|n| format!("{{ match = \"/{n}\", redirect = \"/x\" }},"));
    for (text, words) in [
        ("[[site]]\nroot = \"x\"\nroot = \"y\"\n", ":3: duplicate key"),
        ("site = 5\n", ":1: site: invalid type: integer `5`, expected a sequence"),
        ("[default]\ntls-cert = \"x\"\n", ":1: tls-cert: this belongs in a [[site]]"),
        ("", "no directory to serve: give --root DIR, or a [[site]]"),
        ("[[site]]\nnames = \"a.org\"\n", ":1: site: root is missing"),
        ("[[site]]\nroot = \"ROOT\"\ntls-key = \"x\"\n", ":1: tls-cert is missing"),
        ("[[site]]\nroot = \"ROOT\"\n[[site]]\nroot = \"ROOT\"\n", ":3: two sites have no names"),
        (&"#".repeat(2 << 20), "is larger than 1048576 bytes"),
        (&rule("{ redirect = '//evil.example/' }"), ":3: redirect: `//evil.example/`"),
        (&rule("{ redirect = '/b', status = 303 }"), "`303` is not a redirect status"),
        (&rule("{ match = '/a', status = 302 }"), "status needs redirect in the same rule"),
        (&rule("{ match = '*.html', redirect = '/b/**' }"), "if all patterns end so"),
        (&rule(&many.collect::<String>()), "2001 rules are more than 2000"),
        ("[[site]]\nredirect-to-https = \"a/b\"\n", ":2: redirect-to-https: `a/b` is neither"),
    ] {
        let (code, _, told) = configured(text).check(&[]);
        assert!(code != Some(0) && told.contains(words), "{text}: {code:?} {told}");
    }
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

fn check_finds_the_errors_of_a_start_or_prints_what_holds() {
    let text = "[default]\nclean-urls = true\n[[default.rule]]\nheaders.X-All = \"1\"\n\
                [[site]]\nroot = \"ROOT\"\n[[site]]\nnames = [\"a.org\", \"*.b.org\"]\nroot = \"ROOT\"\n\
                clean-urls = false\n[[site.rule]]\nmatch = \"/p/**\"\nallow = \"::1\"\n";
    let first = configured(text);
    let (site, etc) = (&first.site, &first.etc);
    let (code, stdout, stderr) = first.check(&["--listing", "json"]);
    assert!(code == Some(0) && stderr.is_empty(), "{stdout}{stderr}");
    let root = site.path().display();
    let expected = format!(
        "any other host:\n  root = \"{root}\"\n  clean-urls = true\n  \
         rule = {{ headers = {{ X-All = \"1\" }} }}\n  rule = {{ listing = \"json\" }}\n\
         a.org, *.b.org:\n  root = \"{root}\"\n  clean-urls = false\n  \
         rule = {{ headers = {{ X-All = \"1\" }} }}\n  \
         rule = {{ allow = \"::1\", match = \"/p/**\" }}\nOK\n"
    );
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&stdout), sorted(&expected), "{stdout}");
    let file = site.path().join("hello.txt");
    let file = file.to_str().expect("text");
    let missing = etc.path().join("missing");
    let log = missing.join("access.log");
    let text = "[[site]]\nroot = \"ROOT\"\n[[site.rule]]\nfallback = \"no.html\"\n[[site.rule]]\n\
                error-pages = { 404 = \"sub\" }\n";
    let second = configured(text);
    let tls = ["--listen-tls", "127.0.0.1:0", "--tls-cert", file, "--tls-key", file];
    let more = ["--user", "no-such-user", "--access-log", log.to_str().expect("text")];
    let (code, stdout, stderr) = second.check(&[&tls[..], &more].concat());
    assert_eq!((code, stdout.as_str()), (Some(1), ""), "{stderr}");
    let told: Vec<&str> = stderr.lines().collect();
    for (told, words) in told.iter().zip([
        ".toml:3: cannot use fallback no.html: No such file",
        ".toml:5: cannot use error-pages.404 sub: it is not a regular file",
        "hello.txt",
        "--user no-such-user: unknown user",
        "access-log",
    ]) {
        assert!(told.contains(words), "{words:?} is not in {told:?}");
    }
    assert_eq!(told.len(), 5, "{told:?}");
    assert!(!missing.exists(), "a check makes no files");
}

/// The example with all that is commented out, and with directories that exist.
fn whole_example(etc: &Path) -> String {
    let option = |line: &'static str| line.strip_prefix('#').filter(|rest| !rest.starts_with(' '));
    let lines =
        EXAMPLE.lines().map(|line| option(line).filter(|it| !it.is_empty()).unwrap_or(line));
    let text = lines.collect::<Vec<_>>().join("\n");
    ["/srv/www", "/etc/twinring", "/var/log/twinring"]
        .iter()
        .fold(text, |text, name| text.replace(name, &format!("{}{name}", etc.display())))
}

fn the_example_is_right() {
    let etc = Site::new();
    for name in ["default", "example.org"] {
        etc.write(&format!("srv/www/{name}/index.html"), b"");
        etc.write(&format!("srv/www/{name}/404.html"), b"");
    }
    etc.write("var/log/twinring/access.log", b"");
    let identity = Identity::new();
    let copy = |from: PathBuf| std::fs::read(from).expect("a file");
    etc.write("etc/twinring/example.org.pem", &copy(identity.certificate()));
    etc.write("etc/twinring/example.org.key", &copy(identity.key()));
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
    let told: Vec<&str> = ended.stderr.lines().collect();
    let is_why = |line: &&str| {
        line.ends_with("403 127.0.0.1 test \"/private.txt\": Permission denied (EACCES)")
    };
    assert!(ended.code == Some(0) && told.len() == 1 && told.iter().all(is_why), "{told:?}");
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
    let listing = ["--root", root, "--listing", "html"];
    let (code, told) = refused_and_by_check(&[&listing[..], &become_nobody].concat());
    assert!(code == Some(1) && told.contains("may not list --root"), "{told}");
    set_mode(site.path(), 0o755);
    set_mode(&site.path().join("hello.txt"), 0o600);
    let etc = Site::new();
    let page = etc.write("x.toml", b"default.rule = [{ fallback = 'hello.txt' }]");
    let page = ["--root", root, "--config", page.to_str().expect("text")];
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
