//! Which peers are here, as `twinring lab peers` says it.

use std::path::PathBuf;

use serde::Serialize;

use super::{Peer, Places};
use crate::machine::{PROGRAM_BYTES_MAX, sha256_of};

/// The schema of the JSON line.
pub const PEERS_SCHEMA: &str = "twinring.lab.peers/1";

const HASH_DIGITS: usize = 12;

/// A peer and whether it is here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PeerState {
    /// Its name in experiments.
    pub name: String,
    /// The file name of its program.
    pub program: String,
    /// What it is.
    pub what: String,
    /// `tcp`, `udp` or `http`.
    pub protocol: String,
    /// Whether it can be measured.
    pub present: bool,
    /// Where its program is.
    pub path: Option<PathBuf>,
    /// SHA-256 of the file.
    pub sha256: Option<String>,
    /// Why it cannot be measured.
    pub why: Option<String>,
    /// The commands that get it, to be run in the directory of the checkout.
    pub how_to_get: Vec<String>,
}

/// Every known peer and whether it is in one of the places.
pub fn list(places: &Places) -> Vec<PeerState> {
    Peer::known().iter().map(|peer| state(peer, places)).collect()
}

fn state(peer: &'static Peer, places: &Places) -> PeerState {
    let found = places.find(peer);
    PeerState {
        name: peer.name.clone(),
        program: peer.program.clone(),
        what: peer.what.clone(),
        protocol: peer.protocol.to_string(),
        present: found.is_ok(),
        sha256: found.as_ref().ok().and_then(|path| sha256_of(path, PROGRAM_BYTES_MAX).ok()),
        why: found.as_ref().err().cloned(),
        path: found.ok(),
        how_to_get: peer.get.clone(),
    }
}

/// The list as text: the peers present and their places, then how to get the others.
pub fn table(peers: &[PeerState]) -> String {
    let name_width = peers.iter().map(|peer| peer.name.len()).max().unwrap_or(0);
    let what_width = peers.iter().map(|peer| peer.what.len()).max().unwrap_or(0);
    let mut text = String::new();
    for peer in peers {
        let hash = peer.sha256.as_deref().and_then(|hash| hash.get(..HASH_DIGITS));
        let known = hash.unwrap_or_default();
        let path = peer.path.as_ref().map(|path| path.display().to_string());
        let PeerState { name, what, .. } = peer;
        let here = if peer.present { "here" } else { "missing" };
        let line = format!(
            "{name:<name_width$}  {here:<7}  {known:<HASH_DIGITS$}  {what:<what_width$}  {}",
            path.or_else(|| peer.why.clone()).unwrap_or_default()
        );
        text.push_str(line.trim_end());
        text.push('\n');
    }
    let missing = || peers.iter().filter(|peer| !peer.present);
    // Programs of one repository are got together.
    let mut told: Vec<&[String]> = Vec::new();
    for peer in missing() {
        let commands = peer.how_to_get.as_slice();
        if told.contains(&commands) {
            continue;
        }
        told.push(commands);
        let same = || missing().filter(|it| it.how_to_get == commands);
        let names: Vec<&str> = same().map(|it| it.name.as_str()).collect();
        text.push_str(&format!("\nTo get {}, in the checkout:\n", names.join(" and ")));
        commands.iter().for_each(|command| text.push_str(&format!("  {command}\n")));
    }
    text
}

/// The list as one JSON line.
pub fn json(peers: &[PeerState], places: &Places) -> String {
    serde_json::json!({
        "event": "result",
        "schema": PEERS_SCHEMA,
        "searched": places.directories(),
        "peers": peers,
    })
    .to_string()
}
