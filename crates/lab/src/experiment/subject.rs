//! Who is compared.

use serde::{Deserialize, Serialize};

use super::{Accounting, Point, Protocol};
use crate::error::LabError;
use crate::peers::Peer;

/// nginx as a server of files. The lab writes its configuration: one process without a log, with
/// every cache that it has; see `docs/workloads.md`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nginx {
    /// `sendfile on` and `tcp_nopush on`; else files are read and written.
    #[serde(default = "on")]
    pub sendfile: bool,
    /// Further directives of the server block, each with its semicolon. There they take precedence
    /// over those that the lab has set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub directives: Vec<String>,
}

fn on() -> bool {
    true
}

impl Nginx {
    /// The program, as it is looked for in PATH.
    pub const PROGRAM: &str = "nginx";
}

/// One of the programs that are compared: our server on an engine, nginx, or any command.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subject {
    /// Its name in the report.
    pub name: String,
    /// `io_uring` or `epoll`: `twinring serve` on this engine, which speaks every protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    /// Features of the engine, as `key=value,key=value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub features: Option<String>,
    /// The subject that this one is like but for its `change`. It is compared with that one only,
    /// and has its engine, features and arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// What is changed of it: features, as in `features`, which these replace or add to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<String>,
    /// More arguments for `twinring serve`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub server_arguments: Vec<String>,
    /// Any other program and its arguments, with placeholders in braces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// nginx with a configuration that the lab writes. It speaks HTTP only, and is left out if it
    /// is not installed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nginx: Option<Nginx>,
    /// Somebody else's program that the lab knows how to start: see [`Peer`]. It is left out if it
    /// is not here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// More arguments for a peer, after those that it gets for the cell.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arguments: Vec<String>,
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
    /// How the CPU use of its runs is found, if other than the experiment's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accounting: Option<Accounting>,
    /// How to know that it serves; by default `json` for an engine, else `tcp` or `udp` as the
    /// protocol needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<Ready>,
}

/// How a subject says that it can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ready {
    /// By the `ready` line of `twinring serve` on standard output.
    Json,
    /// By accepting a TCP connection.
    Tcp,
    /// By a UDP socket bound to the address, as `/proc/net/udp` lists them.
    Udp,
}

impl Subject {
    /// Reads the subject of an option: `NAME=ENGINE`, `NAME=ENGINE:key=value,…` where the engine
    /// is `io_uring` or `epoll`, `NAME=nginx`, `NAME=peer:PEER`, or `NAME=PROGRAM ARGUMENT…` with
    /// `{addr}` among the arguments.
    ///
    /// # Errors
    /// [`LabError::BadExperiment`] when the text has no name, no program, or open quotes.
    pub fn parse(text: &str) -> Result<Subject, LabError> {
        let bad = |problem: &str| LabError::BadExperiment {
            place: format!("--subject `{text}`"),
            problem: problem.to_owned(),
            expected: "NAME=io_uring[:key=value,…], NAME=epoll[:…], NAME=nginx, NAME=peer:PEER or \
                       NAME=PROGRAM ARGUMENTS with {addr} among them"
                .to_owned(),
        };
        let (name, value) = text.split_once('=').ok_or_else(|| bad("no `=`"))?;
        let name = name.trim().to_owned();
        let (engine, features) = match value.split_once(':') {
            Some((engine, features)) => (engine.trim(), Some(features.to_owned())),
            None => (value.trim(), None),
        };
        if matches!(engine, "io_uring" | "epoll") {
            let engine = Some(engine.to_owned());
            return Ok(Subject { name, engine, features, ..Subject::default() });
        }
        let peer = value.trim().strip_prefix("peer:").map(str::to_owned);
        if peer.is_some() {
            return Ok(Subject { name, peer, ..Subject::default() }.with_nginx_spelt_out());
        }
        if value.trim() == Nginx::PROGRAM {
            let nginx = Some(Nginx { sendfile: true, directives: Vec::new() });
            return Ok(Subject { name, nginx, ..Subject::default() });
        }
        let command = shlex::split(value).ok_or_else(|| bad("a quote is not closed"))?;
        Ok(Subject { name, command: Some(command), ..Subject::default() })
    }

    /// The peer nginx is configured by the lab: the same as `nginx = { sendfile = true }`.
    pub(super) fn with_nginx_spelt_out(mut self) -> Subject {
        if self.nginx.is_none() && self.peer.as_deref() == Some(Nginx::PROGRAM) {
            self.peer = None;
            self.nginx = Some(Nginx { sendfile: true, directives: Vec::new() });
        }
        self
    }

    /// The peer that it is, if it is one that is known.
    pub fn known_peer(&self) -> Option<&'static Peer> {
        Peer::find(self.peer.as_deref()?)
    }

    /// The only protocol that it can speak; nothing if it depends on the experiment.
    pub(super) fn own_protocol(&self) -> Option<Protocol> {
        let nginx = self.nginx.is_some().then_some(Protocol::Http);
        nginx.or_else(|| self.known_peer().map(|peer| peer.protocol))
    }

    /// Words that stand for what a peer gets for a cell, in place of `{peer_options}`.
    pub(crate) fn peer_options(&self, point: &Point) -> Vec<String> {
        self.known_peer().map(|peer| peer.options(point)).unwrap_or_default()
    }

    /// This subject with what it has of the one it is `from`.
    pub(super) fn changed_from(&self, origin: &Subject) -> Subject {
        let own = self.change.as_deref().unwrap_or_default();
        let key = |feature: &&str| feature.split('=').next().unwrap_or_default().trim().to_owned();
        let changed: Vec<String> = own.split(',').map(|feature| key(&feature)).collect();
        let kept = origin.features.iter().flat_map(|features| features.split(','));
        let kept = kept.filter(|feature| !changed.contains(&key(feature)));
        let features: Vec<&str> =
            kept.chain(own.split(',')).filter(|feature| !feature.trim().is_empty()).collect();
        let own_arguments = !self.server_arguments.is_empty();
        let server_arguments = if own_arguments { self } else { origin }.server_arguments.clone();
        Subject {
            engine: origin.engine.clone(),
            features: (!features.is_empty()).then(|| features.join(",")),
            server_arguments,
            protocol: self.protocol.or(origin.protocol),
            accounting: self.accounting.or(origin.accounting),
            ..self.clone()
        }
    }

    /// Whether two subjects differ in nothing but their names.
    pub(crate) fn is_twin_of(&self, other: &Subject) -> bool {
        let nameless = |subject: &Subject| Subject {
            name: String::new(),
            against: Vec::new(),
            from: None,
            change: None,
            ..subject.clone()
        };
        nameless(self) == nameless(other)
    }

    /// How readiness is found out.
    pub fn ready_check(&self, protocol: Protocol) -> Ready {
        self.ready.unwrap_or(match (&self.engine, protocol.workload().over_tcp) {
            (Some(_), _) => Ready::Json,
            (None, true) => Ready::Tcp,
            (None, false) => Ready::Udp,
        })
    }

    /// Program and arguments that serve `protocol`, placeholders still in them.
    pub fn command_template(&self, protocol: Protocol) -> Vec<String> {
        if self.nginx.is_some() {
            let command = [Nginx::PROGRAM, "-p", "{work}", "-c", "{config}", "-e", "stderr"];
            return command.map(str::to_owned).to_vec();
        }
        if let Some(peer) = self.known_peer() {
            return peer.command_template(&self.arguments);
        }
        let (Some(engine), None) = (&self.engine, &self.command) else {
            return self.command.clone().unwrap_or_default();
        };
        let mut command: Vec<String> = ["{twinring}", "serve"]
            .iter()
            .chain(protocol.workload().service)
            .chain(&[
                "--engine",
                engine,
                "--workers",
                "{workers}",
                "--pin",
                "{server_cpus}",
                "--json",
            ])
            .map(|word| (*word).to_owned())
            .collect();
        if let Some(features) = &self.features {
            command.push(if engine == "epoll" { "--epoll" } else { "--uring" }.to_owned());
            command.push(features.clone());
        }
        command.extend(self.server_arguments.iter().cloned());
        command
    }

    /// The value of `{engine}`: where it has none of its own, the load generator chooses.
    pub fn load_engine(&self) -> &str {
        self.engine.as_deref().unwrap_or("auto")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_are_read_from_options() {
        let plain = Subject::parse("plain=io_uring:multishot=off,buffers=none").unwrap();
        let command = plain.command_template(Protocol::Tcp);
        assert_eq!(command[command.len() - 2..], ["--uring", "multishot=off,buffers=none"]);
        assert_eq!(plain.ready_check(Protocol::Udp), Ready::Json);
        let udp = plain.command_template(Protocol::Udp);
        assert_eq!(udp[..3], ["{twinring}", "serve", "udp"]);
        // A server beyond loopback needs the list of clients that it may answer.
        for command in [&udp, &command] {
            assert_eq!(command[5..7], ["--allow", "any"]);
        }
        let http = plain.command_template(Protocol::Http);
        assert_eq!(http[2..6], ["http", "--root", "{root}", "{listen}"]);
        let peer = Subject::parse("tokio='./my echo' --on {addr}").unwrap();
        assert_eq!(peer.command.as_deref().unwrap(), ["./my echo", "--on", "{addr}"]);
        let ready = [Protocol::Tcp, Protocol::Udp, Protocol::Http]
            .map(|protocol| peer.ready_check(protocol));
        assert_eq!(ready, [Ready::Tcp, Ready::Udp, Ready::Tcp]);
        assert_eq!((plain.load_engine(), peer.load_engine()), ("io_uring", "auto"));
        let nginx = Subject::parse("theirs=nginx").unwrap();
        assert_eq!(nginx.command_template(Protocol::Http)[0], "nginx");
        assert_eq!(Subject::parse("theirs=peer:nginx").unwrap(), nginx);
        let tokio = Subject::parse("t=peer:tokio").unwrap();
        assert_eq!(tokio.peer.as_deref(), Some("tokio"));
        let words = ["{peer}", "--listen", "{addr}", "--pin", "{server_cpu}", "{peer_options}"];
        assert_eq!(tokio.command_template(Protocol::Tcp), words);
        assert_eq!(tokio.ready_check(Protocol::Tcp), Ready::Tcp);
        assert!(Subject::parse("nothing").is_err());
        assert!(Subject::parse("a='open {addr}").is_err());
    }
}
