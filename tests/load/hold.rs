//! Load generators that are connected, and begin at a moment that they are told.

use crate::support::Server;
use crate::support::http::Site;
use crate::support::load::{Bounded, command};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;
use testing::{Test, engine_tests};

pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![
    one_that_is_not_told_a_moment_says_so,
    two_load_generators_of_each_kind_begin_at_one_moment
];

/// A load generator that said that it is connected.
struct Held {
    run: Bounded,
    stdout: BufReader<std::process::ChildStdout>,
}

impl Held {
    fn start(engine: &str, kind: &str, target: &str) -> Held {
        let arguments = "--hold -d 200ms --warmup 100ms";
        let mut command = command(engine, kind, target, arguments);
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let line = next(&mut stdout);
        assert_eq!(line["event"], "held", "{kind}");
        Held { run: Bounded(Some(child)), stdout }
    }

    fn tell(&mut self, line: &str) {
        let stdin = self.run.0.as_mut().unwrap().stdin.take();
        stdin.unwrap().write_all(line.as_bytes()).unwrap();
    }

    /// Exit code, what else it printed, and standard error.
    fn end(mut self) -> (i32, String, String) {
        let mut text = String::new();
        self.stdout.read_to_string(&mut text).unwrap();
        let output = self.run.output();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code().unwrap(), text, stderr)
    }
}

fn next(lines: &mut impl BufRead) -> Value {
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: `{line}`"))
}

fn two_load_generators_of_each_kind_begin_at_one_moment(engine: &str) {
    let site = Site::usual();
    let servers = [
        ("tcp", Server::echo(engine, &[])),
        ("http", Server::http(engine, site.path(), &[])),
        ("udp", Server::udp(engine, &[])),
    ];
    for (kind, server) in servers {
        let address = server.address();
        let target = match kind {
            "http" => format!("http://{address}/index.html"),
            _ => address.to_string(),
        };
        let mut both = [(); 2].map(|()| Held::start(engine, kind, &target));
        let begin_ns = twinring::monotonic_ns() + 100_000_000;
        both.iter_mut().for_each(|held| held.tell(&format!("{begin_ns}\n")));
        for held in both {
            let (code, text, stderr) = held.end();
            assert_eq!(code, 0, "{kind}: {text}{stderr}");
            let start = next(&mut text.as_bytes());
            assert_eq!(start["event"], "window_start");
            assert_eq!(start["monotonic_ns"], begin_ns + 100_000_000, "{kind}: {text}");
        }
        assert_eq!(server.terminate().code, Some(0));
    }
}

fn one_that_is_not_told_a_moment_says_so(engine: &str) {
    for kind in ["tcp", "udp"] {
        let server = match kind {
            "tcp" => Server::echo(engine, &[]),
            _ => Server::udp(engine, &[]),
        };
        let target = server.address().to_string();
        for (line, why) in [
            ("", "it ended"),
            ("soon\n", "`soon`"),
            ("18446744073709551615\n", "ahead"),
            (&"9".repeat(100), "99`"),
        ] {
            let mut held = Held::start(engine, kind, &target);
            held.tell(line);
            let (code, text, stderr) = held.end();
            assert_eq!((code, &*text), (1, ""), "{kind}: {stderr}");
            assert!(stderr.contains(why) && stderr.contains("--hold"), "{kind}: {stderr}");
        }
        // It can be interrupted.
        let held = Held::start(engine, kind, &target);
        let pid = held.run.0.as_ref().unwrap().id();
        kill(Pid::from_raw(pid as i32), Signal::SIGINT).unwrap();
        assert_eq!(held.end().0, 130, "{kind}");
    }
}
