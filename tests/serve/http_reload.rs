//! SIGHUP of `twinring serve http`: the configuration is replaced as a whole or not at all. With it,
//! certificates of hosts.

use crate::support::http::*;
use crate::support::tls::*;
use crate::support::*;
use nix::sys::signal::Signal;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use testing::{Test, engine_tests, tests};

pub(crate) const TESTS: &[Test] =
    tests![a_root_that_the_sandbox_hides_is_refused, half_a_certificate_of_a_host_is_an_error];
pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![
    a_reload_replaces_everything_for_later_requests,
    a_refused_reload_changes_nothing_and_says_why_once,
    hosts_have_certificates_of_their_own_which_a_reload_replaces
];

const DONE: &str = "limits and timeouts were reloaded";
const REFUSED: &str = "nothing was reloaded, the previous configuration stays in use: ";

/// Two roots, and a configuration file in which `ROOT` stands for the directory of both.
struct Setup {
    site: Site,
    config: PathBuf,
}

impl Setup {
    fn new() -> Setup {
        let site = Site::new();
        for root in ["old", "new"] {
            site.write(&format!("www/{root}/index.html"), root.as_bytes());
            site.write(&format!("www/{root}/large.bin"), root.repeat(100_000).as_bytes());
        }
        let config = site.write("etc/twinring.toml", b"");
        Setup { site, config }
    }

    fn configure(&self, text: &str) {
        let root = self.site.path().join("www");
        let text = text.replace("ROOT", root.to_str().expect("UTF-8"));
        std::fs::write(&self.config, text).expect("a file");
    }

    fn serve(&self, engine: &str) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_twinring"));
        command.args(["serve", "http", "--json", "--engine", engine, "--config"]).arg(&self.config);
        Server::spawn(command)
    }
}

/// Sends SIGHUP and waits for the message that ends with `words`, the one after `before` others.
fn reload(server: &Server, words: &str, before: usize) {
    server.signal(Signal::SIGHUP);
    wait_until(words, || server.stderr().matches(words).count() > before);
}

fn a_reload_replaces_everything_for_later_requests(engine: &str) {
    let setup = Setup::new();
    let first = "listen = \"127.0.0.1:0\"\nworkers = 2\nsandbox-read = \"ROOT\"\n";
    setup.configure(&format!("{first}root = \"ROOT/old\"\nheader = \"*=X-Old: yes\"\n"));
    let server = setup.serve(engine);
    let mut stays: Vec<_> = (0..4).map(|_| connect(server.address())).collect();
    for stream in &mut stays {
        let answer = ask_on(stream, &get("/", ""));
        assert_eq!((answer.text().as_str(), answer.field("x-old")), ("old", Some("yes")));
    }
    // An answer under way is finished as it was begun.
    let mut slow = connect(server.address());
    slow.write_all(get("/large.bin", "").as_bytes()).expect("the server reads");
    slow.peek(&mut [0]).expect("the answer begins");
    setup.configure(&format!(
        "{first}root = \"ROOT/new\"\nmax-uri-bytes = 32\n\
         [[host]]\nnames = \"a.org\"\nroot = \"ROOT/old\"\nheader = \"*=X-Host: a\"\n"
    ));
    reload(&server, DONE, 0);
    for stream in &mut stays {
        let answer = ask_on(stream, &get("/", ""));
        assert_eq!((answer.text().as_str(), answer.field("x-old")), ("new", None), "{engine}");
    }
    let host = ask(&server, "GET / HTTP/1.1\r\nHost: a.org\r\n\r\n");
    assert_eq!((host.text().as_str(), host.field("x-host")), ("old", Some("a")));
    assert_eq!(ask(&server, &get(&format!("/{}", "x".repeat(99)), "")).status, 414);
    assert_eq!(read_response(&mut slow, false).text(), "old".repeat(100_000));
    let ended = server.terminate();
    assert_eq!((ended.code, ended.count("open")), (Some(0), 0), "{}", ended.stderr);
}

fn a_refused_reload_changes_nothing_and_says_why_once(engine: &str) {
    let setup = Setup::new();
    let first = "listen = \"127.0.0.1:0\"\nheader = \"*=X-Old: yes\"\n";
    setup.configure(&format!("{first}root = \"ROOT/old\"\n"));
    let server = setup.serve(engine);
    let bad: [(&str, &[&str]); 6] = [
        ("root = \"ROOT/new\"\nindx = \"a\"\n", &["twinring.toml:2: indx: unknown key"]),
        ("root = \"ROOT/new\"\nheader = \"*=Date: x\"\n", &["decides on `Date`"]),
        ("root = \"ROOT/none\"\n", &["cannot serve --root", "No such file"]),
        ("root = [\n", &["twinring.toml:1: "]),
        (
            "listen = \"127.0.0.1:1\"\nworkers = 3\nroot = \"ROOT/new\"\n",
            &["listen, workers: cannot change while the server runs; restart it"],
        ),
        ("listen = \"127.0.0.1:0\"\n", &["no directory to serve"]),
    ];
    for (round, (text, words)) in bad.into_iter().enumerate() {
        setup.configure(text);
        reload(&server, REFUSED, round);
        let told = server.stderr();
        let last = told.lines().last().expect("a message");
        assert!(words.iter().all(|words| last.contains(words)), "{engine}: {last}");
        // A missing root was blamed on the sandbox as well.
        assert!(!last.contains("/none: restart it"), "{engine}: {last}");
        let answer = ask(&server, &get("/", ""));
        assert_eq!((answer.text().as_str(), answer.field("x-old")), ("old", Some("yes")));
    }
    std::fs::remove_file(&setup.config).expect("a file");
    reload(&server, REFUSED, bad.len());
    assert!(server.stderr().contains("cannot read --config"), "{}", server.stderr());
    let ended = server.terminate();
    assert_eq!((ended.code, ended.stderr.contains(DONE)), (Some(0), false));
}

/// Every file of it would get 403.
fn a_root_that_the_sandbox_hides_is_refused() {
    let setup = Setup::new();
    setup.configure("listen = \"127.0.0.1:0\"\nroot = \"ROOT/old\"\n");
    let server = setup.serve("epoll");
    let is_confined = server.ready["sandbox"]["landlock"]["on"] == true;
    setup.configure("listen = \"127.0.0.1:0\"\nroot = \"ROOT/new\"\n");
    match is_confined {
        true => {
            reload(&server, REFUSED, 0);
            assert!(server.stderr().contains("list the directory with --sandbox-read"));
            assert_eq!(ask(&server, &get("/", "")).text(), "old");
        }
        false => {
            reload(&server, DONE, 0);
            assert_eq!(ask(&server, &get("/", "")).text(), "new");
        }
    }
    assert_eq!(server.terminate().code, Some(0));
}

fn text_of(identity: &Identity) -> String {
    let line = |key: &str, path: &Path| format!("{key} = \"{}\"\n", path.display());
    line("tls-cert", &identity.certificate()) + &line("tls-key", &identity.key())
}

/// A host with a certificate.
fn host(name: &str, identity: &Identity) -> String {
    format!("[[host]]\nnames = \"{name}\"\n{}", text_of(identity))
}

fn hosts_have_certificates_of_their_own_which_a_reload_replaces(engine: &str) {
    let setup = Setup::new();
    let (whole, a, b) = (Identity::new(), Identity::of("a.org"), Identity::of("x.b.org"));
    let first = "listen-tls = \"127.0.0.1:0\"\nroot = \"ROOT/old\"\n";
    let hosts = host("a.org", &a) + &host("*.b.org", &b);
    setup.configure(&format!("{first}{}{hosts}", text_of(&whole)));
    let server = setup.serve(engine);
    let greet = |name, identity: &Identity| {
        let config = Arc::new(identity.trust(&VERSIONS));
        secure_for(name, connect(server.address()), &config).map(drop)
    };
    for (name, identity) in [("localhost", &whole), ("a.org", &a), ("x.b.org", &b)] {
        greet(name, identity).expect(name);
    }
    // An unknown name gets the certificate of the whole.
    greet("c.org", &whole).expect_err("not of this name");
    // One bad certificate, and no other is replaced.
    let kept = std::fs::read(b.certificate()).expect("a file");
    let old = Arc::new(a.trust(&VERSIONS));
    a.renew();
    std::fs::write(b.certificate(), "nonsense").expect("a file");
    reload(&server, REFUSED, 0);
    secure_for("a.org", connect(server.address()), &old).expect("the one in use");
    std::fs::write(b.certificate(), kept).expect("a file");
    reload(&server, DONE, 0);
    greet("a.org", &a).expect("the new one");
    greet("x.b.org", &b).expect("the same");
    // Without a default, a client without a certificate of its host is refused.
    setup.configure(&format!("{first}{hosts}"));
    reload(&server, DONE, 1);
    greet("a.org", &a).expect("of a host");
    greet("localhost", &whole).expect_err("of none");
    assert_eq!(server.terminate().code, Some(0), "{engine}");
}

fn half_a_certificate_of_a_host_is_an_error() {
    let setup = Setup::new();
    let certificate = "[[host]]\nnames = \"a.org\"\ntls-cert = \"x\"\n";
    setup.configure(&format!("root = \"ROOT/old\"\n{certificate}"));
    let config = setup.config.to_str().expect("UTF-8");
    let (code, _, told) = run(&["serve", "http", "--check", "--config", config]);
    assert!(code == Some(2) && told.contains(":2: host: tls-key is missing"), "{told}");
}
