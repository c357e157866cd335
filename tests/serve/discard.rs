//! `twinring serve discard` over real sockets: every byte is read and counted, and none comes back.

use crate::support::*;
use std::io::Write;
use std::net::Shutdown;
use std::process::Command;
use testing::{Test, engine_tests};

pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![every_byte_is_read_and_none_is_answered];

fn discard(engine: &str) -> Server {
    let mut command = Command::new(env!("CARGO_BIN_EXE_twinring"));
    command.args(["serve", "discard", "--listen", "127.0.0.1:0", "--engine", engine, "--json"]);
    Server::spawn(command)
}

fn every_byte_is_read_and_none_is_answered(engine: &str) {
    const BYTES: [usize; 4] = [0, 1, 65_537, 3_000_017];
    let server = discard(engine);
    let streams = BYTES.map(|_| connect(server.address()));
    for (stream, bytes) in streams.iter().zip(BYTES) {
        (&*stream).write_all(&vec![7; bytes]).expect("the server reads");
        stream.shutdown(Shutdown::Write).expect("connected");
    }
    for stream in &streams {
        assert!(read_to_end(stream).expect("a clean end").is_empty(), "{engine}");
    }
    let ended = server.terminate();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(ended.last["service"], "discard");
    assert_eq!(ended.count("accepted"), BYTES.len() as u64);
    assert_eq!(ended.count("received_bytes"), BYTES.iter().sum::<usize>() as u64);
    assert_eq!((ended.count("sent_bytes"), ended.count("open")), (0, 0));
}
