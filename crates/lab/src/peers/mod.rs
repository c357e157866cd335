//! Other people's programs that a subject can be: which are known, how each is started and fitted to
//! a cell, and how to get it. [`Places`] finds them, [`build()`] builds those of the checkout.
//!
//! `peers/README.md` of the checkout says why each is started as it is.

pub(crate) mod build;
pub(crate) mod find;
mod list;

use crate::experiment::{Point, Protocol};
use crate::site::h2o;

pub use build::{Built, build};
pub use find::{Absent, Places};
pub use list::{PEERS_SCHEMA, PeerState, json, list, table};

/// A program that a subject can be.
#[derive(Debug)]
pub struct Peer {
    /// Its name in experiments.
    pub name: &'static str,
    /// The file name of its program.
    pub program: &'static str,
    /// What it is.
    pub what: &'static str,
    /// What it speaks.
    pub protocol: Protocol,
    /// Its arguments in every cell, placeholders in braces.
    arguments: &'static [&'static str],
    /// Its further arguments in a cell.
    fitted: fn(&Point) -> Vec<String>,
    /// The port that it listens on, if it takes no other.
    pub port: Option<u16>,
    /// Where it comes from.
    pub origin: Origin,
}

/// Where a peer comes from.
#[derive(Debug)]
pub enum Origin {
    /// A package of the workspace in `peers/` of the checkout.
    Cargo,
    /// A Go module in this directory of `peers/`.
    Go(&'static str),
    /// The distribution's packages.
    Distribution(&'static [&'static str]),
    /// A public repository: commands that put the program where the lab looks for it. They need
    /// the network, so the lab does not run them.
    Repository(&'static [&'static str]),
}

/// Where programs from elsewhere are put by the commands that get them.
const MAKE_DIRECTORY: &str = "mkdir -p peers/target/release";

/// How to get go-uring's echo server as it was when its table was made, without and with its build
/// tag.
const GO_URING: &[&str] = &[
    MAKE_DIRECTORY,
    "git clone https://github.com/godzie44/go-uring",
    "git -C go-uring checkout cfe5e4a5a9479eaf9e2670eab32e01c7823f5b1e",
    "go -C go-uring build -o \"$PWD/peers/target/release/go-uring-echo\" ./example/echo-server",
    "go -C go-uring build -tags amd64_atomic \
     -o \"$PWD/peers/target/release/go-uring-atomic-echo\" ./example/echo-server",
];

/// How to get frevib's two servers.
const FREVIB: &[&str] = &[
    MAKE_DIRECTORY,
    "apt install liburing-dev gcc",
    "git clone --branch io-uring-feat-fast-poll https://github.com/frevib/io_uring-echo-server",
    "gcc -O2 -D_GNU_SOURCE -Wno-int-conversion io_uring-echo-server/io_uring_echo_server.c \
     -o peers/target/release/frevib-uring-echo -luring",
    "git clone https://github.com/frevib/epoll-echo-server",
    "gcc -O2 -D_GNU_SOURCE epoll-echo-server/epoll_echo_server.c \
     -o peers/target/release/frevib-epoll-echo",
];

/// How to get joakimthun's two servers, as they were when their table was made.
const JOAKIMTHUN: &[&str] = &[
    MAKE_DIRECTORY,
    "apt install liburing-dev cmake g++",
    "git clone https://github.com/joakimthun/io-uring-echo-server",
    "git -C io-uring-echo-server checkout b1acab8d13cd2ba58a8caf28618f87e44322a857",
    "cmake -S io-uring-echo-server -B io-uring-echo-server/build -DCMAKE_BUILD_TYPE=Release \
     -DCMAKE_CXX_FLAGS=-DINLINE_EPOLL_WRITE",
    "cmake --build io-uring-echo-server/build",
    "cp io-uring-echo-server/build/uring_echo_server peers/target/release/joakimthun-uring-echo",
    "cp io-uring-echo-server/build/epoll_echo_server peers/target/release/joakimthun-epoll-echo",
];

/// Arguments of the programs in `peers/`.
const OURS: &[&str] = &["--listen", "{addr}", "--pin", "{server_cpu}"];

/// The same, and receiving from all that one wait reported before sending to any.
const OURS_GATHERED: &[&str] = &["--listen", "{addr}", "--pin", "{server_cpu}", "--gather"];

/// The same, and registering a socket again after each of its events.
const OURS_REARMED: &[&str] = &["--listen", "{addr}", "--pin", "{server_cpu}", "--rearm"];

/// Load generators, and no servers: second opinions on ours. In a command the name in braces stands
/// for the program.
pub(crate) const SECOND_LOADS: [Peer; 2] = [
    Peer {
        name: "plain-load",
        program: "plain-load",
        what: "load generator on bare epoll",
        protocol: Protocol::Tcp,
        arguments: &[],
        fitted: nothing,
        port: None,
        origin: Origin::Cargo,
    },
    Peer {
        name: "h2load",
        program: "h2load-window",
        what: "load generator h2load of nghttp2",
        protocol: Protocol::Http,
        arguments: &[],
        fitted: nothing,
        port: None,
        origin: Origin::Cargo,
    },
];

/// Every server that is known.
pub const KNOWN: &[Peer] = &[
    Peer {
        name: "tokio",
        program: "tokio-echo",
        what: "tokio, one thread (epoll)",
        protocol: Protocol::Tcp,
        arguments: OURS,
        fitted: |point| connection_buffer(point, 32 << 10),
        port: None,
        origin: Origin::Cargo,
    },
    Peer {
        name: "monoio",
        program: "monoio-echo",
        what: "monoio, its io_uring driver",
        protocol: Protocol::Tcp,
        arguments: OURS,
        fitted: |point| connection_buffer(point, 32 << 10),
        port: None,
        origin: Origin::Cargo,
    },
    Peer {
        name: "compio",
        program: "compio-echo",
        what: "compio, its io_uring driver",
        protocol: Protocol::Tcp,
        arguments: OURS,
        fitted: compio,
        port: None,
        origin: Origin::Cargo,
    },
    Peer {
        name: "go-net",
        program: "go-net-echo",
        what: "Go's net package, GOMAXPROCS=1",
        protocol: Protocol::Tcp,
        arguments: OURS,
        fitted: |point| connection_buffer(point, 32 << 10),
        port: None,
        origin: Origin::Go("go-net"),
    },
    Peer {
        name: "tokio-uring",
        program: "tokio-uring-echo",
        what: "tokio-uring, one thread",
        protocol: Protocol::Tcp,
        arguments: OURS,
        fitted: |point| connection_buffer(point, 32 << 10),
        port: None,
        origin: Origin::Cargo,
    },
    Peer {
        name: "floor-epoll",
        program: "floor-epoll",
        what: "a bare epoll loop, no runtime",
        protocol: Protocol::Tcp,
        arguments: OURS,
        fitted: |point| connection_buffer(point, 64 << 10),
        port: None,
        origin: Origin::Cargo,
    },
    Peer {
        name: "floor-epoll-gathered",
        program: "floor-epoll",
        what: "the same, receiving from all, then sending to all",
        protocol: Protocol::Tcp,
        arguments: OURS_GATHERED,
        fitted: |point| connection_buffer(point, 64 << 10),
        port: None,
        origin: Origin::Cargo,
    },
    Peer {
        name: "floor-epoll-rearmed",
        program: "floor-epoll",
        what: "the same, one epoll_ctl more for each message",
        protocol: Protocol::Tcp,
        arguments: OURS_REARMED,
        fitted: |point| connection_buffer(point, 64 << 10),
        port: None,
        origin: Origin::Cargo,
    },
    Peer {
        name: "floor-uring",
        program: "floor-uring",
        what: "a bare io_uring loop, no runtime",
        protocol: Protocol::Tcp,
        arguments: OURS,
        fitted: floor_uring,
        port: None,
        origin: Origin::Cargo,
    },
    Peer {
        name: "nginx",
        program: "nginx",
        what: "nginx as a server of files",
        protocol: Protocol::Http,
        arguments: &[],
        fitted: nothing,
        port: None,
        origin: Origin::Distribution(&["apt install nginx-light"]),
    },
    Peer {
        name: h2o::PEER,
        program: "h2o",
        what: "h2o as a server of files, one thread",
        protocol: Protocol::Http,
        arguments: &["-c", "{config}"],
        fitted: nothing,
        port: None,
        origin: Origin::Distribution(&["apt install h2o"]),
    },
    Peer {
        name: "go-uring",
        program: "go-uring-echo",
        what: "the echo server of go-uring",
        protocol: Protocol::Tcp,
        arguments: &["{port}"],
        fitted: nothing,
        port: None,
        origin: Origin::Repository(GO_URING),
    },
    Peer {
        name: "go-uring-atomic",
        program: "go-uring-atomic-echo",
        what: "the same with its build tag amd64_atomic",
        protocol: Protocol::Tcp,
        arguments: &["{port}"],
        fitted: nothing,
        port: None,
        origin: Origin::Repository(GO_URING),
    },
    Peer {
        name: "frevib-uring",
        program: "frevib-uring-echo",
        what: "frevib's io_uring-echo-server",
        protocol: Protocol::Tcp,
        arguments: &["{port}"],
        fitted: nothing,
        port: None,
        origin: Origin::Repository(FREVIB),
    },
    Peer {
        name: "frevib-epoll",
        program: "frevib-epoll-echo",
        what: "frevib's epoll-echo-server",
        protocol: Protocol::Tcp,
        arguments: &["{port}"],
        fitted: nothing,
        port: None,
        origin: Origin::Repository(FREVIB),
    },
    Peer {
        name: "joakimthun-uring",
        program: "joakimthun-uring-echo",
        what: "joakimthun's uring_echo_server",
        protocol: Protocol::Tcp,
        arguments: &[],
        fitted: nothing,
        port: Some(6379),
        origin: Origin::Repository(JOAKIMTHUN),
    },
    Peer {
        name: "joakimthun-epoll",
        program: "joakimthun-epoll-echo",
        what: "joakimthun's epoll_echo_server",
        protocol: Protocol::Tcp,
        arguments: &[],
        fitted: nothing,
        port: Some(6379),
        origin: Origin::Repository(JOAKIMTHUN),
    },
];

impl Peer {
    /// The peer of this name.
    pub fn find(name: &str) -> Option<&'static Peer> {
        KNOWN.iter().find(|peer| peer.name == name)
    }

    /// The words of its command: the program as `{peer}`, its arguments, what the cell asks for as
    /// `{peer_options}`, and `more`.
    pub(crate) fn command_template(&self, more: &[String]) -> Vec<String> {
        let words = ["{peer}"].iter().chain(self.arguments).chain(&["{peer_options}"]);
        words.map(|word| (*word).to_owned()).chain(more.iter().cloned()).collect()
    }

    /// What stands for its program in the command of a load generator.
    pub(crate) fn word(&self) -> String {
        format!("{{{}}}", self.name)
    }

    /// Why it is left out, and what to do.
    pub(crate) fn why_left_out(&self, absent: &Absent) -> String {
        let what_to_do = match self.how_to_get().as_slice() {
            [command] => format!("to get it, in the checkout: {command}"),
            _ => "`twinring lab peers` has the commands that get it".to_owned(),
        };
        format!("its program `{}` is {absent}; {what_to_do}", self.program)
    }

    /// What `{peer_options}` stands for in a cell.
    pub fn options(&self, point: &Point) -> Vec<String> {
        (self.fitted)(point)
    }

    /// The commands that get it, to be run in the directory of the checkout.
    pub fn how_to_get(&self) -> Vec<String> {
        match self.origin {
            Origin::Cargo => vec![format!(
                "cargo build --release --manifest-path peers/Cargo.toml --target-dir peers/target \
                 --bin {}",
                self.program
            )],
            Origin::Go(directory) => {
                let program = self.program;
                vec![format!("go -C peers/{directory} build -o ../target/release/{program} .")]
            }
            Origin::Distribution(commands) | Origin::Repository(commands) => {
                commands.iter().map(|command| (*command).to_owned()).collect()
            }
        }
    }
}

/// Connections and bytes that each may have on its way at once. Only echo servers are fitted.
fn load_of(point: &Point) -> (u32, u32) {
    let Point::Tcp(point) = point else { return (1, 1) };
    (point.connections, point.message_bytes.saturating_mul(point.depth))
}

fn nothing(_: &Point) -> Vec<String> {
    Vec::new()
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// The largest buffer that a peer is given.
const BUFFER_BYTES_MAX: u32 = 1 << 20;

/// A buffer that a message does not fill, where the program's own is too small for that: a read
/// that fills the buffer takes another one to find out that there is no more.
fn connection_buffer(point: &Point, own_bytes: u32) -> Vec<String> {
    let (_, message_bytes) = load_of(point);
    if message_bytes < own_bytes {
        return Vec::new();
    }
    let bytes = message_bytes.min(BUFFER_BYTES_MAX / 2).saturating_mul(2).next_power_of_two();
    words(&["--buffer-bytes", &bytes.to_string()])
}

/// A pool of two buffers per connection: its own 512 are enough for 256 connections. Beyond what
/// 2,048 serve, memory of its own for each connection.
fn compio(point: &Point) -> Vec<String> {
    match load_of(point).0 {
        ..=256 => Vec::new(),
        257..=1024 => words(&["--buffers", "2048"]),
        _ => words(&["--recv", "owned"]),
    }
}

/// Messages of 4 KB and more would be cut up by buffers of 2 KB, with a completion for each: they
/// get a few large ones. Else two buffers per connection, but no more than stay in a cache.
fn floor_uring(point: &Point) -> Vec<String> {
    let (connections, message_bytes) = load_of(point);
    if message_bytes >= 4096 {
        return words(&["--inc", "--split"]);
    }
    let buffers = connections.saturating_mul(2).clamp(256, 1024).next_power_of_two();
    if buffers == 256 { Vec::new() } else { words(&["--buffers", &buffers.to_string()]) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::TcpPoint;

    fn options(name: &str, connections: u32, message_bytes: u32) -> String {
        let point = TcpPoint {
            connections,
            message_bytes,
            depth: 1,
            rate_per_s: 0,
            load_percent: 0,
            churn: 0,
            generator: 0,
            workers: 1,
        };
        Peer::find(name).unwrap().options(&Point::Tcp(point)).join(" ")
    }

    #[test]
    fn a_peer_is_fitted_to_the_cell() {
        assert_eq!(options("floor-uring", 100, 128), "");
        assert_eq!(options("floor-uring", 150, 128), "--buffers 512");
        assert_eq!(options("floor-uring", 4000, 2048), "--buffers 1024");
        assert_eq!(options("floor-uring", 100, 16 << 10), "--inc --split");
        assert_eq!(options("compio", 256, 128), "");
        assert_eq!(options("compio", 1000, 128), "--buffers 2048");
        assert_eq!(options("compio", 4000, 128), "--recv owned");
        for (name, own) in [("tokio", 32 << 10), ("go-net", 32 << 10), ("floor-epoll", 64 << 10)] {
            assert_eq!(options(name, 1000, own / 2), "", "{name}");
            assert_eq!(options(name, 1, own), format!("--buffer-bytes {}", own * 2), "{name}");
        }
        assert_eq!(options("monoio", 1, u32::MAX), "--buffer-bytes 1048576");
        assert_eq!(options("frevib-uring", 1000, 1 << 20), "");
    }

    #[test]
    fn every_peer_has_a_name_and_a_command_of_its_own_and_a_way_to_get_it() {
        for (index, peer) in KNOWN.iter().enumerate() {
            let started_alike =
                |it: &Peer| it.program == peer.program && it.arguments == peer.arguments;
            let same = |it: &&Peer| it.name == peer.name || started_alike(it);
            assert_eq!(KNOWN.iter().position(|it| same(&it)), Some(index), "{}", peer.name);
            assert!(!peer.how_to_get().is_empty());
            let elsewhere = matches!(peer.origin, Origin::Distribution(_));
            let says_where = peer.how_to_get().iter().any(|command| command.contains(peer.program));
            assert!(elsewhere || says_where, "{}", peer.name);
            let told = peer.command_template(&[]).iter().any(|word| word.contains("{addr}"))
                || peer.command_template(&[]).iter().any(|word| word == "{port}");
            assert!(told || peer.port.is_some() || peer.protocol == Protocol::Http);
        }
    }
}
