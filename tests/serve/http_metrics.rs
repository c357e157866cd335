//! The admin service of `twinring serve http`: metrics and health.

use crate::support::http::*;
use crate::support::*;
use std::collections::HashSet;

pub(crate) const TESTS: &[Test] = tests![
    metrics_are_in_the_text_format_and_match_events,
    durations_are_counted_by_configured_host_and_class_also_across_a_reload,
    the_admin_service_is_as_strict_as_the_other_and_knows_nothing_else
];

/// A sample: its name with its labels, and its value.
type Samples = HashMap<String, f64>;

/// Reads the text format of Prometheus, strictly: every family has HELP and TYPE once, in this
/// order and before its samples, which stand together; counters, and only they, end in `_total`;
/// no series comes twice.
fn parse(text: &str) -> Samples {
    let mut samples = Samples::new();
    let mut families = HashSet::new();
    let (mut helped, mut family) = ("", ("", ""));
    assert!(text.ends_with('\n'));
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            helped = rest.split_once(' ').expect("a text").0;
            assert!(line.ends_with('.') && families.insert(helped), "{line}");
            continue;
        }
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            family = rest.split_once(' ').expect("a type");
            assert!(["counter", "gauge", "histogram"].contains(&family.1), "{line}");
            let is_total = family.0.ends_with("_total");
            assert!(family.0 == helped && is_total == (family.1 == "counter"), "{line}");
            continue;
        }
        let (series, value) = line.rsplit_once(' ').expect("a value");
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        let labels = labels.strip_suffix('}').expect("an end");
        let is_quoted =
            |it: &str| it.split('"').count() == 3 && it.contains("=\"") && it.ends_with('"');
        assert!(labels.is_empty() || labels.split(',').all(is_quoted), "{line}");
        let is_of_family = match (name.strip_prefix(family.0), family.1) {
            (Some(suffix), "histogram") => ["_bucket", "_sum", "_count"].contains(&suffix),
            (suffix, _) => suffix == Some(""),
        };
        let value: f64 = value.parse().expect("a number");
        assert!(is_of_family && value >= 0.0, "{line}");
        assert!(samples.insert(series.to_owned(), value).is_none(), "twice: {line}");
    }
    samples
}

/// The sum of a family's samples that have this label, or of all for an empty one. There is at least one.
fn sum(samples: &Samples, name: &str, label: &str) -> f64 {
    let name = format!("twinring_http_{name}");
    let is_it = |series: &str| series.split('{').next() == Some(&name) && series.contains(label);
    let values: Vec<f64> = samples.iter().filter(|it| is_it(it.0)).map(|it| *it.1).collect();
    assert!(!values.is_empty(), "no {name} with {label}");
    values.iter().sum()
}

fn metrics_are_in_the_text_format_and_match_events() {
    let (site, logs, identity) = (Site::usual(), Site::new(), tls::Identity::new());
    let arguments = ["--workers", "2", "--access-log", &logs.file("log")];
    let arguments = [&identity.arguments()[..], &arguments].concat();
    let (server, admin) = with_admin(&site, &arguments);
    for target in ["/hello.txt", "/hello.txt", "/none", "/sub", "/large.bin"] {
        ask(&server, &get(target, ""));
    }
    let stream = connect(server.address());
    let mut samples = Samples::new();
    wait_until("what was counted is told", || {
        let answer = ask_last(admin, &get("/metrics", ""));
        let content_type = answer.field("content-type");
        assert_eq!(content_type, Some("text/plain; version=0.0.4; charset=utf-8"));
        samples = parse(&answer.text());
        sum(&samples, "access_log_lines_total", "written") == 5.0
            && sum(&samples, "connections_open", "") == 1.0
    });
    for (name, label, expected) in [
        ("ready", "", 1.0),
        ("connections_accepted_total", "", 6.0),
        ("responses_total", "class=\"2xx\"", 3.0),
        ("responses_total", "class=\"3xx\"", 1.0),
        ("responses_total", "class=\"4xx\"", 1.0),
        ("connections_ended_early_total", "", 0.0),
        ("access_log_lines_total", "dropped", 0.0),
    ] {
        assert_eq!(sum(&samples, name, label), expected, "{name} {label}");
    }
    assert!(sum(&samples, "sent_bytes_total", "worker=\"0\"") < 701_500.0);
    assert!(sum(&samples, "sent_bytes_total", "") > 700_000.0);
    let engine = format!("engine={}}}", server.ready["engine"]);
    let is_of_build = |it: &String| it.starts_with("twinring_build_info") && it.ends_with(&engine);
    assert!(samples.keys().any(is_of_build));
    for name in ["twinring_runtime_syscalls_total", "process_resident_memory_bytes"] {
        assert!(samples[name] > 0.0, "{name}");
    }
    assert!(samples["process_open_fds"] < samples["process_max_fds"]);
    // Dashboard and alerts use metrics that exist.
    let exist: HashSet<_> = samples.keys().flat_map(|series| series.split('{').next()).collect();
    let mut used = names_in(include_str!("../../deploy/grafana/twinring-http.json"));
    used.extend(names_in(include_str!("../../deploy/prometheus/twinring.rules.yml")));
    let missing: Vec<_> = used.difference(&exist).collect();
    assert!(used.len() > 15 && missing.is_empty(), "no such metric: {missing:?}");
    drop(stream);
    server.end();
}

const DURATION: &str = "twinring_http_request_duration_seconds";

fn durations_are_counted_by_configured_host_and_class_also_across_a_reload() {
    let host =
        |name: &str| format!("[[site]]\nnames = [\"{name}\", \"www.{name}\"]\nroot = \"ROOT\"\n");
    let first = "[server]\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.7:0\"\nworkers = 2\n\
                 [default]\nrule = [{ match = \"/moved\", redirect = \"/\" }]\n\
                 [[site]]\nroot = \"ROOT\"\n";
    let configured = Configured::new(Site::usual(), &format!("{first}{}", host("a.org")));
    let server = configured.serve();
    let ask_all = || {
        let of_a = ["/hello.txt", "/hello.txt", "/moved", "/none"].map(|it| of_host("a.org", it));
        assert_eq!(statuses(&server, &of_a.concat()), [200, 200, 301, 404]);
        ask(&server, &of_host("www.a.org", "/large.bin"));
        ask(&server, &of_host("unlisted.example", "/hello.txt"));
        assert_eq!(statuses(&server, "GET\r\n\r\n"), [400]);
    };
    let count = |host: &str, class: &str, expected: f64| {
        let labels = format!("host=\"{host}\",class=\"{class}\"");
        let of = |what: &str, more: &str| format!("{DURATION}_{what}{{{labels}{more}}}");
        wait_until(&labels, || {
            let text = ask_last(server.admin(), &get("/metrics", "")).text();
            // Names of requests are no labels.
            assert!(!text.contains("unlisted") && !text.contains("www."), "{text}");
            let samples = parse(&text);
            let all = [of("count", ""), of("bucket", ",le=\"+Inf\"")].map(|it| samples.get(&it));
            assert!(samples.get(&of("sum", "")).is_none_or(|seconds| *seconds < 600.0), "{text}");
            all == [Some(&expected); 2]
        });
    };
    ask_all();
    for (host, class, expected) in [
        ("a.org", "2xx", 3.0),
        ("a.org", "3xx", 1.0),
        ("a.org", "4xx", 1.0),
        ("*", "2xx", 1.0),
        ("", "4xx", 1.0),
    ] {
        count(host, class, expected);
    }
    configured.write(&format!("{first}{}{}", host("b.org"), host("a.org")));
    reload(&server, "were reloaded");
    ask_all();
    ask(&server, &of_host("b.org", "/hello.txt"));
    count("a.org", "2xx", 6.0);
    count("b.org", "2xx", 1.0);
    server.end();
}

/// The names of metrics in a text: those that begin with one of our prefixes.
fn names_in(text: &str) -> HashSet<&str> {
    let words = text.split(|byte: char| !byte.is_ascii_alphanumeric() && byte != '_');
    words.filter(|word| word.starts_with("twinring_") || word.starts_with("process_")).collect()
}

fn the_admin_service_is_as_strict_as_the_other_and_knows_nothing_else() {
    let site = Site::usual();
    let (server, admin) = with_admin(&site, &[]);
    for (request, status) in [
        (get("/hello.txt", ""), 404),
        (get("/metrics?x=y", ""), 200),
        ("POST /metrics HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n".to_owned(), 405),
        ("GET /metrics HTTP/1.1\nHost: h\n\n".to_owned(), 400),
        ("GET /metrics HTTP/1.0\r\n\r\n".to_owned(), 200),
        (get(&format!("/{}", "x".repeat(2000)), ""), 414),
        (get("/", &format!("X: {}\r\n", "x".repeat(9000))), 431),
    ] {
        assert_eq!(ask_last(admin, &request).status, status, "{request}");
    }
    let head = talk(admin, "HEAD /healthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    let head = String::from_utf8(head).expect("text");
    assert!(head.contains("Content-Length: 3\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    assert_eq!(ask(&server, &get("/metrics", "")).status, 404, "the service does not tell");
    // Slow clients block neither service.
    let slow: Vec<TcpStream> = (0..100)
        .map(|_| {
            let mut stream = connect(admin);
            // Beyond the bound they are closed at once, perhaps before this is sent.
            let _closed = stream.write_all(b"GET /healthz HTTP/1.1\r\n");
            stream
        })
        .collect();
    assert_eq!(ask(&server, &get("/hello.txt", "")).status, 200);
    wait_until("the slow ones are gone", || {
        let mut stream = connect(admin);
        let _refused = stream.write_all(get("/healthz", "").as_bytes());
        read_to_end(&stream).is_ok_and(|answer| answer.starts_with(b"HTTP/1.1 200"))
    });
    drop(slow);
    server.end_with(&[("requests", 2)]);
}
