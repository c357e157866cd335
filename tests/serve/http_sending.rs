//! `twinring serve http --send`: each way to send a file sends the same bytes.

use crate::support::http::*;
use crate::support::*;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::time::Duration;
use testing::{Test, engine_tests, tests};

pub(crate) const TESTS: &[Test] = tests![a_way_that_does_not_exist_is_refused];
pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![
    a_file_rewritten_longer_breaks_off_the_answer,
    each_way_answers_with_the_same_bytes,
    read_data_does_not_change_in_transit,
    a_file_that_grows_is_sent_to_the_length_that_was_announced,
    each_strategy_affects_no_other_file_and_leaves_nothing
];

const STRATEGIES: [&str; 2] = ["sendfile", "read"];

/// True if files here are ones that the runtime does not take for files of elsewhere.
fn is_on_disk(site: &Site) -> bool {
    let asked =
        std::process::Command::new("stat").args(["-f", "-c", "%T"]).arg(site.path()).output();
    let name = asked.expect("stat").stdout;
    ["ext2/ext3", "xfs", "btrfs", "f2fs", "tmpfs"].contains(&String::from_utf8_lossy(&name).trim())
}

fn each_way_answers_with_the_same_bytes(engine: &str) {
    let requests = [
        get("/large.bin", ""),
        get("/hello.txt", ""),
        get("/large.bin", "Range: bytes=1-\r\n"),
        get("/large.bin", "Range: bytes=65535-65536\r\n"),
        get("/large.bin", "Range: bytes=0-9,300000-500000,-100000\r\n"),
        get("/edge.bin", ""),
        get("/huge.bin", ""),
    ];
    let site = Site::usual();
    site.write("edge.bin", &pattern(1, 262_145));
    site.write("huge.bin", &pattern(2, 5_000_003));
    site.settle();
    let mut first: Option<Vec<Vec<u8>>> = None;
    for strategy in STRATEGIES {
        let arguments = ["--send", strategy, "--sendfile-above", "100"];
        let server = Server::http(engine, site.path(), &arguments);
        let mut answers: Vec<Vec<u8>> =
            requests.iter().map(|request| talk(server.address(), request.as_bytes())).collect();
        let pipelined = requests.concat();
        answers.push(talk(server.address(), pipelined.as_bytes()));
        let answers: Vec<Vec<u8>> = answers.iter().map(|answer| undated(answer)).collect();
        match &first {
            None => first = Some(answers),
            Some(first) => {
                for (answer, expected) in answers.iter().zip(first) {
                    assert_same(answer, expected);
                }
            }
        }
        let ended = server.terminate();
        assert_eq!((ended.code, ended.count("broken_off")), (Some(0), 0), "{}", ended.stderr);
        if is_on_disk(&site) {
            assert_used(&ended, strategy);
        }
    }
}

/// The counters show that files were sent this way, and in no other.
fn assert_used(ended: &Ended, strategy: &str) {
    let runtime = &ended.last["runtime_counters"];
    let used = |name: &str| runtime[name].as_u64().expect("a counter") > 0;
    assert_eq!(used("sendfiles"), strategy == "sendfile", "{strategy}");
    assert!(ended.count("sent_file_bytes") > 5_000_000);
}

/// Reads exactly so many bytes.
fn take(stream: &mut TcpStream, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).expect("no end yet");
    bytes
}

fn read_data_does_not_change_in_transit(engine: &str) {
    const BYTES: usize = 40_000_000;
    let site = Site::new();
    let path = site.write("file", &vec![b'a'; BYTES]);
    let server = Server::http(engine, site.path(), &["--send", "read"]);
    let mut stream = connect(server.address());
    stream.write_all(get("/file", "").as_bytes()).expect("the server reads");
    take(&mut stream, 1000);
    // Socket buffers are full of the old version when the file is written to in place.
    std::thread::sleep(Duration::from_millis(200));
    let file = std::fs::File::options().write(true).open(path).expect("a file");
    for at in (0..BYTES).step_by(1 << 20) {
        file.write_all_at(&vec![b'b'; (1 << 20).min(BYTES - at)], at as u64).expect("a disk");
    }
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).expect_err("the answer cannot be completed");
    assert_eq!(rest.iter().filter(|byte| **byte == b'b').count(), 0, "of the new version");
    let ended = server.terminate();
    assert_eq!((ended.code, ended.count("broken_off")), (Some(0), 1), "{}", ended.stderr);
}

/// Each append reset the connection, so a log that was written to could not be fetched slowly.
fn a_file_that_grows_is_sent_to_the_length_that_was_announced(engine: &str) {
    const BYTES: usize = 8_000_000;
    for strategy in STRATEGIES {
        let site = Site::new();
        let content = pattern(3, BYTES);
        let path = site.write("log", &content);
        let server = Server::http(engine, site.path(), &["--send", strategy]);
        let mut log = std::fs::File::options().append(true).open(path).expect("a file");
        for range in ["", "Range: bytes=1000000-7499999\r\n"] {
            let mut stream = connect_narrow(server.address());
            stream.write_all(get("/log", range).as_bytes()).expect("the server reads");
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
        let ended = server.terminate();
        assert_eq!((ended.code, ended.count("broken_off")), (Some(0), 0), "{}", ended.stderr);
    }
}

/// A file that is longer than before is not therefore one that was appended to.
fn a_file_rewritten_longer_breaks_off_the_answer(engine: &str) {
    for strategy in STRATEGIES {
        let site = Site::new();
        let path = site.write("file", &vec![b'a'; 8_000_000]);
        let server = Server::http(engine, site.path(), &["--send", strategy]);
        let mut stream = connect_narrow(server.address());
        stream.write_all(get("/file", "").as_bytes()).expect("the server reads");
        take(&mut stream, 1000);
        std::fs::write(path, vec![b'b'; 9_000_000]).expect("a disk");
        stream.read_to_end(&mut Vec::new()).expect_err("the answer cannot be completed");
        let ended = server.terminate();
        assert_eq!((ended.code, ended.count("broken_off")), (Some(0), 1), "{}", ended.stderr);
    }
}

fn each_strategy_affects_no_other_file_and_leaves_nothing(engine: &str) {
    let site = Site::usual();
    site.write("huge.bin", &pattern(2, 60_000_000));
    for strategy in STRATEGIES {
        let server = Server::http(engine, site.path(), &["--send", strategy]);
        let before = server.descriptors();
        // Peers that do not read, some of which vanish.
        let idle: Vec<TcpStream> = (0..12)
            .map(|_| {
                let mut stream = connect(server.address());
                stream.write_all(get("/huge.bin", "").as_bytes()).expect("the server reads");
                take(&mut stream, 100);
                stream
            })
            .collect();
        for round in 0..20 {
            let answer = ask(&server, &get("/large.bin", ""));
            assert_same(&answer.body, &pattern(7, 700_001));
            assert_eq!(answer.status, 200, "{round}");
        }
        for (number, stream) in idle.into_iter().enumerate() {
            if number % 2 == 0 {
                reset(stream);
            }
        }
        // Two files in the cache, and perhaps a pipe.
        wait_until("all are closed", || server.descriptors() <= before + 4);
        let ended = server.terminate();
        assert_eq!((ended.code, ended.count("open")), (Some(0), 0), "{}", ended.stderr);
    }
}

fn a_way_that_does_not_exist_is_refused() {
    let (code, _, stderr) = run(&["serve", "http", "--root", "/", "--send", "magic"]);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("expected sendfile or read"), "{stderr}");
}
