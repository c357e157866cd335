//! h2load and its window against servers of known behaviour.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::thread;

use twinring_wire::{HttpResult, LoadResult};

const SIZE: usize = 1000;

/// A server whose answers have this status and so many bytes.
fn server(status: &'static str, bytes: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {bytes}\r\n\r\n");
    let answer = [head.into_bytes(), vec![b'x'; bytes]].concat();
    let serve = move |mut stream: TcpStream| {
        let (mut memory, mut ends) = ([0; 1 << 16], Vec::new());
        while let Ok(read @ 1..) = stream.read(&mut memory) {
            ends.extend_from_slice(&memory[..read]);
            while let Some(at) = ends.windows(4).position(|it| it == b"\r\n\r\n") {
                ends.drain(..at + 4);
                if stream.write_all(&answer).is_err() {
                    return;
                }
            }
        }
    };
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            thread::spawn(move || serve(stream));
        }
    });
    address
}

/// Its marks and its result.
fn run(address: SocketAddr, arguments: &str) -> (Vec<String>, HttpResult) {
    let output = Command::new(env!("CARGO_BIN_EXE_h2load-window"))
        .arg(format!("http://{address}/file"))
        .args(arguments.split(' '))
        .args(["-s", &SIZE.to_string(), "-d", "400ms", "--warmup", "100ms"])
        .output()
        .unwrap();
    assert!(!output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let events = lines.iter().map(|line| line["event"].as_str().unwrap().to_owned()).collect();
    let LoadResult::Http(result) = LoadResult::read(lines.last().unwrap()).unwrap() else {
        panic!("{lines:?}");
    };
    (events, *result)
}

#[test]
fn the_window_is_that_of_h2load() {
    for arguments in ["-c 1", "-c 10", "-c 4 --depth 3"] {
        let (events, result) = run(server("200 OK", SIZE), arguments);
        assert_eq!(events, ["window_start", "window_end", "result"]);
        let all = &result.all;
        assert!(all.requests.answered > 0 && all.requests.failed == 0, "{arguments}: {result:?}");
        assert_eq!(all.histogram.decode().unwrap().len(), all.requests.answered);
        assert_eq!(result.bytes.bodies, all.requests.answered * SIZE as u64);
        assert_eq!(
            (result.errors.failures(), result.errors.wrong()),
            (0, 0),
            "{:?}",
            result.errors
        );
        assert!(all.whole_run.answered >= all.requests.answered, "{result:?}");
    }
}

#[test]
fn other_answers_are_no_success() {
    let (_, result) = run(server("404 Not Found", SIZE), "-c 2");
    assert!(result.errors.status > 0 && result.all.requests.answered == 0, "{result:?}");
    let (_, result) = run(server("200 OK", SIZE - 1), "-c 2");
    assert_ne!(result.bytes.bodies, result.all.requests.answered * SIZE as u64, "{result:?}");
}
