//! h2o as an opponent, configured like nginx: a thread for each worker, no access log, connections that stay.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde_json::Value;

use super::Site;
use crate::experiment::HttpPoint;

/// Its name as a peer.
pub(crate) const PEER: &str = "h2o";

/// Connections that it has room for at least.
const CONNECTIONS_LEAST: u64 = 4096;

/// Streams of a connection of HTTP/2 at least: h2o's default.
const STREAMS_LEAST: u32 = 100;

/// How long a connection may be idle, in seconds: longer than any run.
const IDLE_S: u32 = 3600;

/// The configuration for a run, in YAML. Strings are written as JSON, which YAML includes.
pub(crate) fn configuration(site: &Site, point: HttpPoint, address: SocketAddr) -> String {
    let text = |path: PathBuf| Value::from(path.display().to_string()).to_string();
    let connections = (u64::from(point.connections) + 64).max(CONNECTIONS_LEAST);
    let (workers, streams) = (point.workers, point.depth.max(STREAMS_LEAST));
    let tls = match point.tls {
        true => format!(
            "  ssl:\n    certificate-file: {}\n    key-file: {}\n    minimum-version: TLSv1.2\n",
            text(site.certificate()),
            text(site.key())
        ),
        false => String::new(),
    };
    // As root it refuses to serve unless it is told to stay root; others may not say who they are.
    let user = if nix::unistd::geteuid().is_root() { "user: root\n" } else { "" };
    format!(
        "{user}num-threads: {workers}\nmax-connections: {connections}\nerror-log: /dev/stderr\n\
         http1-request-timeout: {IDLE_S}\nhttp2-idle-timeout: {IDLE_S}\n\
         http2-max-concurrent-requests-per-connection: {streams}\n\
         listen:\n  host: \"{}\"\n  port: {}\n{tls}\
         hosts:\n  default:\n    paths:\n      \"/\":\n        file.dir: {}\n",
        address.ip(),
        address.port(),
        text(site.root()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_the_cell() {
        let site = Site { directory: "/bundle/wo\"rk".into() };
        let point = HttpPoint {
            connections: 50,
            file_bytes: 1024,
            files: 1,
            depth: 8,
            keepalive: true,
            tls: false,
            http2: true,
            rate_per_s: 0,
            load_percent: 0,
            generator: 0,
            workers: 1,
        };
        let address = "10.0.0.1:20000".parse().unwrap();
        let text = configuration(&site, point, address);
        for line in [
            "num-threads: 1",
            "max-connections: 4096",
            "http2-max-concurrent-requests-per-connection: 100",
            "  host: \"10.0.0.1\"",
            "  port: 20000",
            "        file.dir: \"/bundle/wo\\\"rk/root\"",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}: {text}");
        }
        assert!(!text.contains("ssl"), "{text}");
        let large = HttpPoint { connections: 5000, depth: 300, tls: true, workers: 4, ..point };
        let text = configuration(&site, large, address);
        for line in [
            "num-threads: 4",
            "max-connections: 5064",
            "http2-max-concurrent-requests-per-connection: 300",
            "    certificate-file: \"/bundle/wo\\\"rk/certificate.pem\"",
            "    key-file: \"/bundle/wo\\\"rk/key.pem\"",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}: {text}");
        }
    }
}
