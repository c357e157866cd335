//! nginx as an opponent: found, and configured as somebody would who wants it to win.
//!
//! As many workers and CPUs as our server has. Nothing is logged, files are kept open, connections
//! never end by count or time. With one worker `master_process off` makes it a single process with the
//! loop of a worker: then it dies with the lab, whereas a worker whose master was killed lives on. With
//! several each has a listener and a CPU of its own. It is pinned by the lab, as every subject is.

use std::net::SocketAddr;
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::experiment::{HttpPoint, Nginx};

/// Connections, and the files that are its own, that nginx has room for at least.
const CONNECTIONS_LEAST: u64 = 4096;

/// Streams of a connection of HTTP/2 at least: nginx's default.
const STREAMS_LEAST: u32 = 128;

/// Files kept open at least.
const OPEN_FILES_LEAST: u32 = 1000;

/// Temporary directories by module. Without these directives nginx makes them where it was built
/// for, which takes the rights of root.
const TEMPORARY: [&str; 4] = ["proxy", "fastcgi", "uwsgi", "scgi"];

/// The nginx of a host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Installed {
    /// What `nginx -V` says: version and how it was built.
    built: String,
}

impl Installed {
    /// Asks the program of this name.
    ///
    /// # Errors
    /// Why it cannot be used, and what to do.
    pub(crate) fn find(program: &str) -> Result<Installed, String> {
        let output = Command::new(program).arg("-V").output().map_err(|error| {
            format!(
                "`{program}` cannot be started ({error}); install it, for example with `apt \
                 install nginx-light`, and make sure that it is in PATH"
            )
        })?;
        let built = String::from_utf8_lossy(&output.stderr).into_owned();
        match output.status.success() && built.contains("nginx") {
            true => Ok(Installed { built }),
            false => Err(format!("`{program} -V` ended with {}: {built}", output.status)),
        }
    }

    /// Its version as it prints it, for example `nginx/1.22.1`.
    pub(crate) fn version(&self) -> Option<String> {
        let line = self.built.lines().find(|line| line.contains("version:"))?;
        Some(line.rsplit_once(' ')?.1.to_owned())
    }

    /// The configuration for a run. Relative paths are beneath the directory of `-p`.
    pub(crate) fn configuration(
        &self,
        nginx: &Nginx,
        point: HttpPoint,
        address: SocketAddr,
    ) -> String {
        // Of each connection nginx may hold a file as well, and its listener is one more.
        let connections = (2 * u64::from(point.connections) + 64).max(CONNECTIONS_LEAST);
        let open_files = point.files.saturating_add(64).max(OPEN_FILES_LEAST);
        let switch = if nginx.sendfile { "on" } else { "off" };
        let temporary: String = TEMPORARY
            .iter()
            .filter(|module| !self.built.contains(&format!("--without-http_{module}_module")))
            .map(|module| format!("    {module}_temp_path temporary_{module};\n"))
            .collect();
        let (ssl, certificate) = match point.tls {
            true => (
                " ssl",
                "        ssl_certificate certificate.pem;\n        ssl_certificate_key key.pem;\n\
                 \x20       ssl_protocols TLSv1.2 TLSv1.3;\n",
            ),
            false => ("", ""),
        };
        // Frames as large as clients take by default, and as many streams as are asked for.
        let (h2, streams) = match point.http2 {
            true => {
                let streams = point.depth.max(STREAMS_LEAST);
                let streams = format!("    http2_max_concurrent_streams {streams};\n");
                (" http2", streams + "    http2_chunk_size 16k;\n")
            }
            false => ("", String::new()),
        };
        // `auto` binds each worker to one of the CPUs that the lab has pinned nginx to.
        let (processes, reuse_port) = match point.workers {
            1 => ("master_process off;\nworker_processes 1;\n".to_owned(), ""),
            several => {
                (format!("worker_processes {several};\nworker_cpu_affinity auto;\n"), " reuseport")
            }
        };
        let more: String =
            nginx.directives.iter().map(|directive| format!("        {directive}\n")).collect();
        format!(
            "daemon off;\n{processes}pid nginx.pid;\n\
             error_log stderr error;\n\
             events {{\n    use epoll;\n    worker_connections {connections};\n}}\n\
             http {{\n    access_log off;\n    default_type application/octet-stream;\n\
             \x20   client_body_temp_path temporary_body;\n{temporary}\
             \x20   sendfile {switch};\n    tcp_nopush {switch};\n    tcp_nodelay on;\n\
             \x20   keepalive_timeout 1h;\n    keepalive_requests 1000000000;\n\
             \x20   open_file_cache max={open_files} inactive=1h;\n    open_file_cache_valid 60s;\n\
             {streams}\
             \x20   server {{\n        listen {address} backlog=4096{reuse_port}{ssl}{h2};\n        root root;\n\
             {certificate}{more}    }}\n}}\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POINT: HttpPoint = HttpPoint {
        connections: 100,
        file_bytes: 512,
        files: 1,
        depth: 1,
        keepalive: true,
        tls: false,
        http2: false,
        rate_per_s: 0,
        load_percent: 0,
        generator: 0,
        workers: 1,
    };

    fn configuration(built: &str, nginx: &Nginx, point: HttpPoint) -> String {
        let installed = Installed { built: built.to_owned() };
        installed.configuration(nginx, point, "10.0.0.1:20000".parse().unwrap())
    }

    #[test]
    fn it_is_configured_to_win() {
        let nginx = Nginx { sendfile: true, directives: Vec::new() };
        let text = configuration("nginx/1.22.1", &nginx, POINT);
        for directive in [
            "listen 10.0.0.1:20000 backlog=4096;",
            "access_log off;",
            "sendfile on;",
            "tcp_nopush on;",
            "worker_connections 4096;",
            "open_file_cache max=1000 inactive=1h;",
            "keepalive_requests 1000000000;",
            "scgi_temp_path temporary_scgi;",
        ] {
            assert!(text.contains(directive), "{directive}: {text}");
        }
        assert!(!text.contains("ssl") && !text.contains("http2"), "{text}");
        assert_eq!(text.matches('{').count(), text.matches('}').count());
    }

    #[test]
    fn it_follows_the_cell_the_subject_and_how_nginx_was_built() {
        let directives = vec!["output_buffers 1 128k;".to_owned()];
        let nginx = Nginx { sendfile: false, directives };
        let large = HttpPoint { connections: 5000, files: 10_000, ..POINT };
        let point = HttpPoint { tls: true, http2: true, depth: 300, ..large };
        let text = configuration("--without-http_scgi_module", &nginx, point);
        for directive in [
            "backlog=4096 ssl http2;",
            "http2_max_concurrent_streams 300;",
            "http2_chunk_size 16k;",
            "ssl_certificate_key key.pem;",
            "sendfile off;",
            "tcp_nopush off;",
            "worker_connections 10064;",
            "open_file_cache max=10064 inactive=1h;",
            "        output_buffers 1 128k;\n    }",
        ] {
            assert!(text.contains(directive), "{directive}: {text}");
        }
        assert!(!text.contains("scgi_temp_path") && text.contains("uwsgi_temp_path"), "{text}");
    }

    #[test]
    fn several_workers_have_a_listener_and_a_cpu_each() {
        let nginx = Nginx { sendfile: true, directives: Vec::new() };
        let text = configuration("nginx/1.22.1", &nginx, HttpPoint { workers: 3, ..POINT });
        for directive in
            ["worker_processes 3;", "worker_cpu_affinity auto;", "backlog=4096 reuseport;"]
        {
            assert!(text.contains(directive), "{directive}: {text}");
        }
        assert!(!text.contains("master_process off"), "{text}");
    }

    #[test]
    fn one_that_is_not_installed_is_said_with_what_to_do() {
        let why = Installed::find("nginx-that-nobody-has").unwrap_err();
        assert!(why.contains("apt install nginx-light"), "{why}");
        let why = Installed::find("false").unwrap_err();
        assert!(why.contains("exit status: 1"), "{why}");
    }
}
