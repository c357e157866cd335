//! `twinring serve http` on a socket that was passed to it, as by systemd.

use crate::support::http::*;
use crate::support::*;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use testing::{Test, engine_tests, tests};

pub(crate) const TESTS: &[Test] = tests![
    a_passed_socket_may_stand_beside_an_address,
    sockets_that_are_not_passed_or_do_not_listen_are_an_error
];
pub(crate) const ENGINE_TESTS: &[Test] =
    engine_tests![a_passed_socket_is_served_by_all_workers_and_outlives_the_server];

/// A server with this socket as the first passed descriptor. No other process of the tests gets it:
/// it is standard input until the server starts.
fn serve_on(socket: &TcpListener, name: &str, root: &Path, arguments: &[&str]) -> Server {
    let script = "exec 3<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\"";
    let mut command = Command::new("bash");
    command.args(["-c", script, "bash", env!("CARGO_BIN_EXE_twinring"), "serve", "http", "--json"]);
    command.arg("--root").arg(root).args(arguments).env("LISTEN_FDNAMES", name);
    let socket = socket.try_clone().expect("a descriptor");
    Server::spawn_with(command, Stdio::from(OwnedFd::from(socket)))
}

fn passed() -> (TcpListener, SocketAddr) {
    let socket = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = socket.local_addr().expect("an address");
    (socket, address)
}

fn a_passed_socket_is_served_by_all_workers_and_outlives_the_server(engine: &str) {
    let site = Site::usual();
    let (socket, address) = passed();
    for listen in ["systemd", "fd:http"] {
        // Nothing is refused before the start, nor between two servers.
        let mut early = connect(address);
        early.write_all(get("/hello.txt", "").as_bytes()).expect("the kernel queues it");
        let arguments = ["--engine", engine, "--workers", "2", "--listen", listen];
        let server = serve_on(&socket, "http", site.path(), &arguments);
        assert_eq!(server.address(), address, "{engine}");
        assert_eq!(read_response(&mut early, false).status, 200, "{engine}");
        for _ in 0..50 {
            assert_eq!(ask(&server, &get("/hello.txt", "")).status, 200, "{engine}");
        }
        drop(early);
        assert_eq!(server.end().count("accepted"), 51);
    }
    drop(connect(address));
}

fn a_passed_socket_may_stand_beside_an_address() {
    let site = Site::usual();
    let (socket, address) = passed();
    let arguments = ["--engine", "epoll", "--listen", "fd:http", "--listen", "127.0.0.1:0"];
    let server = serve_on(&socket, "http", site.path(), &arguments);
    assert!(server.addresses().contains(&address) && server.addresses().len() == 2);
    for address in server.addresses() {
        assert_eq!(responses(&talk(address, get("/hello.txt", "").as_bytes()))[0].status, 200);
    }
    server.end();
}

fn sockets_that_are_not_passed_or_do_not_listen_are_an_error() {
    let site = Site::usual();
    for (script, words) in [
        // Passed to another process: a variable that was inherited by chance.
        ("LISTEN_PID=1 LISTEN_FDS=1 exec \"$@\"", "no sockets were passed"),
        ("LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\" 3</dev/null", "passed socket 0 (`"),
    ] {
        let mut command = Command::new("bash");
        command.args(["-c", script, "bash", env!("CARGO_BIN_EXE_twinring"), "serve", "http"]);
        command.args(["--listen", "systemd", "--root"]).arg(site.path());
        let (code, _, told) = run_to_its_end(&mut command);
        assert!(code == Some(1) && told.contains(words), "{code:?} {told}");
    }
}
