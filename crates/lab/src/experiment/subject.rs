//! Who is compared.

use serde::{Deserialize, Serialize};

use super::choices::Protocol;
use crate::error::LabError;

/// One of the programs that are compared: our server on an engine, or any command.
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
    /// More arguments for `twinring serve`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub server_arguments: Vec<String>,
    /// Any other program and its arguments, with placeholders in braces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// More arguments for the load generator, where it is under test too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub load_arguments: Vec<String>,
    /// The only protocol it takes part in; by default all for an engine, and the first of the
    /// experiment for a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// How to know that it serves; by default `json` for an engine and the protocol for a
    /// command.
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
    /// is `io_uring` or `epoll`, or `NAME=PROGRAM ARGUMENT…` with `{addr}` among the arguments.
    ///
    /// # Errors
    /// [`LabError::BadExperiment`] when the text has no name, no program, or open quotes.
    pub fn parse(text: &str) -> Result<Subject, LabError> {
        let bad = |problem: &str| LabError::BadExperiment {
            place: format!("--subject `{text}`"),
            problem: problem.to_owned(),
            expected: "NAME=io_uring[:key=value,…], NAME=epoll[:…] or NAME=PROGRAM ARGUMENTS with \
                       {addr} among them"
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
        let command = shlex::split(value).ok_or_else(|| bad("a quote is not closed"))?;
        Ok(Subject { name, command: Some(command), ..Subject::default() })
    }

    /// How readiness is found out.
    pub fn ready_check(&self, protocol: Protocol) -> Ready {
        self.ready.unwrap_or(match (&self.engine, protocol) {
            (Some(_), _) => Ready::Json,
            (None, Protocol::Tcp) => Ready::Tcp,
            (None, Protocol::Udp) => Ready::Udp,
        })
    }

    /// Program and arguments that serve `protocol`, placeholders still in them.
    pub fn command_template(&self, protocol: Protocol) -> Vec<String> {
        let (Some(engine), None) = (&self.engine, &self.command) else {
            return self.command.clone().unwrap_or_default();
        };
        let service = match protocol {
            Protocol::Tcp => "echo",
            Protocol::Udp => "udp",
        };
        let mut command: Vec<String> = ["{twinring}", "serve", service, "--listen", "{addr}"]
            .into_iter()
            .chain(["--engine", engine, "--workers", "1", "--pin", "{server_cpu}", "--json"])
            .map(str::to_owned)
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
        assert_eq!(plain.command_template(Protocol::Udp)[..3], ["{twinring}", "serve", "udp"]);
        let peer = Subject::parse("tokio='./my echo' --on {addr}").unwrap();
        assert_eq!(peer.command.as_deref().unwrap(), ["./my echo", "--on", "{addr}"]);
        let ready = [Protocol::Tcp, Protocol::Udp].map(|protocol| peer.ready_check(protocol));
        assert_eq!(ready, [Ready::Tcp, Ready::Udp]);
        assert_eq!((plain.load_engine(), peer.load_engine()), ("io_uring", "auto"));
        assert!(Subject::parse("nothing").is_err());
        assert!(Subject::parse("a='open {addr}").is_err());
    }
}
