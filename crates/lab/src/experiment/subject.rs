//! The systems under test.

use serde::{Deserialize, Serialize};

use super::{Cell, Protocol};
use crate::error::LabError;
use crate::peers::Peer;

/// A system under test: our server on an engine, a peer that the lab knows, or any command.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Subject {
    /// Its name in the report.
    pub name: String,
    /// `io_uring` or `epoll`: `twinring serve` on this engine, which speaks every protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    /// Options of the engine, as `key=value,key=value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub features: Option<String>,
    /// More arguments for `twinring serve`, or for a peer.
    #[serde(default, alias = "server_arguments", skip_serializing_if = "Vec::is_empty")]
    pub arguments: Vec<String>,
    /// Any other program and its arguments, with placeholders in braces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Another program that the lab can start: see [`Peer`]. It is left out if it is not installed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Subjects, beside the baseline, that this one is compared with as well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub against: Vec<String>,
    /// More arguments for the load generator, where it is under test too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub load_arguments: Vec<String>,
    /// The only protocol it takes part in; by default all for an engine, and the first of the
    /// experiment for a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// How to know that it serves; by default `json` for an engine, else `tcp` or `udp` as the
    /// protocol needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<Ready>,
}

/// How the lab finds out that a subject is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Ready {
    /// By the `ready` line of `twinring serve` on standard output.
    Json,
    /// It accepts a TCP connection.
    Tcp,
    /// A UDP socket is bound to the address, as `/proc/net/udp` lists them.
    Udp,
}

impl Subject {
    /// Reads a subject from the command line: `io_uring`, `epoll`, a peer such as `nginx`; each with
    /// options after a colon (`epoll:gather=off`) and with a name of its own in front (`old=epoll`); or
    /// `NAME=COMMAND` with `{addr}` among its words.
    pub fn parse(text: &str) -> Result<Subject, LabError> {
        let bad = |found: &str| {
            let expected = format!(
                "io_uring[:key=value,...], epoll[:...], one of {}, or NAME=COMMAND with {{addr}} where the address goes",
                Peer::names()
            );
            LabError::request(format!("subject `{text}`"), found, expected)
        };
        // What follows a colon has `=` in it as well.
        let is_name = |it: &&str| {
            !it.is_empty() && it.chars().all(|c| c.is_alphanumeric() || "-_.".contains(c))
        };
        let named = text.split_once('=').filter(|(name, _)| is_name(name));
        let (name, value) =
            named.map_or((None, text.trim()), |(name, value)| (Some(name), value.trim()));
        let (known, options) = match value.split_once(':') {
            Some((known, options)) => (known, Some(options.to_owned())),
            None => (value, None),
        };
        let own = Some(known.to_owned());
        if matches!(known, "io_uring" | "epoll") {
            let usual = options.as_ref().map(|it| format!("{known}-{}", plain(it)));
            let name = name.map(str::to_owned).or(usual).unwrap_or_else(|| known.to_owned());
            return Ok(Subject { name, engine: own, features: options, ..Subject::default() });
        }
        if options.is_none() && Peer::find(known).is_some() {
            let name = name.unwrap_or(known).to_owned();
            return Ok(Subject { name, peer: own, ..Subject::default() });
        }
        let Some(name) = name.map(str::to_owned) else {
            let is_command = value.contains(' ');
            return Err(bad(if is_command { "the command has no name" } else { "not known" }));
        };
        let command = shlex::split(value).ok_or_else(|| bad("a quote is not closed"))?;
        Ok(Subject { name, command: Some(command), ..Subject::default() })
    }

    /// The peer that it is, if it is one that is known.
    pub fn known_peer(&self) -> Option<&'static Peer> {
        Peer::find(self.peer.as_deref()?)
    }

    /// The only protocol that it can speak; nothing if it depends on the experiment.
    pub(super) fn own_protocol(&self) -> Option<Protocol> {
        self.known_peer().map(|peer| peer.protocol)
    }

    pub(crate) fn is_twin_of(&self, other: &Subject) -> bool {
        let nameless = |subject: &Subject| Subject {
            name: String::new(),
            against: Vec::new(),
            ..subject.clone()
        };
        nameless(self) == nameless(other)
    }

    /// How the lab finds out that it is ready.
    pub fn ready_check(&self, protocol: Protocol) -> Ready {
        self.ready.unwrap_or(match (&self.engine, protocol.is_over_tcp()) {
            (Some(_), _) => Ready::Json,
            (None, true) => Ready::Tcp,
            (None, false) => Ready::Udp,
        })
    }

    /// Program and arguments that serve a cell, placeholders still in them.
    pub fn command_template(&self, cell: &Cell) -> Vec<String> {
        if let Some(peer) = self.known_peer() {
            return [peer.words(&cell.point), self.arguments.clone()].concat();
        }
        let (Some(engine), None) = (&self.engine, &self.command) else {
            return self.command.clone().unwrap_or_default();
        };
        let pinned =
            ["--engine", engine, "--workers", "{workers}", "--pin", "{server_cpus}", "--json"];
        let service = cell.protocol().service();
        let words = ["{twinring}", "serve"].iter().chain(service).chain(&pinned);
        let mut command: Vec<String> = words.map(|word| (*word).to_owned()).collect();
        if let Some(features) = &self.features {
            command.push(if engine == "epoll" { "--epoll" } else { "--uring" }.to_owned());
            command.push(features.clone());
        }
        command.extend(self.arguments.iter().cloned());
        command
    }
}

fn plain(options: &str) -> String {
    let name: String = options.chars().map(|c| if c.is_alphanumeric() { c } else { '-' }).collect();
    name.chars().take(30).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::NetKind;
    use crate::workload::{Axis, Point};

    fn cell(protocol: Protocol) -> Cell {
        let clients = if protocol == Protocol::Udp { Axis::Streams } else { Axis::Connections };
        let mut values = vec![(clients, 1), (Axis::Bytes, 1)];
        if protocol == Protocol::Udp {
            values.push((Axis::PacketsPerS, 1));
        }
        Cell { net: NetKind::Lo, point: Point::new(protocol, &values).unwrap() }
    }

    #[test]
    fn subjects_are_read_from_the_command_line() {
        for (text, name, ready) in [
            ("io_uring", "io_uring", Ready::Json),
            ("plain=io_uring:multishot=off,buffers=none", "plain", Ready::Json),
            ("epoll:gather=off", "epoll-gather-off", Ready::Json),
            ("tokio", "tokio", Ready::Tcp),
            ("t=tokio", "t", Ready::Tcp),
            ("mine='./my echo' --on {addr}", "mine", Ready::Tcp),
        ] {
            let subject = Subject::parse(text).unwrap();
            assert_eq!(
                (&*subject.name, subject.ready_check(Protocol::Tcp)),
                (name, ready),
                "{text}"
            );
        }
        let plain = Subject::parse("plain=io_uring:multishot=off,buffers=none").unwrap();
        let command = plain.command_template(&cell(Protocol::Tcp));
        assert_eq!(command[command.len() - 2..], ["--uring", "multishot=off,buffers=none"]);
        let udp = plain.command_template(&cell(Protocol::Udp));
        assert_eq!(udp[..3], ["{twinring}", "serve", "udp"]);
        // A server beyond loopback needs the list of clients that it may answer.
        for command in [&udp, &command] {
            assert_eq!(command[5..7], ["--allow", "any"]);
        }
        let mine = Subject::parse("mine='./my echo' --on {addr}").unwrap();
        assert_eq!(mine.command_template(&cell(Protocol::Tcp)), ["./my echo", "--on", "{addr}"]);
        assert_eq!(mine.ready_check(Protocol::Udp), Ready::Udp);
        for wrong in ["nothing", "", "a='open {addr}", "./serve {addr}"] {
            let error = Subject::parse(wrong).unwrap_err();
            assert!(error.to_string().contains("nginx"), "{error}");
        }
    }
}
