//! `serve http` against the cases of h2spec: <https://github.com/summerwind/h2spec>.

use crate::support::tls::{encrypted, usual};
use crate::support::*;
use std::process::Command;
use testing::{Test, long_tests};

pub(crate) const LONG_TESTS: &[Test] = long_tests![h2spec_passes];

/// Fails without TLS: what does not begin like HTTP/2 is answered as HTTP/1.1, with 400.
const FAILS_WITHOUT_TLS: &str = "Sends invalid connection preface";

fn h2spec_passes() {
    // go install github.com/summerwind/h2spec/cmd/h2spec@latest
    testing::needs_program("h2spec");
    for engine in ENGINES {
        let (_site, _identity, server) = usual(engine, &[]);
        for tls in [false, true] {
            let address = if tls { encrypted(&server) } else { server.address() };
            let mut command = Command::new("h2spec");
            command.args(["--host", "127.0.0.1", "--strict", "--timeout", "10", "--port"]);
            command.arg(address.port().to_string());
            if tls {
                command.args(["--tls", "--insecure"]);
            }
            let (_, text, _) = run_to_its_end(&mut command);
            let last = text.lines().rev().find(|line| !line.trim().is_empty());
            let last = last.unwrap_or_default();
            println!("{engine}, TLS {tls}: {last}");
            assert!(last.contains(" passed, 0 skipped, "), "{text}");
            // A failure is listed as `× 2: Sends …`.
            let (_, failures) = text.split_once("\nFailures:").unwrap_or_default();
            let failures = failures.lines().filter(|line| line.trim_start().starts_with('×'));
            let failures: Vec<&str> = failures.collect();
            assert_eq!(failures.len(), usize::from(!tls), "{text}");
            assert!(failures.iter().all(|case| case.ends_with(FAILS_WITHOUT_TLS)), "{text}");
        }
        assert_eq!(server.terminate().code, Some(0));
    }
}
