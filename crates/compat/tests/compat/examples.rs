//! What the example of the traits of futures does, checked.

use crate::support::*;
use std::io::{Read, Write};
use testing::{Test, engine_tests};

#[path = "../../examples/lines.rs"]
mod lines;

pub(crate) const TESTS: &[Test] = engine_tests![lines_and_exact_reads];

fn lines_and_exact_reads(engine: &str) {
    run(engine, async {
        let listener = listen();
        let mut peer = Peer::connect(listener.local_addr()).expect("the backlog has room");
        twinring::spawn(lines::serve(listener));
        let answer = on_thread(move || {
            peer.write_all(b"5\nhello0\n3\nabc100000\n").expect("it reads");
            let text = pattern(100_000);
            peer.write_all(&text).expect("it reads");
            peer.shutdown(std::net::Shutdown::Write).expect("connected");
            let mut answer = Vec::new();
            peer.read_to_end(&mut answer).expect("no reset");
            answer
        });
        let mut expected = b"ollehcba".to_vec();
        expected.extend(pattern(100_000).into_iter().rev());
        assert!(answer.await == expected);
    });
}
