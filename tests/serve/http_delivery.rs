//! What was answered arrives, also behind a shutdown, at slow clients and over slow links.

use crate::support::http::Site;
use crate::support::namespace::in_a_namespace;
use crate::support::tls::{Identity, encrypted, serve};
use crate::support::{pattern, wait_until};
use nix::sys::signal::Signal;
use std::net::SocketAddr;
use std::process::Command;
use testing::{Test, engine_tests};

pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![by_us];

const BYTES: usize = 2_000_000;

/// Fetches a file over each protocol, and calls `shut_down` while all of them are under way.
fn fetch(addresses: [SocketAddr; 3], rate: Option<&str>, shut_down: impl FnOnce()) {
    let [http1, http2, tls] = addresses;
    let into = tempfile::tempdir().expect("a directory for temporary files");
    let protocols = [
        ("http", http1, "--http1.1"),
        ("http", http2, "--http2-prior-knowledge"),
        ("https", tls, "--http1.1"),
        ("https", tls, "--http2"),
    ];
    let clients = protocols.map(|(scheme, address, protocol)| {
        let name = format!("{scheme} {protocol}");
        let file = into.path().join(&name);
        let mut curl = Command::new("curl");
        curl.args(["-sSNk", "-m", "60", protocol, "-o"]).arg(&file);
        curl.args(rate.iter().flat_map(|rate| ["--limit-rate", rate]));
        let curl = curl.arg(format!("{scheme}://{address}/large.bin")).spawn();
        (name, file, curl.expect("curl starts"))
    });
    wait_until("all have begun", || {
        let begun = |it: &std::path::PathBuf| it.metadata().is_ok_and(|it| it.len() > 0);
        clients.iter().all(|(_, file, _)| begun(file))
    });
    shut_down();
    for (name, file, mut curl) in clients {
        let status = curl.wait().expect("a child");
        let bytes = file.metadata().expect("a file").len();
        assert!(status.success() && bytes == BYTES as u64, "{name}: {status}, {bytes} bytes");
    }
}

/// Calls this with a rate for slow clients, and without one over a slow link.
fn slowly(test: impl Fn(Option<&str>) + Sync) {
    testing::needs_program("curl");
    testing::needs_program("tc");
    in_a_namespace(|| {
        test(Some("700k"));
        for command in [
            "ip link set lo mtu 1500",
            "tc qdisc add dev lo root tbf rate 16mbit burst 32kb latency 50ms",
        ] {
            let words: Vec<_> = command.split(' ').collect();
            let output = Command::new(words[0]).args(&words[1..]).output().expect("it starts");
            if !output.status.success() {
                testing::needs("tc with tbf", String::from_utf8_lossy(&output.stderr));
            }
        }
        test(None);
    });
}

/// They were cut on HTTP/2: the client's next WINDOW_UPDATE drew a reset, which discards what was not sent yet.
fn by_us(engine: &str) {
    slowly(|rate| {
        let (site, identity) = (Site::usual(), Identity::new());
        site.write("large.bin", &pattern(1, BYTES));
        let server = serve(engine, site.path(), &identity, &["server.drain-timeout = '50s'"]);
        let clear = server.address();
        fetch([clear, clear, encrypted(&server)], rate, || server.signal(Signal::SIGTERM));
        let ended = server.wait();
        assert_eq!((ended.code, ended.count("cut")), (Some(0), 0), "{}", ended.stderr);
    });
}
