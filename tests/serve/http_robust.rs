//! `twinring serve http` under load that is not polite: files that change, peers that dawdle,
//! vanish, or arrive in large numbers.

use crate::support::http::*;
use crate::support::*;
use memchr::memmem;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use testing::{Test, engine_tests, tests};

pub(crate) const TESTS: &[Test] = tests![the_cache_keeps_within_its_bounds];
pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![
    an_answer_is_never_a_mix_of_two_versions,
    a_changed_file_is_served_within_the_stated_time,
    a_large_404_page_may_be_rewritten_in_place,
    resets_and_half_closes_at_every_stage_leak_nothing,
    connections_are_limited_in_all_and_by_address,
    idle_connections_cost_no_cpu,
    many_concurrent_clients_get_their_files,
    out_of_descriptors_files_get_503,
    unread_listings_are_bounded,
    open_files_give_way_to_other_descriptors
];

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
    let address = server.address();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let mut stream = connect(address);
                    let request = get(target, "Connection: close\r\n");
                    stream.write_all(request.as_bytes()).expect("the server reads");
                    let mut bytes = Vec::new();
                    let ended = stream.read_to_end(&mut bytes);
                    let Some(end) = memmem::find(&bytes, b"\r\n\r\n") else {
                        broken.fetch_add(1, Ordering::Relaxed);
                        continue;
                    };
                    let (head, body) = (str::from_utf8(&bytes[..end]), &bytes[end + 4..]);
                    let head = head.expect("a head of ASCII characters");
                    let length =
                        head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
                    let length: usize = length.expect("a length").parse().expect("a number");
                    if ended.is_err() || body.len() < length {
                        broken.fetch_add(1, Ordering::Relaxed);
                    } else if head.starts_with("HTTP/1.1 200") {
                        // Every byte is like the one before it.
                        let others = body.get(1..).unwrap_or_default();
                        assert!(body.starts_with(others), "a mix of two versions");
                        assert_eq!(body.len(), length);
                        whole.fetch_add(u64::from(length > 0), Ordering::Relaxed);
                    } else {
                        assert!(["404", "503"].contains(&&head[9..12]), "{head}");
                    }
                }
            });
        }
        for number in 0..60 {
            change(number);
            std::thread::sleep(Duration::from_millis(15));
        }
        done.store(true, Ordering::Relaxed);
    });
    (whole.into_inner(), broken.into_inner())
}

fn an_answer_is_never_a_mix_of_two_versions(engine: &str) {
    for (name, length) in [("small.txt", 5000), ("large.txt", 3_000_000)] {
        let site = Site::new();
        site.write(name, &version(0, length));
        let arguments = ["--cache-valid", "20ms"];
        let server = Server::http(engine, site.path(), &arguments);
        let target = format!("/{name}");
        // Replaced at once: every answer is whole, old or new.
        let (whole, broken) = read_while_changing(&server, &target, |number| {
            site.replace(name, &version(number, length + number as usize), MODIFIED_S + number);
        });
        assert!(whole > 0 && broken == 0, "{engine} {name}: {whole} whole, {broken} broken");
        println!("{engine} {name}: replaced 60 times, {whole} whole answers");
        // Emptied and rewritten, deleted and created again: complete, absent, or broken off.
        // (Not truncated in the middle or written in place: see the notes on sendfile in
        // `sending`.)
        let path = site.path().join(name);
        let (whole, broken) = read_while_changing(&server, &target, |number| match number % 3 {
            // Each time longer, which is not to be taken for an append.
            0 => std::fs::write(&path, version(number, length + number as usize)).unwrap(),
            1 => drop(std::fs::File::create(&path).unwrap()),
            _ => {
                std::fs::remove_file(&path).unwrap();
                std::thread::sleep(Duration::from_millis(5));
                std::fs::write(&path, version(number, length)).unwrap();
            }
        });
        assert!(whole > 0, "{engine} {name}: {whole} whole, {broken} broken");
        println!("{engine} {name}: maltreated 60 times, {whole} whole, {broken} broken off");
        let ended = server.terminate();
        assert_eq!((ended.code, ended.count("open")), (Some(0), 0), "{}", ended.stderr);
    }
}

fn a_changed_file_is_served_within_the_stated_time(engine: &str) {
    let site = Site::usual();
    let server = Server::http(engine, site.path(), &["--cache-valid", "300ms"]);
    let mut stream = connect(server.address());
    for (number, name) in ["hello.txt", "large.bin"].into_iter().cycle().take(6).enumerate() {
        let target = format!("/{name}");
        ask_on(&mut stream, &get(&target, ""));
        let content = version(number as u64, 100_000 * (number % 2) + 50);
        site.replace(name, &content, MODIFIED_S + number as u64);
        let changed = Instant::now();
        // Asked all the time, so that it is served from the cache as long as that is allowed.
        let mut served = None;
        while served.is_none() && changed.elapsed() < PATIENCE {
            let asked = Instant::now();
            if ask_on(&mut stream, &get(&target, "")).body == content {
                served = Some(asked - changed);
            } else {
                let late = asked - changed;
                assert!(late < Duration::from_millis(300), "{engine}: stale after {late:?}");
            }
        }
        assert!(served.is_some(), "{engine}: the change was never served");
    }
    std::fs::remove_file(site.path().join("hello.txt")).unwrap();
    wait_until("it is gone", || ask(&server, &get("/hello.txt", "")).status == 404);
    let ended = server.terminate();
    let (hits, misses) = (ended.count("cache_hits"), ended.count("cache_misses"));
    println!("{engine}: 6 changes served in time; {hits} hits, {misses} misses");
}

fn the_cache_keeps_within_its_bounds() {
    let site = Site::new();
    for number in 0..200 {
        site.write(&format!("small/{number}"), &version(number, 4000));
        site.write(&format!("large/{number}"), &version(number, 20_000));
    }
    for engine in ENGINES {
        let arguments =
            ["--cache-bytes", "200000", "--cache-files", "10", "--sendfile-above", "12000"];
        let server = Server::http(engine, site.path(), &arguments);
        let mut stream = connect(server.address());
        for round in 0..3 {
            for number in 0..200 {
                for (kind, length) in [("small", 4000), ("large", 20_000)] {
                    let answer = ask_on(&mut stream, &get(&format!("/{kind}/{number}"), ""));
                    assert_same(&answer.body, &version(number, length));
                }
            }
            assert!(server.descriptors() < 40, "round {round}: {}", server.descriptors());
        }
        let ended = server.terminate();
        let (bytes, files) = (ended.count("cache_bytes"), ended.count("cache_files"));
        assert!((1..=200_000).contains(&bytes) && (1..=10).contains(&files), "{bytes} {files}");
        println!("{engine}: 1200 requests for 5 MB, {bytes} bytes and {files} files kept");
    }
    for engine in ENGINES {
        let server = Server::http(engine, site.path(), &["--cache-bytes", "0"]);
        let mut stream = connect(server.address());
        (0..10).for_each(|_| assert_eq!(ask_on(&mut stream, &get("/small/1", "")).status, 200));
        let ended = server.terminate();
        assert_eq!((ended.count("cache_misses"), ended.count("cache_bytes")), (10, 0));
    }
}

fn resets_and_half_closes_at_every_stage_leak_nothing(engine: &str) {
    let site = Site::usual();
    let server = Server::http(engine, site.path(), &[]);
    for target in ["/hello.txt", "/large.bin"] {
        assert_eq!(ask(&server, &get(target, "")).status, 200);
    }
    server.wait_for_sockets(SOCKETS_WITHOUT_CONNECTIONS);
    let (descriptors, memory) = (server.descriptors(), server.memory_bytes());
    for round in 0..1200 {
        let mut stream = connect(server.address());
        let request = match round % 4 {
            0 => get("/hello.txt", "")[..20].to_owned(),
            1 => get("/large.bin", "").repeat(3),
            2 => get("/large.bin", "Content-Length: 5\r\n"),
            _ => get("/hello.txt", "").repeat(50),
        };
        stream.write_all(request.as_bytes()).unwrap();
        match round / 4 % 4 {
            0 => reset(stream),
            1 => stream.shutdown(Shutdown::Write).unwrap(),
            2 => {
                stream.shutdown(Shutdown::Write).unwrap();
                let _part = stream.read(&mut [0; 1000]);
                reset(stream);
            }
            _ => drop(stream),
        }
    }
    server.wait_for_sockets(SOCKETS_WITHOUT_CONNECTIONS);
    // The last may still be in the backlog, and a file just be looked at.
    wait_until("no descriptor leaks", || server.descriptors() <= descriptors);
    let grown = server.memory_bytes().saturating_sub(memory);
    assert!(grown < 16 << 20, "{engine}: {grown} bytes more");
    assert_eq!(ask(&server, &get("/hello.txt", "")).status, 200);
    let ended = server.terminate();
    assert_eq!((ended.count("open"), ended.count("broken_off")), (0, 0));
    println!("{engine}: 1200 broken connections, {grown} bytes more than before");
}

fn connections_are_limited_in_all_and_by_address(engine: &str) {
    let site = Site::usual();
    let arguments = ["--max-connections", "5", "--max-connections-per-address", "3"];
    let server = Server::http(engine, site.path(), &arguments);
    let mut served: Vec<TcpStream> = (0..3).map(|_| connect(server.address())).collect();
    served.iter_mut().for_each(|stream| {
        assert_eq!(ask_on(stream, &get("/hello.txt", "")).status, 200);
    });
    for _ in 0..4 {
        assert_eq!(read_to_end(&connect(server.address())).unwrap(), b"");
    }
    drop(served);
    let admitted = || {
        let mut stream = connect(server.address());
        // Refused connections end, perhaps with a reset.
        let _refused = stream.write_all(get("/hello.txt", "").as_bytes());
        stream.read(&mut [0; 100]).is_ok_and(|read| read > 0)
    };
    wait_until("there is room again", admitted);
    let ended = server.terminate();
    assert!(ended.count("refused_of_address") >= 4);
    assert_eq!(ended.count("open"), 0);
}

fn idle_connections_cost_no_cpu(engine: &str) {
    testing::needs_descriptors(1_100);
    let site = Site::usual();
    let server = Server::http(engine, site.path(), &[]);
    let mut idle: Vec<TcpStream> = (0..500).map(|_| connect(server.address())).collect();
    idle.iter_mut().for_each(|stream| {
        assert_eq!(ask_on(stream, &get("/hello.txt", "")).status, 200);
    });
    let share = server.cpu_share_while_idle();
    assert!(share < 0.02, "{engine}: {share} of a CPU for 500 idle connections");
    println!("{engine}: {share:.5} of a CPU for 500 idle connections");
}

fn many_concurrent_clients_get_their_files(engine: &str) {
    let site = Arc::new(Site::usual());
    let server = Server::http(engine, site.path(), &["--workers", "2"]);
    let address = server.address();
    let clients: Vec<_> = (0..20)
        .map(|client| {
            std::thread::spawn(move || {
                let mut stream = connect(address);
                for round in 0..50 {
                    let (target, length) = [("/hello.txt", 36), ("/large.bin", 700_001), ("/", 14)]
                        [(client + round) % 3];
                    let answer = ask_on(&mut stream, &get(target, ""));
                    assert_eq!((answer.status, answer.body.len()), (200, length));
                }
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().expect("a client without complaint"));
    let ended = server.terminate();
    assert_eq!(ended.count("responses_2xx"), 1000);
    println!("{engine}: 20 clients, 1000 requests");
}

fn out_of_descriptors_files_get_503(engine: &str) {
    let site = Site::usual();
    // Files and connections share the descriptors; with few of them both run out.
    let server = Server::http_with_descriptors(engine, site.path(), 40);
    let mut served: Vec<TcpStream> = Vec::new();
    for _ in 0..60 {
        served.push(connect(server.address()));
    }
    let mut statuses = Vec::new();
    for stream in &mut served {
        stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        stream.write_all(get("/large.bin", "").as_bytes()).unwrap();
        let mut start = [0; 12];
        match stream.read_exact(&mut start) {
            Ok(()) => statuses.push(String::from_utf8_lossy(&start[9..]).into_owned()),
            Err(error) => assert!(
                matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
                "{error}"
            ),
        }
    }
    assert!(statuses.iter().all(|status| status == "200" || status == "503"), "{statuses:?}");
    drop(served);
    wait_until("it serves again", || ask(&server, &get("/large.bin", "")).status == 200);
    println!("{engine}: {} answered with 40 descriptors", statuses.len());
}

/// A peer that did not read its listings held two of them, of any size, and many peers gigabytes.
fn unread_listings_are_bounded(engine: &str) {
    const NAMES: usize = 10_000;
    let site = Site::usual();
    // 1.1 KB of each name in a listing, 11 MB of all.
    let name = "ü".repeat(118);
    std::fs::create_dir(site.path().join("many")).expect("a directory");
    for number in 0..NAMES {
        let path = site.path().join("many").join(format!("{name}{number}"));
        std::fs::File::create(path).expect("a file");
    }
    let server = Server::http(engine, site.path(), &["--autoindex", "html", "--workers", "1"]);
    let whole = ask(&server, &get("/many/", ""));
    assert_eq!(whole.status, 200);
    assert!(whole.body.len() > 10_000_000, "{}", whole.body.len());
    let before = server.memory_bytes();
    let mut statuses = Vec::new();
    let mut waiting: Vec<TcpStream> = Vec::new();
    for _ in 0..8 {
        let mut stream = connect(server.address());
        stream.write_all(get("/many/", "").repeat(3).as_bytes()).unwrap();
        let mut start = [0; 12];
        stream.read_exact(&mut start).expect("an answer");
        statuses.push(String::from_utf8_lossy(&start[9..]).into_owned());
        waiting.push(stream);
    }
    let fit = (64 << 20) / whole.body.len();
    assert!((4..8).contains(&fit), "{fit}");
    let expected: Vec<&str> = (0..8).map(|n| if n < fit { "200" } else { "503" }).collect();
    assert_eq!(statuses, expected, "{engine}");
    // Two copies while one is made.
    let grown = server.memory_bytes().saturating_sub(before);
    assert!(grown < 110 << 20, "{engine}: {grown} bytes");
    assert_eq!(ask(&server, &get("/hello.txt", "")).status, 200);
    drop(waiting);
    wait_until("there is room", || {
        let answer = ask(&server, &get("/many/", ""));
        answer.status == 200 && answer.body == whole.body
    });
    server.terminate();
    println!("{engine}: {fit} held, {} sent away", statuses.len() - fit);
}

/// Its length went with the old length, and the rest was a reset.
fn a_large_404_page_may_be_rewritten_in_place(engine: &str) {
    let site = Site::new();
    let mut stream = None;
    let arguments = ["--not-found", "/gone.html", "--cache-valid", "60s"];
    site.write("gone.html", &version(0, 200_000));
    let server = Server::http(engine, site.path(), &arguments);
    for number in 0..5 {
        let content = version(number, 200_000 - 1000 * number as usize);
        std::fs::write(site.path().join("gone.html"), &content).expect("a file");
        let stream = stream.get_or_insert_with(|| connect(server.address()));
        let answer = ask_on(stream, &get("/none", ""));
        assert_eq!(answer.status, 404, "{engine}");
        assert_same(&answer.body, &content);
        // Right behind the answer, a write would count as one during it: the next request is
        // read when the server has looked.
        let options = "OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n";
        assert_eq!(ask_on(stream, options).status, 204);
    }
}

/// Files that were kept open left no descriptor for others.
fn open_files_give_way_to_other_descriptors(engine: &str) {
    let site = Site::usual();
    for number in 0..40 {
        site.write(&format!("large/{number}"), &version(number, 60_000));
    }
    let server = Server::http_with_descriptors(engine, site.path(), 60);
    let mut stream = connect(server.address());
    let mut connections: Vec<TcpStream> = Vec::new();
    // Half of the descriptors at most are for files that are kept; two for what is going on.
    let most = server.descriptors() + 32;
    for number in 0..40 {
        assert_eq!(ask_on(&mut stream, &get(&format!("/large/{number}"), "")).status, 200);
        assert!(server.descriptors() <= most, "{engine}: {}", server.descriptors());
    }
    while server.descriptors() < 60 {
        connections.push(connect(server.address()));
        // Many waiting connections would take the descriptors that files release.
        server.wait_for_sockets(SOCKETS_WITHOUT_CONNECTIONS + 1 + connections.len());
    }
    assert_eq!(ask_on(&mut stream, &get("/hello.txt", "")).status, 200, "{engine}");
    println!("{engine}: served beside {} connections", connections.len());
}
