//! `twinring load http` against servers of known behaviour: requests match the options,
//! answers are separated in any chunks, and the counts balance.

use crate::support::http::Site;
use crate::support::load::*;
use crate::support::*;

pub(crate) const TESTS: &[Test] = tests![
    urls_come_from_a_file_too,
    requests_of_a_file_have_their_own_method_fields_and_content,
    another_address_than_that_of_the_url_is_asked,
    latencies_are_written_for_plotters,
    a_table_is_printed_for_people,
    files_that_cannot_be_read_are_named_and_end_with_1,
    an_open_loop_counts_requests_delayed_by_a_stall_and_the_uncorrected_latency,
    a_number_of_requests_is_sent_completely,
    slow_content_is_long_latency_and_short_time_to_the_first_byte;
    engines:
    a_correct_server_has_no_errors_and_all_counts_balance,
    many_answers_in_one_buffer_are_separated_in_order,
    without_keepalive_each_request_has_a_connection
];

pub(crate) const NOTHING_LOST: [(&str, u64); 3] =
    [("/whole_run/abandoned", 0), ("/connections/reconnects", 0), ("/connections/lost", 0)];

fn a_correct_server_has_no_errors_and_all_counts_balance(engine: &str) {
    let target = answering(|_| ok("hello"));
    let cases = [
        "-c 8 -t 2",
        "-c 3 --pipeline 7",
        "-c 4 --rate 2000",
        "-c 2 --rate 1000 --pipeline 5 -t 2",
        "-c 6 --local 127.0.0.2,127.0.0.3 --any-length",
        "-c 2 --expect-length 5",
        "-c 2 --verify-body --slo p99=60s --max-error-rate 0",
    ];
    for case in cases {
        // After a delay of half a second, a part of the window is left.
        let outcome = run_http(engine, target, &format!("-d 700ms --warmup 50ms {case}"));
        outcome.expect(0, &[]);
        assert_eq!(outcome.result["engine"], engine);
        let asked = outcome.number("/settings/connections");
        outcome.has(&["/connections/established", "/connections/served"].map(|it| (it, asked)));
        outcome.has(&NOTHING_LOST);
        let answered = outcome.number("/requests/answered");
        assert!(answered > 0, "{case}");
        outcome.has(&[
            ("/bytes/bodies", 5 * answered),
            ("/bytes/received", ok("hello").len() as u64 * answered),
            ("/status_codes/200", answered),
            ("/urls/0/answered", outcome.number("/whole_run/answered")),
        ]);
    }
}

fn many_answers_in_one_buffer_are_separated_in_order(engine: &str) {
    // The server answers all it has read at once. Content is that of the URL asked for, so an
    // answer out of order has another length.
    let target = serve(|_, stream| {
        let mut writer = stream.try_clone().unwrap();
        let mut reader = BufReader::new(stream);
        let mut waiting = String::new();
        let mut line = String::new();
        while matches!(reader.read_line(&mut line), Ok(1..)) {
            if let Some(path) = line.strip_prefix("GET ").and_then(|rest| rest.split(' ').next()) {
                waiting.push_str(&ok(&path.repeat(path.len())));
            }
            line.clear();
            if reader.buffer().is_empty() {
                if writer.write_all(waiting.as_bytes()).is_err() {
                    return;
                }
                waiting.clear();
            }
        }
    });
    let urls: Vec<String> = (1..=5).map(|n| format!("http://{target}/{}", "y".repeat(n))).collect();
    let loaded = |seed: &str| {
        let arguments = "-c 1 -n 4000 --pipeline 10 --verify-body --weights 1,2,3,4,5";
        let mut command = command(engine, "http", &urls[0], arguments);
        command.args(&urls[1..]).args(["--seed", seed]);
        let outcome = finished(command);
        outcome.expect(0, &[]);
        outcome.has(&[("/whole_run/answered", 4000)]);
        outcome
    };
    let outcome = loaded("1");
    for (at, weight) in (1..=5).enumerate() {
        let sent = outcome.number(&format!("/urls/{at}/sent"));
        let expected = 4000 * weight / 15;
        assert!(sent.abs_diff(expected) < 200, "{sent} of weight {weight}");
    }
    assert_eq!(loaded("1").result["urls"], outcome.result["urls"]);
    assert_ne!(loaded("2").result["urls"], outcome.result["urls"]);
}

fn urls_come_from_a_file_too() {
    let target = answering(|_| ok("hello"));
    let file = tempfile::NamedTempFile::new().unwrap();
    let lines = format!("http://{target}/b 3\n\nhttp://{target}/c\n");
    fs::write(file.path(), lines).unwrap();
    let more = format!("-c 1 -n 600 --weights 2 --urls {}", file.path().display());
    let outcome = answered(target, &more, 600);
    for (at, path, weight) in [(0, "x", 2), (1, "b", 3), (2, "c", 1)] {
        let row = &outcome.result["urls"][at];
        assert_eq!(row["url"], format!("http://{target}/{path}"));
        assert_eq!(row["weight"], weight);
        assert!(row["answered"].as_u64().unwrap() > 50, "{}", outcome.result);
    }
    fs::write(file.path(), "http://h/ 1 more\n").unwrap();
    let name = file.path().display();
    assert_ends(&format!("load http --urls {name}"), 2, &[&format!("{name}:1: ")]);
}

/// Answers with the request line and some fields as content, so that a wrong request has another length.
fn telling() -> SocketAddr {
    serve(|_, mut stream| {
        let _ended = answer_each(&mut stream, |_, head, stream| {
            let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
            let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
            stream.read_exact(&mut body).unwrap();
            let told = format!("{head}{}", String::from_utf8(body).unwrap());
            let to_head = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n".to_owned();
            let answer = if head.starts_with("HEAD") { to_head } else { ok(&told) };
            stream.get_mut().write_all(answer.as_bytes()).is_ok()
        });
    })
}

fn requests_of_a_file_have_their_own_method_fields_and_content() {
    let target = telling();
    let directory = tempfile::tempdir().unwrap();
    let [path, body] = ["requests.toml", "body"].map(|name| directory.path().join(name));
    fs::write(&body, "from a file").unwrap();
    let tables = format!(
        "[[request]]\nurl = 'http://{target}/a'\nmethod = 'PUT'\nheaders = ['X-A: one', 'X-B: two']\nbody = 'text'\n\
         [[request]]\nurl = 'http://{target}/b'\nweight = 3\nbody = '@{}'\n\
         [[request]]\nurl = 'http://{target}/c'\nmethod = 'HEAD'\n",
        body.display()
    );
    fs::write(&path, tables).unwrap();
    let name = path.display();
    let Outcome { result, .. } =
        answered(target, &format!("--urls {name} -H X-A:default -c 1 -n 300"), 300);
    assert_eq!(result["settings"]["method"], "GET,HEAD,POST,PUT");
    assert_eq!(result["status_codes"]["200"], 300);
    // What the server was told, by URL: the content of all answers is the sum of that.
    let host = format!("Host: {target}\r\n");
    let told = [
        format!("GET /x HTTP/1.1\r\n{host}x-a: default\r\n\r\n"),
        format!("PUT /a HTTP/1.1\r\n{host}x-a: one\r\nx-b: two\r\nContent-Length: 4\r\n\r\ntext"),
        format!("POST /b HTTP/1.1\r\n{host}x-a: default\r\nContent-Length: 11\r\n\r\nfrom a file"),
        String::new(),
    ];
    let sum: u64 = (result["urls"].as_array().unwrap().iter().zip(&told))
        .map(|(url, told)| url["answered"].as_u64().unwrap() * told.len() as u64)
        .sum();
    assert_eq!(result["bytes"]["bodies"], sum, "{result}");
    for (table, named) in
        [("url = 1", "requests.toml"), ("url = 'ftp://h/'", "neither http"), ("uri = ''", "uri")]
    {
        fs::write(&path, format!("[[request]]\n{table}\n")).unwrap();
        assert_ends(&format!("load http --urls {name}"), 2, &[named]);
    }
}

fn another_address_than_that_of_the_url_is_asked() {
    let target = telling();
    let told = "GET /some/path HTTP/1.1\r\nHost: name.invalid\r\n\r\n".len();
    let arguments = format!("-c 1 -n 10 --expect-length {told} --connect-to {target}");
    let url = "http://name.invalid/some/path";
    let outcome = finished(command("auto", "http", url, &arguments));
    outcome.expect(0, &[]);
    assert_eq!(outcome.result["settings"]["addresses"], serde_json::json!([target]));
    assert_ends(&format!("load http {url}"), 1, &["name.invalid"]);
}

fn without_keepalive_each_request_has_a_connection(engine: &str) {
    let served = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&served);
    let target = serve(move |_, mut stream| {
        counted.fetch_add(1, Ordering::Relaxed);
        let _ended = answer_each(&mut stream, |number, head, stream| {
            assert!(head.contains("\r\nConnection: close\r\n") && number == 0, "{head}");
            let _ = stream.get_mut().write_all(ok("hello").as_bytes());
            false
        });
    });
    for case in ["-c 5", "-c 5 --rate 2000"] {
        served.store(0, Ordering::Relaxed);
        let outcome = run_http(engine, target, &format!("{case} --no-keepalive -n 200"));
        outcome.expect(0, &[]);
        outcome.has(&[("/whole_run/answered", 200), ("/connections/kept_open", 0)]);
        // The first five are made before the load begins.
        assert!(outcome.number("/connections/reconnects") >= 195);
        assert!(served.load(Ordering::Relaxed) >= 200);
        let from = if case.contains("rate") { "intended" } else { "connect" };
        assert_eq!(outcome.result["latency_from"], from);
        assert!(outcome.latency_us("max") > 0.0);
    }
}

fn slow_content_is_long_latency_and_short_time_to_the_first_byte() {
    let target = serving_each(|_, stream| {
        let sent = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe");
        thread::sleep(Duration::from_millis(50));
        sent.and_then(|()| stream.write_all(b"llo")).is_ok()
    });
    let outcome = run_http("auto", target, "-c 2 -d 1200ms --warmup 0s");
    outcome.expect(0, &[]);
    assert!(outcome.latency_us("min") >= 50_000.0, "{}", outcome.result);
    let first_byte = outcome.result["ttfb_us"]["min"].as_f64().unwrap();
    assert!(first_byte < 50_000.0, "{}", outcome.result);
}

/// A server that stalls once for 400 ms. A load that waits for it sends nothing meanwhile, so one
/// request in many is slow; the open loop charges the stall to every request that was due. Both are
/// reported.
fn an_open_loop_counts_requests_delayed_by_a_stall_and_the_uncorrected_latency() {
    let target = serve(|_, mut stream| {
        let began = Instant::now();
        let mut stalled = false;
        let _ended = answer_each(&mut stream, |_, _, stream| {
            if !stalled && began.elapsed() > Duration::from_millis(200) {
                stalled = true;
                thread::sleep(Duration::from_millis(400));
            }
            stream.get_mut().write_all(ok("hello").as_bytes()).is_ok()
        });
    });
    // Long enough for the stall to end inside the window even with another stall of a second.
    let outcome = run_http("auto", target, "-c 1 -d 2s --warmup 0s --rate 200");
    outcome.expect(0, &[]);
    // 80 of 400 requests were held up, evenly between 0 and 400 ms.
    assert!(outcome.latency_us("p90") >= 100_000.0, "{}", outcome.result);
    assert!(outcome.latency_us("max") >= 380_000.0, "{}", outcome.result);
    assert_eq!(outcome.result["latency_from"], "intended");
    let raw = |name: &str| outcome.result["raw_latency_us"][name].as_f64().unwrap();
    assert!(raw("max") >= 380_000.0, "the one that met the stall: {}", outcome.result);
    assert!(raw("p90") < outcome.latency_us("p90") / 2.0, "{}", outcome.result);
    let lag = outcome.result["schedule_lag_us"]["max"].as_f64().unwrap();
    assert!(lag >= 380_000.0, "{}", outcome.result);
    // In a closed loop there is only one way to count.
    let closed = run_http("auto", target, "-c 1 -n 10");
    assert!(closed.result["raw_latency_us"].is_null());
}

fn latencies_are_written_for_plotters() {
    let target = answering(|_| ok("hello"));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("latency.hgrm");
    answered(target, &format!("-c 1 -n 500 --hgrm {}", path.display()), 500);
    let text = fs::read_to_string(&path).unwrap();
    for part in ["1/(1-Percentile)", &format!("Total count    = {:>12}]", 500)] {
        assert!(text.contains(part), "{text}");
    }
    let missing = directory.path().join("no/latency.hgrm");
    let arguments = format!("-c 1 -n 5 --hgrm {}", missing.display());
    let (code, _, told) = run_to_its_end(&mut http("epoll", target, &arguments));
    assert!(code == Some(1) && told.contains("latency.hgrm"), "{told}");
}

/// The schedule continues while the last answer is awaited.
fn a_number_of_requests_is_sent_completely() {
    let target = answering(|number| {
        thread::sleep(Duration::from_millis(if number == 49 { 1300 } else { 0 }));
        ok("hello")
    });
    let outcome = answered(target, "-c 1 -n 50 --rate 1000 --max-error-rate 0", 50);
    outcome.has(&[("/requests/unsent", 0), ("/requests/overdue", 0)]);
}

fn a_table_is_printed_for_people() {
    let target = answering(|_| ok("hello"));
    let url = format!("http://{target}/x");
    let arguments =
        ["load", "http", &url, "-c", "2", "-n", "50", "--rate", "1000", "--slo", "p99=9s"];
    let (code, text, stderr) = run(&arguments);
    assert!(matches!(code, Some(0 | 4)), "{stderr}");
    let parts = [&url, "50 answered", "p99.99", "uncorrected", "50 x 200", "kept", "ANSWER"];
    assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    for part in parts {
        assert!(text.contains(part), "{part} in {text}");
    }
}

fn files_that_cannot_be_read_are_named_and_end_with_1() {
    let directory = Site::new();
    directory.write("empty.pem", b"nothing\n");
    let [empty, fifo] = ["empty.pem", "fifo.pem"].map(|name| directory.file(name));
    nix::unistd::mkfifo(&*fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    // A device without end was read until memory ended.
    let cases = ["--body @", "--verify-body=", "--urls ", "--tls-ca "].map(|option| {
        [(option, "/nowhere/x", "No such file"), (option, "/dev/zero", "is a device")]
    });
    let of_tls = [("--tls-ca ", &*empty, "no certificate"), ("--tls-ca ", &fifo, &fifo)];
    for (option, path, why) in cases.into_iter().flatten().chain(of_tls) {
        assert_ends(&format!("load http https://127.0.0.1:9/ {option}{path}"), 1, &[path, why]);
    }
}
