//! Files of `serve http` that change, grow, are many or do not fit: what is sent is one version of a file, and
//! what is kept has a bound.

use crate::support::http::*;
use crate::support::*;
use memchr::memmem;
use rustix::process::{Resource, Rlimit, prlimit};

pub(crate) const TESTS: &[Test] = tests![
    a_large_404_page_may_be_rewritten_in_place,
    out_of_descriptors_files_get_503,
    open_files_give_way_to_other_descriptors,
    a_file_rewritten_longer_breaks_off_the_answer;
    engines:
    an_answer_is_never_a_mix_of_two_versions,
    each_way_to_send_sends_the_file,
    a_file_that_grows_is_sent_to_the_length_that_was_announced
];

const WAYS: [&str; 2] = ["sendfile", "read"];

/// `length` times the same byte: a version of a file that cannot be mistaken for another.
fn version(number: u64, length: usize) -> Vec<u8> {
    vec![b'a' + (number % 26) as u8; length]
}

/// Reads `target` over and over while `change` changes it, and checks every answer: whole and of
/// one version, or broken off. Returns the numbers of whole and of broken answers.
fn read_while_changing(
    server: &Server,
    target: &str,
    mut change: impl FnMut(u64) + Send,
) -> (u64, u64) {
    let done = AtomicBool::new(false);
    let (whole, broken) = (AtomicU64::new(0), AtomicU64::new(0));
    let read = || {
        let mut stream = begin(server.address(), get(target, "Connection: close\r\n"));
        let mut bytes = Vec::new();
        let _cut = stream.read_to_end(&mut bytes);
        let end = memmem::find(&bytes, b"\r\n\r\n").map_or(bytes.len(), |end| end + 4);
        let (head, body) = (String::from_utf8_lossy(&bytes[..end]), &bytes[end..]);
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
        let length: Option<usize> = length.map(|length| length.parse().expect("a number"));
        if length.is_none_or(|length| body.len() < length) {
            broken.fetch_add(1, Ordering::Relaxed);
        } else if head.starts_with("HTTP/1.1 200") {
            // Every byte is like the one before it.
            let others = body.get(1..).unwrap_or_default();
            assert!(body.starts_with(others), "a mix of two versions");
            assert_eq!(Some(body.len()), length);
            whole.fetch_add(u64::from(!body.is_empty()), Ordering::Relaxed);
        } else {
            assert!(["404", "503"].contains(&&head[9..12]), "{head}");
        }
    };
    thread::scope(|scope| {
        let _at_the_end = AtTheEnd(&done);
        for _ in 0..4 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    read();
                }
            });
        }
        for number in 0..30 {
            change(number);
            thread::sleep(Duration::from_millis(15));
        }
    });
    (whole.into_inner(), broken.into_inner())
}

fn an_answer_is_never_a_mix_of_two_versions(engine: &str) {
    for (name, length) in [("small.txt", 5000), ("large.txt", 3_000_000)] {
        let site = Site::new();
        site.write(name, &version(0, length));
        let arguments = ["server.cache-valid = '20ms'"];
        let server = Server::http(engine, site.path(), &arguments);
        let target = format!("/{name}");
        // Replaced at once: every answer is whole, old or new.
        let (whole, broken) = read_while_changing(&server, &target, |number| {
            site.replace(name, &version(number, length + number as usize), MODIFIED_S + number);
        });
        assert!(whole > 0 && broken == 0, "{engine} {name}: {whole} whole, {broken} broken");
        // Emptied and rewritten, deleted and created again: complete, absent, or broken off.
        // (Not truncated in the middle or written in place: see the notes on sendfile in
        // `sending`.)
        let path = site.path().join(name);
        let (whole, broken) = read_while_changing(&server, &target, |number| match number % 3 {
            // Each time longer, which is not to be taken for an append.
            0 => fs::write(&path, version(number, length + number as usize)).unwrap(),
            1 => drop(File::create(&path).unwrap()),
            _ => {
                fs::remove_file(&path).unwrap();
                thread::sleep(Duration::from_millis(5));
                fs::write(&path, version(number, length)).unwrap();
            }
        });
        assert!(whole > 0, "{engine} {name}: {whole} whole, {broken} broken");
        // And from then on the last version, by every connection.
        let last = fs::read(&path).expect("a file");
        wait_until("the last version", || ask(&server, &get(&target, "")).body == last);
        (0..5).for_each(|_| assert_same(&ask(&server, &get(&target, "")).body, &last));
        server.end();
    }
}

/// Its length went with the old length, and the rest was a reset.
fn a_large_404_page_may_be_rewritten_in_place() {
    let site = Site::new();
    site.write("gone.html", &version(0, 200_000));
    let rule = "default.rule = [{ error-pages = { 404 = '/gone.html' } }]";
    let server = Server::http(ENGINE, site.path(), &[rule, "server.cache-valid = '60s'"]);
    let mut stream = connect(server.address());
    for number in 0..5 {
        let content = version(number, 200_000 - 1000 * number as usize);
        fs::write(site.path().join("gone.html"), &content).expect("a file");
        let answer = ask_on(&mut stream, &get("/none", ""));
        assert_eq!(answer.status, 404);
        assert_same(&answer.body, &content);
        // Right behind the answer, a write would count as one during it: the next request is read when the server
        // has looked.
        let options = "OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n";
        assert_eq!(ask_on(&mut stream, options).status, 204);
    }
}

/// Connections until the server says that it has no descriptor for another one. The last ones wait in the backlog.
fn take_all_descriptors(server: &Server) -> Vec<TcpStream> {
    let mut connections = Vec::new();
    wait_until("it runs out of descriptors", || {
        connections.push(connect(server.address()));
        server.stderr().contains("ulimit -n")
    });
    connections
}

/// Files and connections share the descriptors: with none left, a file that is asked for cannot be opened.
fn out_of_descriptors_files_get_503() {
    let site = Site::usual();
    let server = with_60_descriptors(&site);
    let mut connections = take_all_descriptors(&server);
    assert_eq!(ask_on(&mut connections[0], &get("/large.bin", "")).status, 503);
    // Root of a container often lacks the right to raise the limit.
    let pid = rustix::process::Pid::from_raw(server.pid() as i32);
    let more = Rlimit { current: Some(4096), maximum: Some(4096) };
    if prlimit(pid, Resource::Nofile, more).is_err() {
        connections.truncate(1);
    }
    wait_until("it serves again", || {
        ask_on(&mut connections[0], &get("/large.bin", "")).status == 200
    });
    for stream in &mut connections {
        assert_eq!(ask_on(stream, &get("/hello.txt", "")).status, 200);
    }
    let ended = server.terminate();
    assert!(ended.count("responses_5xx") >= 1);
    assert_eq!(ended.stderr.matches("ulimit -n").count(), 1, "{}", ended.stderr);
}

fn with_60_descriptors(site: &Site) -> Server {
    let root = ["--root", &site.file(".")];
    Server::start(limited("-n 60"), "http", ENGINE, &root)
}

/// Files that were kept open left no descriptor for others.
fn open_files_give_way_to_other_descriptors() {
    let site = Site::usual();
    for number in 0..40 {
        site.write(&format!("large/{number}"), &version(number, 60_000));
    }
    let server = with_60_descriptors(&site);
    let mut stream = connect(server.address());
    // Half of the descriptors at most are for files that are kept; two for what is going on.
    let most = server.descriptors() + 32;
    for number in 0..40 {
        assert_eq!(ask_on(&mut stream, &get(&format!("/large/{number}"), "")).status, 200);
        assert!(server.descriptors() <= most, "{}", server.descriptors());
    }
    let _all = take_all_descriptors(&server);
    assert_eq!(ask_on(&mut stream, &get("/hello.txt", "")).status, 200);
}

/// Reads exactly so many bytes.
fn take(stream: &mut TcpStream, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).expect("no end yet");
    bytes
}

/// Each request by itself and all of them behind one another, while others do not read their answers.
fn each_way_to_send_sends_the_file(engine: &str) {
    let site = Site::usual();
    let (edge, huge) = (pattern(1, 262_145), pattern(2, 5_000_003));
    let large = pattern(7, 700_001);
    site.write("edge.bin", &edge);
    site.write("huge.bin", &huge);
    let expected: [(String, u16, &[u8]); 6] = [
        (get("/large.bin", ""), 200, &large),
        (get("/hello.txt", ""), 200, b"0123456789abcdefghijklmnopqrstuvwxyz"),
        (get("/large.bin", "Range: bytes=1-\r\n"), 206, &large[1..]),
        (get("/large.bin", "Range: bytes=65535-65536\r\n"), 206, &large[65535..65537]),
        (get("/edge.bin", ""), 200, &edge),
        (get("/huge.bin", ""), 200, &huge),
    ];
    for way in WAYS {
        let keys = [&set("sendfile-above", "100"), &set("cache-files", "2"), &set("send", way)];
        let server = Server::http(engine, site.path(), &keys.map(String::as_str));
        let before = server.descriptors();
        let idle: Vec<TcpStream> = (0..12)
            .map(|_| {
                let mut stream = begin(server.address(), get("/huge.bin", "").repeat(12));
                take(&mut stream, 100);
                stream
            })
            .collect();
        let all: String = expected.iter().map(|(request, ..)| request.as_str()).collect();
        let mut answers = responses(&talk(server.address(), all));
        answers.extend(expected.iter().map(|(request, ..)| ask(&server, request)));
        for (answer, (request, status, content)) in answers.iter().zip(expected.iter().cycle()) {
            assert_eq!(answer.status, *status, "{request}");
            assert_same(&answer.body, content);
        }
        assert_eq!(answers.len(), 2 * expected.len());
        idle.into_iter().for_each(reset);
        wait_until("all but those in the cache are closed", || server.descriptors() <= before + 2);
        let ended = server.end();
        let used = ended.last["runtime_counters"]["sendfiles"].as_u64();
        assert_eq!(used > Some(0), way == "sendfile", "{way}: {used:?}");
        let [of_files, of_all] = ["sent_file_bytes", "sent_bytes"].map(|name| ended.count(name));
        let counts = [2 * huge.len() as u64 - 2048, of_files, of_all];
        assert!(counts.is_sorted(), "{way}: {counts:?}");
    }
}

/// Each append reset the connection, so a log that was written to could not be fetched slowly.
fn a_file_that_grows_is_sent_to_the_length_that_was_announced(engine: &str) {
    const BYTES: usize = 8_000_000;
    for way in WAYS {
        let site = Site::new();
        let content = pattern(3, BYTES);
        let path = site.write("log", &content);
        let server = Server::http(engine, site.path(), &[&set("send", way)]);
        let mut log = File::options().append(true).open(path).expect("a file");
        for range in ["", "Range: bytes=1000000-7499999\r\n"] {
            let mut stream = connect_narrow(server.address());
            say(&mut stream, get("/log", range));
            let mut begun = take(&mut stream, 1000);
            for _ in 0..4 {
                log.write_all(b"a further line\n").expect("a disk");
                begun.extend(take(&mut stream, 500_000));
            }
            let answer = read_response(&mut begun.chain(&stream), false);
            let length = log.metadata().expect("a file").len() as usize - 4 * 15;
            match range {
                "" => {
                    assert_eq!((answer.status, answer.body.len()), (200, length));
                    assert_same(&answer.body[..BYTES], &content);
                }
                _ => assert_same(&answer.body, &content[1_000_000..7_500_000]),
            }
        }
        server.end_with(&[("broken_off", 0)]);
    }
}

/// A file that is longer than before is not therefore one that was appended to.
fn a_file_rewritten_longer_breaks_off_the_answer() {
    for way in WAYS {
        let site = Site::new();
        let path = site.write("file", &vec![b'a'; 8_000_000]);
        let server = Server::http(ENGINE, site.path(), &[&set("send", way)]);
        let mut stream = connect_narrow(server.address());
        say(&mut stream, get("/file", ""));
        take(&mut stream, 1000);
        fs::write(path, vec![b'b'; 9_000_000]).expect("a disk");
        stream.read_to_end(&mut Vec::new()).expect_err("the answer cannot be completed");
        server.end_with(&[("broken_off", 1)]);
    }
}
