//! The site of docs/from-nginx.md, as nginx and as `serve http` answer it, request by request.

use crate::support::http::*;
use crate::support::nginx::nginx;
use crate::support::*;

pub(crate) const TESTS: &[Test] = tests![
    the_site_of_the_documentation_is_answered_as_by_nginx,
    a_client_beyond_its_rate_gets_429
];

const TARGETS: &str = "/ /about?q=1 /about.html /plain.txt /style.css /image.png /none /none.html /none/ \
    /downloads /downloads/ /downloads/a.zip /assets/app.js /assets/none.js /old?a=b /moved/a.zip?x \
    /moved/ /private/secret.html /office/plan.html /both /both/ /%61bout /x/../about //about";

const PAGE: &str = include_str!("../../docs/from-nginx.md");

/// The block of this language in the page.
fn block(language: &str) -> &'static str {
    let (_, rest) = PAGE.split_once(&format!("```{language}\n")).expect("a block");
    rest.split_once("```").expect("its end").0
}

fn site() -> Site {
    let site = Site::new();
    for (name, content) in [
        ("index.html", "home"),
        ("404.html", "nothing here"),
        ("about.html", "about"),
        ("plain.txt", "text"),
        ("style.css", "a{}"),
        ("image.png", "png"),
        ("downloads/a.zip", "zip"),
        ("assets/app.js", "let a = 1;"),
        ("private/secret.html", "secret"),
        ("office/plan.html", "plan"),
        ("both.html", "page"),
        ("both/index.html", "directory"),
    ] {
        site.write(name, content.as_bytes());
    }
    site
}

/// The path of a location, which nginx gives as a URL of the requested host.
fn location(answer: &Response) -> Option<&str> {
    let location = answer.field("location")?;
    let rest = location.strip_prefix("http://").map(|rest| rest.find('/').map(|at| &rest[at..]));
    rest.flatten().or(Some(location))
}

/// What must be the same in both answers. nginx declares no charset of passwords, and lets listings be cached; 1.22 has
/// the type of scripts of before RFC 9239.
fn compared(answer: &Response, is_listing: bool) -> Vec<Option<String>> {
    let field = |name: &str| {
        let value = answer.field(name).filter(|_| !is_listing || name != "cache-control")?;
        Some(value.replace(", charset=\"UTF-8\"", ""))
    };
    let mut all = vec![Some(answer.status.to_string()), location(answer).map(str::to_owned)];
    all.extend(["www-authenticate", "cache-control", "x-content-type-options"].map(field));
    // Each has its own short pages and listings.
    if matches!(answer.status, 200 | 404) && !is_listing {
        let (old, new) = ("application/javascript", "text/javascript; charset=utf-8");
        all.extend([Some(answer.text()), field("content-type").map(|it| it.replace(old, new))]);
    }
    all
}

fn the_site_of_the_documentation_is_answered_as_by_nginx() {
    let (site, etc) = (site(), Site::new());
    let users =
        etc.write("users", b"ann:$2b$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW\n");
    let (root, users) = (site.path().display().to_string(), users.display().to_string());
    let here = |text: &str| text.replace("/srv/www", &root).replace("/etc/nginx/users", &users);
    fs::set_permissions(site.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("a directory");
    let theirs = nginx(&here(block("nginx")), etc.path());
    let text = here(block("toml")).replace("\":8080\"", "\"127.0.0.1:0\"");
    let configured = Configured::new(site, &text);
    let ours = configured.serve();
    let mut differences = Vec::new();
    for target in TARGETS.split_whitespace() {
        for method in ["GET", "HEAD"] {
            let host = "Host: example.org\r\nConnection: close";
            let request = format!("{method} {target} HTTP/1.1\r\n{host}\r\n\r\n");
            let [expected, found] = [theirs.address, ours.address()].map(|address| {
                let bytes = talk_until_closed(address, &request);
                // Some have no length.
                let end = memchr::memmem::find(&bytes, b"\r\n\r\n").expect("a head") + 4;
                let head = read_response(&mut &bytes[..end], true);
                let answer = Response { body: bytes[end..].to_vec(), ..head };
                compared(&answer, target == "/downloads/")
            });
            if expected != found {
                differences.push(format!("{method} {target}: {expected:?}, here {found:?}"));
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

fn a_client_beyond_its_rate_gets_429() {
    let rule = "default.rule = [{ match = '/sub/**', rate = 1, burst = 3, error-pages = { 429 = 'hello.txt' } }]";
    let (_site, server) = served(&[rule, "server.forwarded-from = '127.0.0.1'"]);
    let from = |client: &str| get("/sub/", &format!("X-Forwarded-For: {client}\r\n"));
    let mut stream = connect(server.address());
    let mut answers = (0..5).map(|_| ask_on(&mut stream, &from("192.0.2.1")));
    assert!(answers.by_ref().take(3).all(|answer| answer.status == 200));
    let refused = answers.next().expect("one");
    assert_eq!((refused.status, refused.field("retry-after")), (429, Some("1")));
    assert_eq!(refused.text(), "0123456789abcdefghijklmnopqrstuvwxyz");
    drop(answers);
    // Other clients and other paths are not concerned.
    for request in [from("192.0.2.2"), from("192.0.2.1").replace("/sub/", "/hello.txt")] {
        assert_eq!(ask_on(&mut stream, &request).status, 200);
    }
}
