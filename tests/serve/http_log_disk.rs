//! The access log of `twinring serve http` on a full disk.

use crate::http_log::{lines, logged};
use crate::support::http::*;
use crate::support::*;
use std::fs;
use std::time::Duration;
use testing::{Test, engine_tests, tests};

pub(crate) const TESTS: &[Test] = tests![a_disk_that_is_full_for_a_while_keeps_lines_whole];
pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![a_full_disk_is_reported_once_and_recovers];

fn a_full_disk_is_reported_once_and_recovers(engine: &str) {
    let (site, logs) = (Site::usual(), Site::new());
    let log = logs.path().join("access.log");
    std::os::unix::fs::symlink("/dev/full", &log).expect("a link");
    let server = logged(engine, &site, &log, &["--stats", "1"]);
    for _ in 0..5 {
        assert_eq!(ask(&server, &get("/hello.txt", "")).status, 200);
        std::thread::sleep(Duration::from_millis(120));
    }
    wait_until("the full disk is told", || server.stderr().contains("No space left"));
    // None of them is so late that it belongs to the new file.
    tls::wait_for_count(&server, "log_dropped", 5);
    fs::remove_file(&log).expect("a link");
    server.signal(Signal::SIGUSR1);
    wait_until("the new file is there", || log.exists());
    assert_eq!(ask(&server, &get("/hello.txt", "")).status, 200);
    wait_until("the recovery is told", || server.stderr().contains("lines were lost"));
    let ended = server.terminate();
    assert_eq!(ended.stderr.matches("No space left").count(), 1, "{}", ended.stderr);
    assert_eq!((lines(&log).len(), ended.count("requests")), (1, 6));
    assert_eq!((ended.count("log_lines"), ended.count("log_dropped")), (1, 5));
    assert!(ended.stderr.contains("5 lines were lost"), "{}", ended.stderr);
    println!("{engine}: 5 lines lost, told once, 1 written after that");
}

fn a_disk_that_is_full_for_a_while_keeps_lines_whole() {
    use nix::mount::{MntFlags, MsFlags, mount, umount2};
    for engine in ENGINES {
        let (site, logs) = (Site::usual(), Site::new());
        let (flags, size) = (MsFlags::empty(), Some("size=128k"));
        if let Err(error) = mount(Some("tmpfs"), logs.path(), Some("tmpfs"), flags, size) {
            testing::needs("root", format_args!("no file system to fill: {error}"));
        }
        let log = logs.path().join("access.log");
        let filler = logs.path().join("filler");
        fs::write(&filler, vec![0; 90_000]).expect("room");
        let server = logged(engine, &site, &log, &[]);
        let agent = format!("User-Agent: {}\r\n", "x".repeat(900));
        let mut stream = connect(server.address());
        let mut requests = 0;
        wait_until("the disk is full", || {
            requests += 1;
            ask_on(&mut stream, &get("/hello.txt", &agent));
            server.stderr().contains("No space left")
        });
        fs::remove_file(&filler).expect("a file");
        wait_until("there is room again", || {
            // Slowly: the buffer must last until that is reported, perhaps late.
            std::thread::sleep(Duration::from_millis(50));
            requests += 1;
            ask_on(&mut stream, &get("/hello.txt", &agent));
            server.stderr().contains("lines were lost")
        });
        drop(stream);
        let ended = server.terminate();
        let whole = lines(&log).iter().filter(|line| line.ends_with(" +")).count() as u64;
        umount2(logs.path(), MntFlags::MNT_DETACH).expect("mounted");
        let dropped = ended.count("log_dropped");
        assert_eq!((ended.count("log_lines"), ended.count("requests")), (whole, requests));
        assert!(dropped > 0 && whole + dropped == requests, "{whole} + {dropped} of {requests}");
        println!("{engine}: of {requests} lines {dropped} were lost, {whole} are whole");
    }
}
