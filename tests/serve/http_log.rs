//! The access log of `twinring serve http`: a line for each request, wherever the file is by then.

use crate::support::http::*;
use crate::support::*;
use nix::sys::stat::Mode;

pub(crate) const TESTS: &[Test] = tests![
    each_request_has_a_line_with_its_outcome,
    broken_answers_are_logged_with_the_bytes_sent,
    rotation_under_load_loses_no_line,
    a_slow_log_blocks_no_request_and_counts_dropped_lines,
    a_full_disk_is_reported_once_and_recovers,
    requests_over_tls_and_http2_are_logged_decrypted,
    a_log_that_cannot_be_reopened_stays_open,
    signals_that_come_early_end_nothing
];

/// A server with an access log in `log`.
fn logged(site: &Site, log: &Path, arguments: &[&str]) -> Server {
    let log = ["--access-log", log.to_str().expect("text")];
    Server::http(ENGINE, site.path(), &[&log, arguments].concat())
}

fn lines(path: &Path) -> Vec<String> {
    let bytes = fs::read(path).expect("a log");
    let text = String::from_utf8(bytes).expect("ASCII");
    assert!(text.is_empty() || text.ends_with('\n'), "the last line is whole");
    text.lines().map(str::to_owned).collect()
}

fn json_lines(path: &Path) -> Vec<Value> {
    let parse = |line: &String| serde_json::from_str(line).expect("a JSON object");
    lines(path).iter().map(parse).collect()
}

fn each_request_has_a_line_with_its_outcome() {
    let (site, logs) = (Site::usual(), Site::new());
    let log = logs.path().join("access.log");
    let server = logged(&site, &log, &[]);
    let address = server.address();
    let agent = "User-Agent: a \"quoted\\agent\r\nReferer: http://x/ü\r\n";
    ask(&server, &get("/hello.txt?q=\\", agent));
    ask(&server, &get("/large.bin", ""));
    ask(&server, &get("/hello.txt", "Range: bytes=0-9\r\n"));
    let mut stream = connect(address);
    ask_on(&mut stream, "HEAD /hello.txt HTTP/1.1\r\nHost: h\r\n\r\n");
    // Pipelined: a cached one, an open file, one that is neither, an error, and a malformed one.
    let [cached, open, neither] = ["/hello.txt", "/sub/", "/none"].map(|target| get(target, ""));
    let [error, malformed] = ["DELETE / HTTP/1.1\r\nHost: h", "GET /\x1b[31m HTTP/9.9"];
    let pipelined = format!("{cached}{open}{neither}{error}\r\n\r\n{malformed}\r\n\r\n");
    say(&mut stream, pipelined);
    assert_eq!(responses(&read_to_end(&stream).expect("a clean end")).len(), 5);
    talk(address, "GET /hello.txt HTTP/1.0\r\n\r\n");
    server.end_with(&[("requests", 10), ("log_lines", 10), ("log_dropped", 0)]);
    let expected = [
        (
            r#""GET /hello.txt?q=\x5C HTTP/1.1" 200 36 "http://x/\xC3\xBC" "a \x22quoted\x5Cagent" "#,
            " +",
        ),
        (r#""GET /large.bin HTTP/1.1" 200 700001 "-" "-" "#, " +"),
        (r#""GET /hello.txt HTTP/1.1" 206 10 "-" "-" "#, " +"),
        (r#""HEAD /hello.txt HTTP/1.1" 200 0 "-" "-" "#, " +"),
        (r#""GET /hello.txt HTTP/1.1" 200 36 "-" "-" "#, " +"),
        (r#""GET /sub/ HTTP/1.1" 200 13 "-" "-" "#, " +"),
        (r#""GET /none HTTP/1.1" 404 14 "-" "-" "#, " +"),
        (r#""DELETE / HTTP/1.1" 405 23 "-" "-" "#, " +"),
        (r#""GET /\x1B[31m HTTP/9.9" 400 16 "-" "-" "#, " -"),
        (r#""GET /hello.txt HTTP/1.0" 200 36 "-" "-" "#, " -"),
    ];
    for (line, (request, end)) in lines(&log).iter().zip(expected) {
        let is_of_client = line.starts_with("127.0.0.1 - - [");
        assert!(is_of_client && line.contains(request) && line.ends_with(end), "{request}: {line}");
    }
}

fn broken_answers_are_logged_with_the_bytes_sent() {
    let (site, logs) = (Site::usual(), Site::new());
    let log = logs.path().join("access.log");
    let length = 64 << 20;
    site.write("huge.bin", &vec![b'x'; length]);
    let timeouts = [
        "server.access-log-format = 'json'",
        "server.header-timeout = '300ms'",
        // Longer than the one that breaks off in a body may be kept from the CPU.
        "server.body-timeout = '1500ms'",
    ];
    let server = logged(&site, &log, &timeouts);
    let address = server.address();
    // Answers are broken off by a peer that goes away.
    let mut stream = begin(address, get("/huge.bin", ""));
    stream.read_exact(&mut [0; 100_000]).expect("the beginning");
    drop(stream);
    // A body that breaks off, and one that does not come; a head that does not.
    let mut stream = connect(address);
    let expecting = get("/hello.txt", "Expect: 100-continue\r\nContent-Length: 5\r\n");
    // The head has been read: a reset that comes before would leave no request.
    assert_eq!(ask_on(&mut stream, &expecting).status, 100);
    say(&mut stream, "ab");
    reset(stream);
    let late = [get("/hello.txt", "Content-Length: 5\r\n") + "ab", "GET".to_owned()];
    let late = late.map(|request| talk_until_closed(address, request));
    assert!(late.iter().all(|answer| answer.starts_with(b"HTTP/1.1 408")));
    let ended = server.terminate();
    let mut entries = json_lines(&log);
    entries.sort_by_key(|entry| entry["status"].as_u64());
    let statuses: Vec<_> = entries.iter().map(|entry| entry["status"].clone()).collect();
    assert_eq!(statuses, [200, 408, 408, 499], "{entries:?}");
    let broken = &entries[0];
    assert_eq!((&broken["complete"], &broken["target"]), (&false.into(), &"/huge.bin".into()));
    let handed_over = broken["bytes"].as_u64().expect("a number");
    assert!((100_000..length as u64).contains(&handed_over), "{handed_over}");
    assert_eq!(entries[1]["complete"], true);
    let of_reset = ["complete", "bytes", "target"].map(|name| &entries[3][name]);
    assert_eq!(of_reset, [&Value::from(false), &0.into(), &"/hello.txt".into()]);
    assert!(entries[1]["duration_s"].as_f64() >= Some(1.0), "{}", entries[1]);
    ended.expect(0, &[("requests", 3), ("log_lines", 4)]);
}

fn rotation_under_load_loses_no_line() {
    const ROTATIONS: u32 = 20;
    let (site, logs) = (Site::usual(), Site::new());
    let log = logs.path().join("access.log");
    let server = logged(&site, &log, &["--workers", "2"]);
    let rotated = |number: u32| logs.path().join(format!("access.log.{number}"));
    let (done, asked) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let _at_the_end = AtTheEnd(&done);
        for _ in 0..4 {
            scope.spawn(|| {
                let mut stream = connect(server.address());
                while !done.load(Ordering::Relaxed) {
                    ask_on(&mut stream, &get("/hello.txt", "User-Agent: load\r\n"));
                    asked.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for number in 0..ROTATIONS {
            thread::sleep(Duration::from_millis(60));
            // Later, if clients or server are kept from the CPU.
            wait_until("there are lines", || fs::metadata(&log).is_ok_and(|log| log.len() > 0));
            fs::rename(&log, rotated(number)).expect("a log");
            server.signal([Signal::SIGHUP, Signal::SIGUSR1][number as usize % 2]);
            wait_until("the new file is there", || log.exists());
        }
    });
    let (ended, asked) = (server.end(), asked.into_inner());
    let files = (0..ROTATIONS).map(rotated).chain([log]).map(|path| lines(&path));
    let files: Vec<_> = files.filter(|lines| !lines.is_empty()).collect();
    let found = files.concat();
    assert!(found.iter().all(|line| line.contains(" \"load\" ")), "{found:?}");
    let counts = ["requests", "log_lines"].map(|name| ended.count(name));
    assert_eq!((found.len() as u64, counts), (asked, [asked; 2]));
    assert!(files.len() >= ROTATIONS as usize, "only {} files have lines", files.len());
}

fn a_slow_log_blocks_no_request_and_counts_dropped_lines() {
    let (site, logs) = (Site::usual(), Site::new());
    // A pipe without a reader is a disk that does not write.
    let fifo = logs.path().join("fifo");
    nix::unistd::mkfifo(&fifo, Mode::S_IRWXU).expect("a pipe");
    let reader = File::options().read(true).write(true).open(&fifo).expect("a pipe");
    let server = logged(&site, &fifo, &["server.access-log-buffer = '65536'"]);
    let agent = format!("User-Agent: {}\r\n", "x".repeat(900));
    let requests = 2000;
    let mut stream = connect(server.address());
    for _ in 0..requests {
        assert_eq!(ask_on(&mut stream, &get("/hello.txt", &agent)).status, 200);
    }
    // Now it is read, and the rest comes through.
    let read = thread::spawn(move || {
        let lines = BufReader::new(reader).lines().map_while(Result::ok);
        lines.take_while(|line| line != "end").count() as u64
    });
    let ended = server.terminate();
    File::options().write(true).open(&fifo).expect("a pipe").write_all(b"end\n").expect("room");
    let read = read.join().expect("lines");
    let dropped = ended.count("log_dropped");
    ended.expect(0, &[("requests", requests), ("log_lines", read)]);
    assert!(dropped > 0 && read + dropped == requests, "{read} read, {dropped} dropped");
    assert!(ended.stderr.contains("lines were dropped"), "{}", ended.stderr);
}

fn a_log_that_cannot_be_reopened_stays_open() {
    let (site, logs) = (Site::usual(), Site::new());
    let directory = logs.path().join("inner");
    fs::create_dir(&directory).expect("a directory");
    let server = logged(&site, &directory.join("access.log"), &[]);
    let moved = logs.path().join("moved");
    fs::rename(&directory, &moved).expect("a directory");
    reload(&server, "the old file stays open");
    ask(&server, &get("/hello.txt", ""));
    let ended = server.terminate();
    assert_eq!((lines(&moved.join("access.log")).len(), ended.count("log_lines")), (1, 1));
}

/// A reload right behind the start ended the process.
fn signals_that_come_early_end_nothing() {
    let (site, etc) = (Site::usual(), Site::new());
    // Reading so many comments takes a while.
    let text = format!("{}\n[[site]]\nroot = {:?}\n", "#\n".repeat(500_000), site.path());
    let config = etc.write("http.toml", text.as_bytes());
    let mut command = twinring();
    command.args(["serve", "http", "--json", "--listen", "127.0.0.1:0", "--config"]).arg(&config);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("the command starts");
    let process = Pid::from_raw(child.id() as i32);
    let send = |signal| kill(process, signal).expect("a process");
    let both = [Signal::SIGHUP, Signal::SIGUSR1].map(|signal| 1 << (signal as u32 - 1));
    wait_until("it takes the signals", || {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).expect("it runs");
        let mask = u64::from_str_radix(&field_of(&status, "SigCgt:"), 16).expect("a mask");
        both.iter().all(|bit| mask & bit != 0)
    });
    [Signal::SIGHUP, Signal::SIGUSR1].into_iter().for_each(send);
    let mut ready = String::new();
    let stdout = child.stdout.take().expect("stdout is piped");
    let mut stdout = BufReader::new(stdout);
    stdout.read_line(&mut ready).expect("text");
    assert!(ready.contains("ready"), "{ready}");
    send(Signal::SIGTERM);
    assert_eq!(child.wait().expect("a child").code(), Some(0));
}

fn requests_over_tls_and_http2_are_logged_decrypted() {
    let (site, logs) = (Site::usual(), Site::new());
    let (identity, log) = (tls::Identity::new(), logs.path().join("access.log"));
    let format = "server.access-log-format = 'json'";
    let server = logged(&site, &log, &[&identity.arguments()[..], &[format]].concat());
    let address = tls::encrypted(&server);
    let config = Arc::new(identity.trust(&tls::VERSIONS));
    tls::talk_secure(address, &config, &get("/large.bin", "")).expect("an orderly end");
    http2::run_client(async {
        let client = http2::open(address, Some(&config), &h2::client::Builder::new()).await;
        http2::ask(&client, &get("/hello.txt?x", "")).await;
    });
    assert_eq!(ask_last(address, &get("/hello.txt", "")).status, 400);
    server.end_with(&[("log_lines", 3)]);
    let entries = json_lines(&log);
    for (entry, (target, protocol, bytes)) in
        entries.iter().zip([("/large.bin", "HTTP/1.1", 700_001), ("/hello.txt?x", "HTTP/2.0", 36)])
    {
        let found = ["method", "target", "protocol", "host"].map(|it| &entry[it]);
        assert_eq!(found, ["GET", target, protocol, "test"], "{entry}");
        let found = ["status", "body_bytes", "complete"].map(|it| &entry[it]);
        assert_eq!(found, [&200.into(), &bytes.into(), &Value::from(true)], "{entry}");
    }
    assert_eq!(entries[2]["status"], 400);
}

fn a_full_disk_is_reported_once_and_recovers() {
    let (site, logs) = (Site::usual(), Site::new());
    let log = logs.path().join("access.log");
    std::os::unix::fs::symlink("/dev/full", &log).expect("a link");
    let server = logged(&site, &log, &["--stats", "1"]);
    for _ in 0..5 {
        assert_eq!(ask(&server, &get("/hello.txt", "")).status, 200);
        thread::sleep(Duration::from_millis(120));
    }
    wait_until("the full disk is told", || server.stderr().contains("No space left"));
    // None of them is so late that it belongs to the new file.
    server.wait_for_count("log_dropped", 5);
    fs::remove_file(&log).expect("a link");
    server.signal(Signal::SIGUSR1);
    wait_until("the new file is there", || log.exists());
    assert_eq!(ask(&server, &get("/hello.txt", "")).status, 200);
    wait_until("the recovery is told", || server.stderr().contains("lines were lost"));
    let ended = server.terminate();
    assert_eq!(ended.stderr.matches("No space left").count(), 1, "{}", ended.stderr);
    assert_eq!(lines(&log).len(), 1);
    ended.expect(0, &[("requests", 6), ("log_lines", 1), ("log_dropped", 5)]);
    assert!(ended.stderr.contains("5 lines were lost"), "{}", ended.stderr);
}
