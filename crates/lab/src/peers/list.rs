//! Which peers are here, as `twinring lab peers` says it.

use std::path::PathBuf;

use serde::Serialize;

use super::{Peer, Places};
use crate::machine::{PROGRAM_BYTES_MAX, sha256_of};
use crate::report::wrapped;

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
