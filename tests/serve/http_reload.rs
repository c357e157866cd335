//! SIGHUP of `serve http`: the configuration is replaced as a whole or not at all. With it, certificates of hosts.

use crate::support::http::Is::*;
use crate::support::http::*;
use crate::support::tls::*;
use crate::support::*;

pub(crate) const TESTS: &[Test] = tests![
    a_reload_replaces_everything_for_later_requests,
    a_refused_reload_changes_nothing_and_says_why_once,
    a_root_that_the_sandbox_hides_is_refused,
    a_link_to_the_present_release_can_be_switched,
    the_service_manager_and_the_metrics_know_how_a_reload_ended,
    hosts_have_certificates_of_their_own_which_a_reload_replaces
];

const DONE: &str = "were reloaded";
const REFUSED: &str = "nothing was reloaded, the previous configuration stays in use: ";

/// A site of this root, with these keys behind it; before them, keys of `[server]`.
fn site(server: &str, root: &str, keys: &str) -> String {
    format!("[server]\nlisten = \"127.0.0.1:0\"\n{server}[[site]]\nroot = \"ROOT/{root}\"\n{keys}")
}

/// Two roots, `ROOT/old` and `ROOT/new`.
fn roots(text: &str) -> Configured {
    let site = Site::new();
    for root in ["old", "new"] {
        site.write(&format!("{root}/index.html"), root.as_bytes());
        site.write(&format!("{root}/large.bin"), root.repeat(100_000).as_bytes());
    }
    Configured::new(site, text)
}

fn a_reload_replaces_everything_for_later_requests() {
    let keys = "workers = 2\nsandbox-read = \"ROOT\"\n";
    let configured = roots(&site(keys, "old", "rule = [{ headers.X-Old = \"yes\" }]\n"));
    let server = configured.serve();
    let mut stays: Vec<_> = (0..4).map(|_| connect(server.address())).collect();
    for stream in &mut stays {
        let answer = ask_on(stream, &get("/", ""));
        assert_eq!((answer.text().as_str(), answer.field("x-old")), ("old", Some("yes")));
    }
    // An answer under way is finished as it was begun.
    let mut slow = begin(server.address(), get("/large.bin", ""));
    slow.peek(&mut [0]).expect("the answer begins");
    let host =
        "[[site]]\nnames = \"a.org\"\nroot = \"ROOT/old\"\nrule = [{ headers.X-Host = \"a\" }]\n";
    // Connections of before are known to rules that ask for it.
    let rule = "rule = [{ allow = \"127.0.0.1\" }]\n";
    configured.write(&site(keys, "new", &format!("{rule}{host}")));
    reload(&server, DONE);
    for stream in &mut stays {
        let answer = ask_on(stream, &get("/", ""));
        assert_eq!((answer.text().as_str(), answer.field("x-old")), ("new", None));
    }
    server.check_both(&[(of_host("a.org", "/"), 200, &[Text("old"), Field("x-host", "a")])]);
    assert_eq!(read_response(&mut slow, false).text(), "old".repeat(100_000));
    drop((stays, slow));
    server.end();
}

fn a_refused_reload_changes_nothing_and_says_why_once() {
    let configured = roots(&site("[[default.rule]]\nheaders.X-Old = \"yes\"\n", "old", ""));
    let server = configured.serve();
    for (text, words) in [
        ("[[site]]\nroot = \"ROOT/new\"\nindx = \"a\"\n", "twinring.toml:3: indx: unknown key"),
        ("[[site]]\nroot = \"ROOT/none\"\n", "No such file"),
        (
            &*site("workers = 3\n", "new", "").replace(":0", ":1"),
            "[server] listen, workers: cannot change while the server runs; restart it",
        ),
    ] {
        configured.write(text);
        reload(&server, REFUSED);
        let told = server.stderr();
        let last = told.lines().last().expect("a message");
        assert!(last.contains(words), "{last}");
        // A missing root was blamed on the sandbox as well.
        assert!(!last.contains("/none: restart it"), "{last}");
        server.check_both(&[(get("/", ""), 200, &[Text("old"), Field("x-old", "yes")])]);
    }
    fs::remove_file(configured.path()).expect("a file");
    reload(&server, REFUSED);
    let told = server.end().stderr;
    assert!(told.contains("cannot read --config") && !told.contains(DONE), "{told}");
}

/// Every file of it would get 403.
fn a_root_that_the_sandbox_hides_is_refused() {
    let configured = roots(&site("", "old", ""));
    let server = configured.serve();
    let is_confined = server.ready["sandbox"]["landlock"]["on"] == true;
    configured.write(&site("", "new", ""));
    let serves = if is_confined {
        reload(&server, REFUSED);
        assert!(server.stderr().contains("list the directory in sandbox-read"));
        "old"
    } else {
        reload(&server, DONE);
        "new"
    };
    server.check_both(&[(get("/", ""), 200, &[Text(serves)])]);
}

/// It served the old release, and 404 once that was removed, without a word. (No configuration file is needed.)
fn a_link_to_the_present_release_can_be_switched() {
    let site = Site::new();
    for release in ["1", "2"] {
        site.write(&format!("releases/{release}/index.html"), release.as_bytes());
    }
    let (present, next) = (site.path().join("present"), site.path().join("next"));
    std::os::unix::fs::symlink("releases/1", &present).expect("a link");
    let server = Server::http(ENGINE, &present, &[]);
    server.check_both(&[(get("/", ""), 200, &[Text("1")])]);
    std::os::unix::fs::symlink("releases/2", &next).expect("a link");
    fs::rename(&next, &present).expect("a link to replace");
    reload(&server, DONE);
    fs::remove_dir_all(site.path().join("releases/1")).expect("a directory");
    server.check_both(&[(get("/", ""), 200, &[Text("2")])]);
    server.end();
}

/// A refused reload looked like a success.
fn the_service_manager_and_the_metrics_know_how_a_reload_ended() {
    let admin = "admin = \"127.0.0.7:0\"\n";
    let configured = roots(&site(admin, "old", ""));
    let path = configured.etc.path().join("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(&path).expect("a socket");
    manager.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let next = || {
        let mut text = [0; 4096];
        let length = manager.recv(&mut text).expect("a message");
        String::from_utf8_lossy(&text[..length]).into_owned()
    };
    let mut command = serving(twinring(), "http", ENGINE, &["--config", &configured.path()]);
    command.env("NOTIFY_SOCKET", &path);
    let server = Server::spawn(command);
    assert_eq!(next(), "READY=1");
    for (more, how) in [("", "sites were reloaded"), ("indx = 1\n", "nothing was reloaded")] {
        configured.write(&site(admin, "old", more));
        reload(&server, how);
        assert!(next().starts_with("RELOADING=1\nMONOTONIC_USEC="), "{how}");
        let end = next();
        assert!(end.starts_with(&format!("READY=1\nSTATUS={how}")), "{end}");
    }
    let metrics = ask_last(server.admin(), &get("/metrics", "")).text();
    for line in ["{result=\"done\"} 1\n", "{result=\"refused\"} 1\n"] {
        assert!(metrics.contains(&format!("twinring_http_reloads_total{line}")), "{metrics}");
    }
    server.end();
    assert_eq!(next(), "STOPPING=1");
}

/// A host with a certificate.
fn host(name: &str, identity: &Identity) -> String {
    format!("[[site]]\nnames = \"{name}\"\n{}", text_of(identity))
}

fn text_of(identity: &Identity) -> String {
    let line = |key: &str, path: &Path| format!("{key} = \"{}\"\n", path.display());
    line("tls-cert", &identity.certificate()) + &line("tls-key", &identity.key())
}

fn hosts_have_certificates_of_their_own_which_a_reload_replaces() {
    let (whole, a, b) = (Identity::new(), Identity::of("a.org"), Identity::of("x.b.org"));
    let first =
        "[server]\nlisten-tls = \"127.0.0.1:0\"\n[default]\nroot = \"ROOT/old\"\n[[site]]\n";
    let hosts = host("a.org", &a) + &host("*.b.org", &b);
    let configured = roots(&format!("{first}{}{hosts}", text_of(&whole)));
    let server = configured.serve();
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
    let kept = fs::read(b.certificate()).expect("a file");
    let old = Arc::new(a.trust(&VERSIONS));
    let mut stays = secure_for("a.org", connect(server.address()), &old).expect("a handshake");
    a.renew();
    fs::write(b.certificate(), "nonsense").expect("a file");
    reload(&server, REFUSED);
    secure_for("a.org", connect(server.address()), &old).expect("the one in use");
    // That was read on the signal thread, which then handled no further signal.
    fs::remove_file(b.certificate()).expect("a file");
    nix::unistd::mkfifo(&b.certificate(), nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    reload(&server, "is a FIFO, not a regular file");
    fs::remove_file(b.certificate()).expect("a pipe");
    fs::write(b.certificate(), kept).expect("a file");
    reload(&server, DONE);
    greet("a.org", &a).expect("the new one");
    secure_for("a.org", connect(server.address()), &old).expect_err("it is shown no more");
    // A connection outlives the certificate that it began with.
    assert_eq!(ask_on(&mut stays, &of_host("a.org", "/")).text(), "old");
    drop(stays);
    greet("x.b.org", &b).expect("the same");
    // Without a default, a client without a certificate of its host is refused.
    configured.write(&format!("{first}{hosts}"));
    reload(&server, DONE);
    greet("a.org", &a).expect("of a host");
    greet("localhost", &whole).expect_err("of none");
    server.end();
}
