//! Passwords of `twinring serve http`.

use crate::support::http::*;
use crate::support::tls::*;
use crate::support::*;
use nix::sys::signal::Signal;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use testing::{Test, engine_tests, tests};

pub(crate) const TESTS: &[Test] = tests![
    check_finds_files_that_are_wrong_and_shows_no_hash,
    a_host_adds_to_the_protection_of_the_whole_unless_it_says_replace
];
pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![
    verified_passwords_are_remembered_and_concurrent_verifications_have_a_bound,
    a_reload_replaces_users_and_forgets_the_verified,
    protected_directories_need_a_password_by_every_path_and_method,
    no_password_is_asked_for_without_tls_if_https_is_required
];

/// `ann` with the password `secret`, and `bob` with `other`.
const USERS: &str = "# users\nann:$2b$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW\n\
                     bob:$2y$05$......................XDi2tGuW8MfnekmA8fwOvEPig4ugXbC\n";

/// `Authorization` of `ann:secret`, `bob:other`, `ann:other`, `nobody:secret`.
const ANN: &str = "Authorization: Basic YW5uOnNlY3JldA==\r\n";
const BOB: &str = "Authorization: basic Ym9iOm90aGVy\r\n";
const WRONG: &str = "Authorization: Basic YW5uOm90aGVy\r\n";
const NOBODY: &str = "Authorization: Basic bm9ib2R5OnNlY3JldA==\r\n";

struct Setup {
    site: Site,
    etc: Site,
    config: PathBuf,
}

impl Setup {
    /// In the text, `ROOT` stands for the files and `ETC` for the directory of the configuration.
    fn new(text: &str) -> Setup {
        let (site, etc) = (Site::usual(), Site::new());
        site.write("private/index.html", b"private");
        site.write("private/deep/large.bin", &pattern(7, 300_000));
        site.write("private/other/x.txt", b"of bob");
        etc.write("users", USERS.as_bytes());
        let bob = USERS.lines().last().expect("a line");
        etc.write("others", format!("{bob}\n").as_bytes());
        let config = etc.write("twinring.toml", b"");
        let setup = Setup { site, etc, config };
        setup.configure(text);
        setup
    }

    fn configure(&self, text: &str) {
        let path = |site: &Site| site.path().to_str().expect("UTF-8").to_owned();
        let text = text.replace("ROOT", &path(&self.site)).replace("ETC", &path(&self.etc));
        std::fs::write(&self.config, text).expect("a file");
    }

    fn serve(&self, engine: &str) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_twinring"));
        command.args(["serve", "http", "--json", "--engine", engine, "--config"]).arg(&self.config);
        Server::spawn(command)
    }

    fn check(&self) -> (Option<i32>, String) {
        let config = self.config.to_str().expect("UTF-8");
        let (code, _, told) = run(&["serve", "http", "--check", "--config", config]);
        (code, told)
    }
}

const CONFIG: &str = r#"
    listen = "127.0.0.1:0"
    root = "ROOT"
    autoindex = "html"
    basic-auth = ["/private/*=ETC/users", "/private/other/*=ETC/others"]
    basic-auth-realm = "the vault"
    header = "*=X-Rule: yes"
"#;

fn protected_directories_need_a_password_by_every_path_and_method(engine: &str) {
    let setup = Setup::new(CONFIG);
    let server = setup.serve(engine);
    let mut stream = connect(server.address());
    // Three times, so that later ones are answered from the cache.
    for round in 0..3 {
        for (target, fields, status) in [
            ("/hello.txt", "", 200),
            ("/private/", "", 401),
            ("/private/", WRONG, 401),
            ("/private/", NOBODY, 401),
            ("/private/", "Authorization: Bearer YW5uOnNlY3JldA==\r\n", 401),
            ("/private/", "Authorization: Basic !\r\n", 401),
            ("/private/", ANN, 200),
            ("/private/", BOB, 200),
            ("/private/none", "", 401),
            ("/private/none", ANN, 404),
            ("/private/deep/large.bin", WRONG, 401),
            ("/private/deep/large.bin", ANN, 200),
            ("/private/deep/large.bin", "Range: bytes=0-9\r\n", 401),
            ("/private/deep/", "", 401),
            ("/private/deep", "", 401),
            ("/private/other/x.txt", ANN, 401),
            ("/private/other/x.txt", BOB, 200),
            // Other ways to write the path.
            ("/%70rivate/", "", 401),
            ("/private//index.html", "", 401),
            ("/./private/index.html", "", 401),
            ("/x/../private/index.html", "", 401),
            ("http://test/private/index.html", "", 401),
            ("/private/index.html?x", "", 401),
        ] {
            let answer = ask_on(&mut stream, &get(target, fields));
            assert_eq!(answer.status, status, "{engine} {round} {target} {fields}");
            let challenge = answer.field("www-authenticate");
            let expected = "Basic realm=\"the vault\", charset=\"UTF-8\"";
            assert_eq!(challenge, (status == 401).then_some(expected), "{target} {fields}");
            assert!(status != 401 || answer.text() == "401 Unauthorized\n");
            assert_eq!(answer.field("x-rule"), Some("yes"));
        }
    }
    let head = "HEAD /private/ HTTP/1.1\r\nHost: test\r\n";
    assert_eq!(ask_on(&mut stream, &format!("{head}\r\n")).status, 401);
    assert_eq!(ask_on(&mut stream, &format!("{head}{ANN}\r\n")).status, 200);
    let body = get("/private/", "Content-Length: 2\r\n") + "ab";
    assert_eq!(ask_on(&mut stream, &body).status, 401);
    let pipelined = [get("/private/", ANN), get("/private/", ""), get("/hello.txt", "")];
    let bytes = undated(&talk(server.address(), pipelined.concat().as_bytes()));
    let status: Vec<u16> = responses(&bytes).iter().map(|answer| answer.status).collect();
    assert_eq!(status, [200, 401, 200], "{engine}");
    drop(stream);
    assert_eq!(server.terminate().code, Some(0));
}

/// Each verification takes a thread and CPU time.
fn verified_passwords_are_remembered_and_concurrent_verifications_have_a_bound(engine: &str) {
    let setup = Setup::new(CONFIG);
    // `ann` again, at a cost that takes longer than all requests need to arrive.
    let dear = USERS.replacen("$04$", "$11$", 1);
    std::fs::write(setup.etc.path().join("users"), dear).expect("a file");
    let server = setup.serve(engine);
    let mut clients: Vec<_> = (0..40).map(|_| connect(server.address())).collect();
    for client in &mut clients {
        client.write_all(get("/private/", ANN).as_bytes()).expect("the server reads");
    }
    let status: Vec<u16> =
        clients.iter_mut().map(|client| read_response(client, false).status).collect();
    let count = |code| status.iter().filter(|status| **status == code).count();
    // The hash is of another cost, so the password is wrong.
    assert_eq!(count(401) + count(503), 40, "{engine}: {status:?}");
    assert!(count(401) >= 1 && count(503) >= 1, "{engine}: {status:?}");
    // Others are served meanwhile and afterwards.
    assert_eq!(ask(&server, &get("/hello.txt", "")).status, 200);
    wait_until("there is room again", || ask(&server, &get("/private/", BOB)).status == 200);
    assert_eq!(server.terminate().code, Some(0));
}

fn a_reload_replaces_users_and_forgets_the_verified(engine: &str) {
    let setup = Setup::new(CONFIG);
    let server = setup.serve(engine);
    assert_eq!(ask(&server, &get("/private/", ANN)).status, 200);
    let reload = |users: &str, words: &str| {
        std::fs::write(setup.etc.path().join("users"), users).expect("a file");
        let before = server.stderr().matches(words).count();
        server.signal(Signal::SIGHUP);
        wait_until(words, || server.stderr().matches(words).count() > before);
    };
    reload("ann:secret\n", "line 1: its hash is not bcrypt");
    assert_eq!(ask(&server, &get("/private/", ANN)).status, 200, "{engine}: as before");
    let bob = USERS.lines().last().expect("a line");
    reload(bob, "were reloaded");
    assert_eq!(ask(&server, &get("/private/", ANN)).status, 401, "{engine}");
    assert_eq!(ask(&server, &get("/private/", BOB)).status, 200, "{engine}");
    assert_eq!(server.terminate().code, Some(0));
}

fn no_password_is_asked_for_without_tls_if_https_is_required(engine: &str) {
    let (setup, identity) = (Setup::new(""), Identity::new());
    let users = setup.etc.path().join("users");
    let rule = format!("/*={}", users.display());
    let more = ["--redirect-to-https", "--basic-auth", &rule];
    let server = serve(engine, setup.site.path(), &identity, &more);
    let answer = ask(&server, &get("/private/", ANN));
    assert_eq!((answer.status, answer.field("location")), (301, Some("https://test/private/")));
    let config = std::sync::Arc::new(identity.trust(&VERSIONS));
    for (fields, status) in [("", 401), (ANN, 200), (WRONG, 401)] {
        let mut client = secure(encrypted(&server), &config).expect("a handshake");
        let request = get("/private/", fields);
        client.write_all(request.as_bytes()).expect("the server reads");
        assert_eq!(read_response(&mut client, false).status, status, "{engine} {fields}");
    }
    assert_eq!(server.terminate().code, Some(0));
}

fn check_finds_files_that_are_wrong_and_shows_no_hash() {
    for (text, users, words) in [
        ("/private/*=ETC/none", USERS, "none: No such file"),
        ("/private/*=ETC", USERS, "not a regular file"),
        ("/private/*=ETC/users", "ann:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=\n", "line 1: its hash"),
        ("/private/*=ETC/users", "ann\n", "line 1: expected USER:HASH"),
        ("/private=ETC/users", USERS, "only directories can be protected"),
        ("private/*=ETC/users", USERS, "it must begin with a slash"),
    ] {
        let setup = Setup::new(&format!("root = \"ROOT\"\nbasic-auth = \"{text}\"\n"));
        std::fs::write(setup.etc.path().join("users"), users).expect("a file");
        let (code, told) = setup.check();
        assert!(code != Some(0) && told.contains(words), "{text}: {told}");
        assert!(!told.contains("W6ph"), "{told}");
    }
    let setup = Setup::new("root = \"ROOT\"\nbasic-auth-realm = \"a\\\"b\"\n");
    let (code, told) = setup.check();
    assert!(code == Some(2) && told.contains("is no realm"), "{told}");
}

/// A host with a rule of its own lost all protection that stood above it, and `--check` said OK.
fn a_host_adds_to_the_protection_of_the_whole_unless_it_says_replace() {
    let setup = Setup::new(
        r#"
        listen = "127.0.0.1:0"
        root = "ROOT"
        header = "*=X-Content-Type-Options: nosniff"
        basic-auth = "/private/*=ETC/users"
        [[host]]
        names = "added.org"
        header = "*=X-Own: yes"
        basic-auth = "/api/*=ETC/users"
        [[host]]
        names = "replaced.org"
        replace = ["basic-auth", "header"]
        basic-auth = "/api/*=ETC/users"
    "#,
    );
    let server = setup.serve("epoll");
    let ask_host = |host: &str, target: &str| {
        ask(&server, &format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n"))
    };
    for (host, private, nosniff, own) in [
        ("added.org", 401, Some("nosniff"), Some("yes")),
        ("other.org", 401, Some("nosniff"), None),
        ("replaced.org", 200, None, None),
    ] {
        let answer = ask_host(host, "/private/");
        assert_eq!(answer.status, private, "{host}");
        assert_eq!(answer.field("x-content-type-options"), nosniff, "{host}");
        assert_eq!(answer.field("x-own"), own, "{host}");
        assert_eq!(ask_host(host, "/api/").status, if host == "other.org" { 404 } else { 401 });
    }
}
