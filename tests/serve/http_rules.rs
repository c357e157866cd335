//! The rules of an operator for hosts and paths of `serve http`: which files belong to which host, redirects,
//! passwords.

use crate::support::http::Is::*;
use crate::support::http::*;
use crate::support::tls::*;
use crate::support::*;

pub(crate) const TESTS: &[Test] = tests![
    each_host_has_its_own_files_and_rules_and_shares_no_cache_entry,
    without_a_default_unknown_hosts_are_misdirected,
    paths_and_hosts_are_redirected_before_files_are_looked_for,
    http_is_redirected_to_https_and_https_is_not,
    protected_directories_need_a_password_by_every_path_and_method,
    concurrent_verifications_of_passwords_have_a_bound,
    a_reload_replaces_users_and_forgets_the_verified,
];

/// Three sites: for `a.example.org`, for other hosts under `.example.org`, and what `default` says.
fn hosts(default: &str) -> Configured {
    let site = Site::new();
    for name in ["default", "exact", "wild"] {
        site.write(&format!("{name}/index.html"), name.as_bytes());
        site.write(&format!("{name}/same.txt"), name.as_bytes());
        site.write(&format!("{name}/large.bin"), name.repeat(30_000).as_bytes());
    }
    site.write("exact/404.html", b"none in exact");
    let hosts = r#"
        [server]
        listen = "127.0.0.1:0"
        [[default.rule]]
        headers.X-Whole = "yes"
        [[site]]
        names = ["a.example.org", "[::1]"]
        root = "ROOT/exact"
        rule = [{ error-pages.404 = "404.html", headers.X-Exact = "yes" }]
        [[site]]
        names = "*.example.org"
        root = "ROOT/wild"
        index = "none.html"
        rule = [{ listing = "html" }]
    "#;
    Configured::new(site, &format!("{default}{hosts}"))
}

fn each_host_has_its_own_files_and_rules_and_shares_no_cache_entry() {
    let configured = hosts("[[site]]\nroot = \"ROOT/default\"\n");
    let server = configured.serve();
    let (whole, exact) = (Field("x-whole", "yes"), Field("x-exact", "yes"));
    // Twice, so that the second answers come from the cache.
    for (host, expected) in [
        ("A.Example.ORG:8080", "exact"),
        ("[::1]:80", "exact"),
        ("c.b.example.org", "wild"),
        ("example.org", "default"),
    ]
    .repeat(2)
    {
        let large = expected.repeat(30_000);
        let own = if expected == "exact" { exact } else { Without("x-exact") };
        let small = (of_host(host, "/same.txt"), 200, &[Text(expected), whole, own][..]);
        server.check_both(&[small, (of_host(host, "/large.bin"), 200, &[Text(&large)])]);
    }
    server.check_both(&[
        (of_host("a.example.org", "/none"), 404, &[Text("none in exact")]),
        (of_host("b.example.org", "/"), 200, &[Holds("large.bin")]),
        (of_host("example.org", "/"), 200, &[Text("default")]),
    ]);
    // RFC 9112 section 3.2.2: a target in absolute form counts, not the field.
    let absolute = of_host("b.example.org", "http://a.example.org/same.txt");
    let old = "GET /same.txt HTTP/1.0\r\n\r\n".to_owned();
    let default: &[Is<'_>] = &[Text("default")];
    server.check_http1(&[
        (of_host("", "/same.txt"), 200, default),
        (old, 200, default),
        (absolute, 200, &[exact]),
    ]);
    server.end();
}

fn without_a_default_unknown_hosts_are_misdirected() {
    let configured = hosts("");
    let server = configured.serve();
    let mut stream = connect(server.address());
    for request in [
        of_host("unknown", "/same.txt").replacen("GET", "HEAD", 1),
        "OPTIONS * HTTP/1.1\r\nHost: example.org\r\n\r\n".to_owned(),
        of_host("a.example.org", "http://unknown/"),
    ] {
        assert_eq!(ask_on(&mut stream, &request).status, 421, "{request}");
    }
    let stays = ask_on(&mut stream, &of_host("b.example.org", "/same.txt"));
    assert_eq!(stays.text(), "wild", "the connection stays");
    server.check_http1(&[("GET / HTTP/1.0\r\n\r\n".to_owned(), 421, &[])]);
    server.check_both(&[(of_host("unknown", "/same.txt"), 421, &[])]);
}

const REDIRECTS: &str = r#"
    [server]
    listen = "127.0.0.1:0"
    [default]
    root = "ROOT"
    rule = [
        { headers.X-Rule = "yes" },
        { match = "/hello.txt", redirect = "/moved.txt" },
        { match = "/old/**", redirect = "/new/**", status = 302 },
        { match = "/old/deep/**", redirect = "https://example.org:8443/x/**", status = 308 },
        { match = "/old/here.txt", redirect = "https://example.org:8443/there?a=b", status = 307 },
        { match = "/all/**", redirect = "http://other.example/", status = 308 },
    ]
    [[site]]
    [[site]]
    names = "www.example.org"
    rule = [{ redirect = "https://example.org/**", status = 308 }]
    [[site]]
    names = "example.org"
"#;

fn paths_and_hosts_are_redirected_before_files_are_looked_for() {
    let configured = Configured::new(Site::usual(), REDIRECTS);
    let server = configured.serve();
    let at = |target| of_host("x", target);
    let to = |location| [Field("location", location)];
    server.check_both(&[
        (at("/%68ello.txt?q=1&r"), 301, &to("/moved.txt?q=1&r")),
        (at("/old/a%20b/%0d%0aX:y?%0d%0a"), 302, &to("/new/a%20b/%0D%0AX:y?%0d%0a")),
        (at("/old///evil.example/..//%5Ce?"), 302, &to("/new/%5Ce?")),
        (at("/old/%C3%BC"), 302, &to("/new/%C3%BC")),
        (at("/old/deep/x"), 308, &to("https://example.org:8443/x/x")),
        (at("/old/"), 302, &to("/new/")),
        (at("/old/here.txt?c"), 307, &to("https://example.org:8443/there?a=b&c")),
        (of_host("WWW.example.org:80", "/a/b?c"), 308, &to("https://example.org/a/b?c")),
        // Inherited.
        (of_host("example.org", "/hello.txt"), 301, &to("/moved.txt")),
        // Not of a rule.
        (at("/old"), 404, &[Without("location")]),
        (at("/index.html"), 200, &[Without("location")]),
        (at("/all/"), 308, &[Text("308 Permanent Redirect\n"), Field("x-rule", "yes")]),
        (at("/old/x").replacen("GET", "OPTIONS", 1), 204, &[]),
    ]);
    // Many at once, between files.
    let hosts = [("x", "/old/1"), ("x", "/large.bin"), ("x", "/old/2"), ("www.example.org", "/3")];
    let pipelined = hosts.map(|(host, target)| of_host(host, target)).concat();
    assert_eq!(statuses(&server, &pipelined), [302, 200, 302, 308]);
    server.end();
}

/// No password is asked for before that; and there was no way to renew a certificate: the path of ACME was redirected.
fn http_is_redirected_to_https_and_https_is_not() {
    let (configured, identity) = (protected(""), Identity::new());
    configured.site.write(".well-known/acme-challenge/token", b"token");
    let rules = format!(
        "default.rule = [{{ match = '/old/**', redirect = '/new/**' }}, \
         {{ match = '/private/**', auth = '{}' }}]",
        configured.etc.file("users")
    );
    let keys = ["default.redirect-to-https = true", "default.hsts = 'max-age=60'", &rules];
    let server = serve(ENGINE, configured.site.path(), &identity, &keys);
    let to = |location| [Field("location", location), Without("strict-transport-security")];
    server.check_http1(&[
        (of_host("a.example:80", "/x?y=%0d%0a"), 301, &to("https://a.example/x?y=%0d%0a")),
        (of_host("[::1]:80", "/old/x"), 301, &to("https://[::1]/old/x")),
        (of_host("a", "//evil.example/.."), 301, &to("https://a//evil.example/..")),
        (get("/private/", ANN), 301, &to("https://test/private/")),
        (of_host("a", "/.well-known/acme-challenge/token"), 200, &[Text("token")]),
        // A location needs the host.
        (of_host("", "/"), 400, &[Without("location")]),
        ("GET / HTTP/1.0\r\n\r\n".to_owned(), 400, &[Without("location")]),
    ]);
    let config = Arc::new(identity.trust(&VERSIONS));
    let mut client = secure(encrypted(&server), &config).expect("a handshake");
    for row in [
        (get("/hello.txt", ""), 200),
        // From the cache.
        (get("/hello.txt", ""), 200),
        (get("/old/x", ""), 301),
        (get("/none", ""), 404),
        (get("/private/", ANN), 200),
        (get("/private/", WRONG), 401),
    ] {
        let is = [Field("strict-transport-security", "max-age=60")];
        check(&ask_on(&mut client, &row.0), &(row.0, row.1, &is));
    }
    // A server may only redirect.
    let text = "[server]\nlisten = '127.0.0.1:0'\n[[site]]\nredirect-to-https = 8443\n";
    let configured = Configured::new(Site::new(), text);
    configured.serve().check_both(&[(of_host("[::1]", "/x"), 301, &to("https://[::1]:8443/x"))]);
}

/// `ann` with the password `secret`, and `bob` with `other`.
const USERS: &str = "# users\nann:$2b$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW\n\
                     bob:$2y$05$......................XDi2tGuW8MfnekmA8fwOvEPig4ugXbC\n";

/// `Authorization` of `ann:secret`, `bob:other`, `ann:other`.
const ANN: &str = "Authorization: Basic YW5uOnNlY3JldA==\r\n";
const BOB: &str = "Authorization: basic Ym9iOm90aGVy\r\n";
const WRONG: &str = "Authorization: Basic YW5uOm90aGVy\r\n";

fn of_bob() -> &'static str {
    USERS.lines().last().expect("a line")
}

fn protected(text: &str) -> Configured {
    let site = Site::usual();
    site.write("private/index.html", b"private");
    site.write("private/deep/large.bin", &pattern(7, 300_000));
    site.write("private/other/x.txt", b"of bob");
    let configured = Configured::new(site, text);
    configured.etc.write("users", USERS.as_bytes());
    configured.etc.write("others", format!("{}\n", of_bob()).as_bytes());
    configured
}

const PROTECTED: &str = r#"
    [server]
    listen = "127.0.0.1:0"
    [[site]]
    root = "ROOT"
    rule = [
        { listing = "html", headers.X-Rule = "yes" },
        { match = "/private/**", auth = "ETC/users", realm = "the vault" },
        { match = "/private/other/**", auth = "ETC/others", realm = "the vault" },
    ]
"#;

fn protected_directories_need_a_password_by_every_path_and_method() {
    let configured = protected(PROTECTED);
    let server = configured.serve();
    let realm = Field("www-authenticate", "Basic realm=\"the vault\", charset=\"UTF-8\"");
    let asked = [realm, Text("401 Unauthorized\n"), Field("x-rule", "yes")];
    let given = [Without("www-authenticate"), Field("x-rule", "yes")];
    let row = |target, fields, status: u16| {
        (get(target, fields), status, if status == 401 { &asked[..] } else { &given })
    };
    let rows = [
        row("/hello.txt", "", 200),
        row("/private/", "", 401),
        row("/private/", WRONG, 401),
        row("/private/", ANN, 200),
        row("/private/none", ANN, 404),
        row("/private/deep/large.bin", WRONG, 401),
        row("/private/deep/large.bin", ANN, 200),
        row("/private/deep/large.bin", "Range: bytes=0-9\r\n", 401),
        row("/private/deep", "", 401),
        row("/private/other/x.txt", ANN, 401),
        row("/private/other/x.txt", BOB, 200),
        // Other ways to write the path.
        row("/%70rivate/", "", 401),
        row("/x/../private/index.html?x", "", 401),
    ];
    // Again, so that later ones are answered from the cache.
    (0..2).for_each(|_| server.check_both(&rows));
    server.check_http1(&[
        row("http://test/private/index.html", "", 401),
        (get("/private/", "").replacen("GET", "HEAD", 1), 401, &[realm]),
        (get("/private/", "Content-Length: 2\r\n") + "ab", 401, &asked),
    ]);
    let pipelined = get("/private/", ANN) + &get("/private/", "") + &get("/hello.txt", "");
    assert_eq!(statuses(&server, &pipelined), [200, 401, 200]);
    server.end();
}

/// Each verification takes a thread and CPU time.
fn concurrent_verifications_of_passwords_have_a_bound() {
    let configured = protected(PROTECTED);
    // It takes longer than all requests need to arrive; the hash is of another cost, so the password is wrong.
    configured.etc.write("users", USERS.replacen("$04$", "$11$", 1).as_bytes());
    let server = configured.serve();
    let request = get("/private/", ANN);
    let mut clients: Vec<_> = (0..40).map(|_| begin(server.address(), &request)).collect();
    let answers = clients.iter_mut().map(|client| read_response(client, false).status);
    let (wrong, busy): (Vec<u16>, Vec<u16>) = answers.partition(|status| *status == 401);
    let are_both = !wrong.is_empty() && !busy.is_empty();
    assert!(are_both && busy.iter().all(|status| *status == 503), "{wrong:?} {busy:?}");
    // Others are served meanwhile and afterwards.
    server.check_http1(&[(get("/hello.txt", ""), 200, &[])]);
    wait_until("there is room again", || ask(&server, &get("/private/", BOB)).status == 200);
}

fn a_reload_replaces_users_and_forgets_the_verified() {
    let configured = protected(PROTECTED);
    let server = configured.serve();
    server.check_both(&[(get("/private/", ANN), 200, &[])]);
    configured.etc.write("users", b"ann:secret\n");
    reload(&server, "line 1: its hash is not bcrypt");
    server.check_both(&[(get("/private/", ANN), 200, &[])]);
    configured.etc.write("users", of_bob().as_bytes());
    reload(&server, "were reloaded");
    server.check_both(&[(get("/private/", ANN), 401, &[]), (get("/private/", BOB), 200, &[])]);
}
