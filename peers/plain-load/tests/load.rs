//! The load generator against servers of known behaviour.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::thread;

use twinring_wire::{LoadResult, TcpResult};

/// A server that echoes; `change` may change the bytes at a position of a stream.
fn server(change: fn(usize, &mut [u8])) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serve = move |mut stream: TcpStream| {
        let (mut memory, mut position) = (vec![0; 1 << 16], 0);
        while let Ok(bytes @ 1..) = stream.read(&mut memory) {
            change(position, &mut memory[..bytes]);
            position += bytes;
            if stream.write_all(&memory[..bytes]).is_err() {
                return;
            }
        }
    };
    thread::spawn(move || {
        listener.incoming().flatten().for_each(|stream| drop(thread::spawn(move || serve(stream))));
    });
    address
}

/// Its marks, its result, and whether it was content.
fn run(address: SocketAddr, arguments: &str) -> (Vec<String>, TcpResult, bool) {
    let output = Command::new(env!("CARGO_BIN_EXE_plain-load"))
        .arg(address.to_string())
        .args(arguments.split(' '))
        .args(["-d", "300ms", "--warmup", "50ms"])
        .output()
        .unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let events = lines.iter().map(|line| line["event"].as_str().unwrap().to_owned()).collect();
    let LoadResult::Tcp(result) = LoadResult::read(lines.last().unwrap()).unwrap() else {
        panic!("{lines:?}");
    };
    (events, *result, output.status.success())
}

#[test]
fn every_request_is_answered_and_compared() {
    let address = server(|_, _| {});
    for arguments in ["-c 1 -s 1", "-c 20 -s 128 --depth 3", "-c 3 -s 300000 --depth 2"] {
        let (events, result, success) = run(address, arguments);
        assert_eq!(events, ["window_start", "window_end", "result"]);
        let whole = result.all.whole_run;
        assert!(success && result.all.requests.answered > 0, "{arguments}: {result:?}");
        assert_eq!(whole.sent, whole.answered + whole.failed + whole.abandoned);
        assert_eq!((whole.failed, whole.abandoned), (0, 0), "{arguments}");
        assert_eq!(result.errors.failures() + result.errors.mismatch, 0, "{:?}", result.errors);
        let latencies = result.all.histogram.decode().unwrap();
        assert_eq!(latencies.len(), result.all.requests.answered);
        assert_eq!(result.all.connections.served, result.all.connections.asked);
    }
}

#[test]
fn a_server_that_changes_a_byte_is_caught() {
    let address = server(|position, bytes| {
        if let Some(byte) = 500_usize.checked_sub(position).and_then(|at| bytes.get_mut(at)) {
            *byte ^= 1;
        }
    });
    let (_, result, _) = run(address, "-c 2 -s 100");
    assert_eq!((result.errors.mismatch, result.all.connections.lost), (2, 2), "{result:?}");
    assert_eq!(result.all.whole_run.failed, 2);
}
