//! `serve http` by configuration file, its `--check`, and the user that it becomes.

use crate::support::http::Is::*;
use crate::support::http::*;
use crate::support::*;
use std::collections::BTreeSet;
use std::os::unix::fs::{PermissionsExt, chown};

pub(crate) const TESTS: &[Test] = tests![
    the_command_line_overrides_the_file,
    errors_of_one_kind_each_are_reported,
    check_finds_the_errors_of_a_start_or_prints_what_holds,
    all_threads_become_the_user_and_go_on_serving,
    wrong_users_and_their_missing_rights_are_reported_at_the_start_and_root_is_warned
];

const EXAMPLE: &str = include_str!("../../deploy/twinring-http.toml");

fn the_command_line_overrides_the_file() {
    let configured = Configured::new(
        Site::usual(),
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
    let serve = |more: &[&str]| {
        let mut command = twinring();
        command.args(["serve", "http", "--json", "--config", &configured.path()]).args(more);
        Server::spawn(command)
    };
    let server = serve(&["--workers", "1"]);
    assert_eq!(server.ready["workers"], 1);
    let (content, long) = ("0123456789abcdefghijklmnopqrstuvwxyz", "x".repeat(1000));
    server.check_http1(&[
        // Rules match what was asked for, not the file behind it.
        (get("/", ""), 200, &[Text(content), Field("x-one", "1"), Without("x-two")]),
        (get("/hello.txt", ""), 200, &[Text(content), Field("x-two", "2")]),
        (get("/", &format!("X: {long}\r\n")), 431, &[]),
    ]);
    server.end();
    // Another root, with the rules of the site in the file.
    configured.etc.write("hello.txt", b"other");
    let server = serve(&["--root", &configured.etc.file(".")]);
    assert_eq!((&server.ready["workers"], &server.ready["engine"]), (&2.into(), &"epoll".into()));
    server.check_both(&[(get("/hello.txt", ""), 200, &[Text("other"), Field("x-one", "1")])]);
}

fn errors_of_one_kind_each_are_reported() {
    let rule = |keys: &str| format!("[[site]]\nroot = \"ROOT\"\nrule = [{keys}]\n");
    let many = (0..2001).map(|n| format!("{{ match = \"/{n}\", redirect = \"/x\" }},"));
    for (text, words) in [
        ("[[site]]\nroot = \"x\"\nroot = \"y\"\n", ":3: duplicate key"),
        ("", "no directory to serve: give --root DIR, or a [[site]]"),
        ("[[site]]\nnames = \"a.org\"\n", ":1: site: root is missing"),
        ("[[site]]\nroot = \"ROOT\"\n[[site]]\nroot = \"ROOT\"\n", ":3: two sites have no names"),
        (&"#".repeat(2 << 20), "is larger than 1048576 bytes"),
        (&rule("{ redirect = '//evil.example/' }"), ":3: redirect: `//evil.example/`"),
        (&rule("{ match = '*.html', redirect = '/b/**' }"), "if all patterns end so"),
        (&rule(&many.collect::<String>()), "2001 rules are more than 2000"),
        ("[[site]]\nredirect-to-https = \"a/b\"\n", ":2: redirect-to-https: `a/b`: expected true"),
        (&rule("{ auth = 'ETC/none' }"), ":3: cannot read the users of auth, "),
        (&rule("{ realm = 'a' }"), "realm needs auth in the same rule"),
    ] {
        let (code, _, told) = Configured::new(Site::usual(), text).check(&[]);
        assert!(code != Some(0) && told.contains(words), "{text}: {code:?} {told}");
    }
    // The second was read until memory ended.
    for (file, words) in [
        ("/no/such/file", "--config /no/such/file: No such file"),
        ("/dev/zero", "/dev/zero: is a device, not a regular"),
    ] {
        assert_ends(&format!("serve http --check --config {file}"), 2, &[words]);
    }
    let binary = Configured::new(Site::usual(), "");
    fs::write(binary.path(), b"\xff\xfe").expect("a file");
    let (code, _, told) = binary.check(&[]);
    assert!(code == Some(2) && told.contains("UTF-8"), "{told}");
}

fn check_finds_the_errors_of_a_start_or_prints_what_holds() {
    let text = "[default]\nclean-urls = true\n[[default.rule]]\nheaders.X-All = \"1\"\n\
                [[site]]\nroot = \"ROOT\"\n[[site]]\nnames = [\"a.org\", \"*.b.org\"]\nroot = \"ROOT\"\n\
                clean-urls = false\n[[site.rule]]\nmatch = \"/p/**\"\nallow = \"::1\"\n";
    let configured = Configured::new(Site::usual(), text);
    let (site, etc) = (&configured.site, &configured.etc);
    // As it is shipped, with only a directory that exists.
    let example = Configured::new(Site::usual(), EXAMPLE).check(&["--root", &site.file(".")]);
    assert_eq!((example.0, &*example.2), (Some(0), ""));
    let (code, stdout, stderr) = configured.check(&["--listing", "html"]);
    assert!(code == Some(0) && stderr.is_empty(), "{stdout}{stderr}");
    let root = site.path().display();
    let expected = format!(
        "any other host:\n  root = \"{root}\"\n  clean-urls = true\n  \
         rule = {{ headers = {{ X-All = \"1\" }} }}\n  rule = {{ listing = \"html\" }}\n\
         a.org, *.b.org:\n  root = \"{root}\"\n  clean-urls = false\n  \
         rule = {{ headers = {{ X-All = \"1\" }} }}\n  \
         rule = {{ allow = \"::1\", match = \"/p/**\" }}\nOK\n"
    );
    assert_eq!(BTreeSet::from_iter(stdout.lines()), BTreeSet::from_iter(expected.lines()));
    let missing = etc.path().join("missing");
    configured.write(
        "[[site]]\nroot = \"ROOT\"\nrule = [{ fallback = \"no.html\" }]\n[[site]]\nnames = \"b.org\"\n\
         root = \"/no/such/host\"\n",
    );
    let more = ["--user", "no-such-user", "--access-log", &etc.file("missing/access.log")];
    let (code, stdout, stderr) = configured.check(&more);
    assert_eq!((code, stdout.as_str()), (Some(1), ""), "{stderr}");
    for words in [
        ".toml:3: cannot use fallback no.html: No such file",
        ".toml:4: cannot serve root /no/such/host",
        "--user no-such-user: unknown user",
        "access-log",
    ] {
        assert!(stderr.contains(words), "{words:?} is not in {stderr}");
    }
    assert!(stderr.lines().count() == 4 && !missing.exists(), "{stderr}");
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("a file of ours");
}

fn all_threads_become_the_user_and_go_on_serving() {
    testing::needs_root("it changes users, mounts or networks");
    let (site, logs) = (Site::usual(), Site::new());
    set_mode(&site.write("private.txt", b"secret"), 0o600);
    set_mode(site.path(), 0o755);
    chown(logs.path(), Some(65_534), Some(65_533)).expect("root may");
    let log = logs.path().join("access.log");
    let identity = ["--user", "65534", "--group", "65533"];
    let more = ["--workers", "2", "--access-log", &logs.file("access.log")];
    let server = Server::http(ENGINE, site.path(), &[&identity[..], &more].concat());
    assert_eq!(ask(&server, &get("/large.bin", "")).status, 200);
    assert_eq!(ask(&server, &get("/private.txt", "")).status, 403, "the rights are gone");
    wait_until("all threads have the same identity", || {
        server.threads().iter().all(|status| {
            field_of(status, "Uid:") == "65534 65534 65534 65534"
                && field_of(status, "Gid:") == "65533 65533 65533 65533"
                && !field_of(status, "Groups:").split(' ').any(|group| group == "0")
        })
    });
    fs::rename(&log, logs.path().join("old")).expect("a log");
    server.signal(Signal::SIGUSR1);
    wait_until("the new log is there", || log.exists());
    assert_eq!(ask(&server, &get("/hello.txt", "")).status, 200);
    let ended = server.terminate();
    let why = "403 127.0.0.1 test \"/private.txt\": Permission denied (EACCES)\n";
    assert!(ended.stderr.lines().count() == 1 && ended.stderr.ends_with(why), "{}", ended.stderr);
    ended.expect(0, &[("log_lines", 3)]);
}

fn wrong_users_and_their_missing_rights_are_reported_at_the_start_and_root_is_warned() {
    let site = Site::usual();
    let serve = format!("serve http --root {} --listen 127.0.0.1:0", site.file("."));
    assert_ends(&format!("{serve} --group no-such-group"), 1, &["unknown group"]);
    assert_ends(&format!("{serve} --user 4000000"), 1, &["give a --group, too"]);
    testing::needs_root("it changes users");
    let ended = Server::http("epoll", site.path(), &[]).terminate();
    assert_eq!(ended.stderr.matches("rights of root").count(), 1, "{}", ended.stderr);
    site.write("x.toml", b"default.rule = [{ fallback = 'hello.txt' }]");
    let page = format!("--config {}", site.file("x.toml"));
    set_mode(&site.path().join("hello.txt"), 0o600);
    for (mode, more, words) in [
        (0o700, "", "may not search --root"),
        // It may be searched, but not listed.
        (0o711, "--listing html", "may not list --root"),
        (0o755, &page, "hello.txt: Permission denied"),
    ] {
        set_mode(site.path(), mode);
        for check in ["", "--check"] {
            let nobody = format!("{serve} {more} --user 65534 --group 65534 {check}");
            assert_ends(&nobody, 1, &[words]);
        }
    }
    // A tree that root reads only by its capabilities would cause errors once they are dropped.
    chown(site.path(), Some(65_534), Some(65_534)).expect("root may");
    set_mode(site.path(), 0o700);
    let words = ["may not search --root", "--user"];
    assert_ends(&format!("{serve} --sandbox capabilities"), 1, &words);
    let others = ["--sandbox", "seccomp,landlock,no_new_privs"];
    let server = Server::http("epoll", site.path(), &others);
    assert_eq!(server.ready["sandbox"]["capabilities"]["on"], false);
}
