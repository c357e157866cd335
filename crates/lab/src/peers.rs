//! Other people's servers that a subject can be: which are known, how each is started and fitted to
//! a cell, and how to get it. `peers.toml` lists them; [`Places`] finds them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use nix::unistd::{AccessFlags, access};
use serde::{Deserialize, Serialize};

use crate::error::LabError;
use crate::experiment::{Axis, Point, Protocol};
use crate::machine::{PROGRAM_BYTES_MAX, sha256_of};
use crate::report::wrapped;

const BUFFER_BYTES_MAX: u32 = 1 << 20;

/// A program that a subject can be.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    /// Its name in experiments.
    pub name: String,
    /// The file name of its program.
    pub program: String,
    /// What it is.
    pub what: String,
    /// What it speaks.
    pub protocol: Protocol,
    /// Its command in every cell, placeholders in braces.
    #[serde(skip_serializing)]
    words: Vec<String>,
    /// What is added for a cell: the first rule that applies.
    #[serde(default, skip_serializing)]
    fit: Vec<Fit>,
    /// The port that it listens on, if it takes no other.
    #[serde(skip_serializing)]
    pub port: Option<u16>,
    #[serde(skip_serializing)]
    config: Option<String>,
    /// It runs as many workers as a cell asks for; others have one thread.
    #[serde(default, skip_serializing)]
    pub has_workers: bool,
    /// The commands that get it, to be run in the directory of the checkout.
    #[serde(rename(serialize = "how_to_get"))]
    pub get: Vec<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fit {
    #[serde(default)]
    min_connections: u32,
    /// Of the bytes that a connection may have in flight.
    #[serde(default)]
    min_bytes: u32,
    add: Vec<String>,
}

#[derive(Deserialize)]
struct File {
    peer: Vec<Peer>,
}

impl Peer {
    /// Every peer that is known.
    pub fn known() -> &'static [Peer] {
        static KNOWN: OnceLock<Vec<Peer>> = OnceLock::new();
        let text = include_str!("../peers/peers.toml");
        // A test reads it.
        KNOWN.get_or_init(|| toml::from_str::<File>(text).map(|file| file.peer).unwrap_or_default())
    }

    /// The peer of this name.
    pub fn find(name: &str) -> Option<&'static Peer> {
        Peer::known().iter().find(|peer| peer.name == name)
    }

    pub(crate) fn names() -> String {
        Peer::known().iter().map(|peer| peer.name.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// Its command for a cell, with `{peer}` for the program.
    pub(crate) fn words(&self, point: &Point) -> Vec<String> {
        let connections = point.get(Axis::Connections);
        let bytes = point.get(Axis::Bytes).saturating_mul(point.get(Axis::Depth).max(1));
        let applies = |fit: &&Fit| connections >= fit.min_connections && bytes >= fit.min_bytes;
        let buffer_bytes = bytes.min(BUFFER_BYTES_MAX / 2).saturating_mul(2).next_power_of_two();
        let buffers = connections.saturating_mul(2).clamp(256, 1024).next_power_of_two();
        let filled = |word: &String| {
            word.replace("{buffer_bytes}", &buffer_bytes.to_string())
                .replace("{buffers}", &buffers.to_string())
        };
        let added =
            self.fit.iter().find(applies).into_iter().flat_map(|fit| fit.add.iter().map(filled));
        self.words.iter().cloned().chain(added).collect()
    }

    /// The template of its configuration file, if it needs one.
    pub(crate) fn config(&self) -> Option<&'static str> {
        match self.config.as_deref()? {
            "nginx" => Some(include_str!("../peers/nginx.conf")),
            "nginx-read" => Some(include_str!("../peers/nginx-read.conf")),
            "h2o" => Some(include_str!("../peers/h2o.yaml")),
            _ => None,
        }
    }

    pub(crate) fn why_left_out(&self, absent: &str) -> String {
        let what_to_do = match &self.get[..] {
            [command] => format!("to get it, in the checkout: {command}"),
            _ => "`twinring lab peers` prints the commands that get it".to_owned(),
        };
        format!("its program `{}` is {absent}; {what_to_do}", self.program)
    }
}

/// A configuration file from its template: a line after `@CONDITION` only where that holds. The rest of the
/// line stays as it is.
pub(crate) fn configured(template: &str, point: &Point) -> String {
    let holds = |condition: &str| match condition {
        "tls" => point.is(Axis::Tls),
        "http2" => point.is(Axis::Http2),
        "single" => point.workers() == 1,
        "several" => point.workers() > 1,
        "root" => nix::unistd::geteuid().is_root(),
        _ => false,
    };
    let line = |line: &str| -> Option<String> {
        let Some(marked) = line.strip_prefix('@') else { return Some(line.to_owned() + "\n") };
        let end = marked.find(char::is_whitespace)?;
        let (condition, rest) = marked.split_at(end);
        let rest = if rest.starts_with("  ") { rest } else { rest.trim_start() };
        holds(condition).then(|| rest.to_owned() + "\n")
    };
    template.lines().filter_map(line).collect()
}

const VARIABLE: &str = "TWINRING_PEERS";

/// Where the peers of the checkout are built to, below its directory.
const BUILT: &str = "peers/target/release";

/// The directories in which peers are looked for, in this order: those that were named by option
/// and by `TWINRING_PEERS`, that of the running binary, `peers/target/release` below the current
/// directory, and those of PATH.
#[derive(Debug, Clone)]
pub struct Places(pub Vec<PathBuf>);

pub(crate) type PeerPrograms = BTreeMap<String, PathBuf>;

impl Places {
    /// The places for a running `binary`, with the directory of an option first.
    pub fn new(named: Option<&Path>, binary: &Path) -> Result<Places, LabError> {
        let variable = std::env::var_os(VARIABLE).filter(|value| !value.is_empty());
        let current = std::env::current_dir().map_err(|e| LabError::read(".", e))?;
        let mut directories = Vec::new();
        for (place, directory) in
            [("--peers", named), (VARIABLE, variable.as_deref().map(Path::new))]
        {
            let Some(directory) = directory else { continue };
            let directory = current.join(directory);
            if !directory.is_dir() {
                let found = format!("{} is not a directory", directory.display());
                let expected = "a directory with programs of peers, such as tokio-echo";
                return Err(LabError::request(place, found, expected));
            }
            directories.push(directory);
        }
        directories.extend(binary.parent().map(Path::to_owned));
        directories.push(current.join(BUILT));
        // A relative entry of PATH is no place for a program to be measured.
        let path = std::env::var_os("PATH").unwrap_or_default();
        directories
            .extend(std::env::split_paths(&path).filter(|directory| directory.is_absolute()));
        Ok(Places(directories))
    }

    /// The program of a peer.
    pub fn find(&self, peer: &Peer) -> Result<PathBuf, String> {
        let files = || self.0.iter().map(|it| it.join(&peer.program)).filter(|it| it.is_file());
        if let Some(file) = files().find(|file| access(file, AccessFlags::X_OK).is_ok()) {
            return Ok(file);
        }
        Err(files().next().map_or("not found in any of the places for peers".to_owned(), |file| {
            format!("not executable: {} (chmod +x)", file.display())
        }))
    }
}

/// The schema of the JSON line.
pub const PEERS_SCHEMA: &str = "twinring.lab.peers/1";

/// A peer and whether it is here.
#[derive(Debug, Clone, Serialize)]
pub struct PeerState {
    /// The peer.
    #[serde(flatten)]
    pub peer: &'static Peer,
    /// Whether it can be measured.
    pub present: bool,
    /// Where its program is.
    pub path: Option<PathBuf>,
    /// SHA-256 of the file.
    pub sha256: Option<String>,
    /// Why it cannot be measured.
    pub why: Option<String>,
}

/// Every known peer and whether it is in one of the places.
pub fn list(places: &Places) -> Vec<PeerState> {
    let state = |peer| {
        let found = places.find(peer);
        PeerState {
            peer,
            present: found.is_ok(),
            sha256: found.as_ref().ok().and_then(|path| sha256_of(path, PROGRAM_BYTES_MAX).ok()),
            why: found.as_ref().err().cloned(),
            path: found.ok(),
        }
    };
    Peer::known().iter().map(state).collect()
}

/// The list as text: the peers present and their places, then how to get the others.
pub fn table(peers: &[PeerState]) -> String {
    let width = peers.iter().map(|it| it.peer.name.len()).max().unwrap_or(0);
    let mut lines = Vec::new();
    for PeerState { peer, path, why, .. } in peers {
        let here = if path.is_some() { "here   " } else { "missing" };
        let text = format!("{:<width$}  {here}  {}", peer.name, peer.what);
        lines.extend(wrapped(&text, "", "  "));
        let place = path.as_ref().map(|path| path.display().to_string());
        lines.extend(place.or_else(|| why.clone()).map(|it| format!("  {it}")));
    }
    let missing = || peers.iter().filter(|it| !it.present).map(|it| it.peer);
    // Programs of one repository are got together.
    let mut told: Vec<&[String]> = Vec::new();
    for Peer { get, .. } in missing() {
        if !told.contains(&&**get) {
            told.push(get);
            let same: Vec<&str> =
                missing().filter(|it| it.get == *get).map(|it| &*it.name).collect();
            let text = format!("To get {}, in the checkout:", same.join(" and "));
            lines.push(String::new());
            lines.extend(wrapped(&text, "", "  "));
            lines.extend(get.iter().map(|command| format!("  {command}")));
        }
    }
    lines.join("\n") + "\n"
}

/// The list as one JSON line.
pub fn json(peers: &[PeerState], places: &Places) -> String {
    serde_json::json!({
        "event": "result",
        "schema": PEERS_SCHEMA,
        "searched": places.0,
        "peers": peers,
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(name: &str, connections: u32, bytes: u32) -> String {
        let values = [(Axis::Connections, connections), (Axis::Bytes, bytes)];
        let point = Point::new(Protocol::Tcp, &values).unwrap();
        let peer = Peer::find(name).unwrap();
        peer.words(&point)[peer.words.len()..].join(" ")
    }

    #[test]
    fn a_peer_is_fitted_to_the_cell() {
        for (name, connections, bytes, expected) in [
            ("floor-uring", 100, 128, ""),
            ("floor-uring", 150, 128, "--buffers 512"),
            ("floor-uring", 4000, 2048, "--buffers 1024"),
            ("floor-uring", 100, 16 << 10, "--inc --split"),
            ("compio", 256, 128, ""),
            ("compio", 1000, 128, "--buffers 2048"),
            ("compio", 4000, 128, "--recv owned"),
            ("tokio", 1000, 16 << 10, ""),
            ("tokio", 1, 32 << 10, "--buffer-bytes 65536"),
            ("floor-epoll", 1, 64 << 10, "--buffer-bytes 131072"),
            ("monoio", 1, 64 << 20, "--buffer-bytes 1048576"),
            ("frevib-uring", 1000, 1 << 20, ""),
        ] {
            assert_eq!(words(name, connections, bytes), expected, "{name}");
        }
    }

    #[test]
    fn every_peer_has_a_name_a_command_and_a_way_to_get_it() {
        let known = Peer::known();
        assert!(known.len() > 10, "peers.toml cannot be read");
        for (index, peer) in known.iter().enumerate() {
            assert_eq!(known.iter().position(|it| it.name == peer.name), Some(index));
            assert!(!peer.get.is_empty(), "{}", peer.name);
            let listens = peer.words.iter().any(|it| it.contains("{addr}") || it == "{port}");
            assert!(listens || peer.port.is_some() || peer.config().is_some(), "{}", peer.name);
            assert_eq!(peer.config.is_some(), peer.config().is_some(), "{}", peer.name);
        }
    }

    #[test]
    fn a_configuration_follows_the_cell() {
        let template = "a\n@tls    b\n@http2 c\n@single d\n@several e {workers}\n";
        let of = |axes: &[(Axis, u32)]| {
            let values = [&[(Axis::Connections, 1), (Axis::Bytes, 1)], axes].concat();
            configured(template, &Point::new(Protocol::Http, &values).unwrap())
        };
        assert_eq!(of(&[]), "a\nd\n");
        assert_eq!(of(&[(Axis::Tls, 1), (Axis::Workers, 2)]), "a\n    b\ne {workers}\n");
        let (nginx, h2o) = (Peer::find("nginx").unwrap(), Peer::find("h2o").unwrap());
        for template in [nginx.config().unwrap(), h2o.config().unwrap()] {
            assert!(template.lines().all(|line| !line.starts_with('@') || line.contains(' ')));
        }
    }
}
