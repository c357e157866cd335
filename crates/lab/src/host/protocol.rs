//! What the lab and its agent on another host say to each other: one JSON object per line, the
//! lab's on the agent's standard input, the agent's on its standard output.
//!
//! Readers bound the length of a line and the time for which the other side may be silent.
//! Both sides say that they are alive every [`HEARTBEAT`].

use std::collections::BTreeMap;
use std::io::{self, BufRead, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::accounting::Detail;
use crate::cpus::CpuList;
use crate::experiment::{HttpGrid, HttpPoint, Protocol};
use crate::process::Exit;
use crate::site::Certificate;

/// Name and version of this protocol. Only equal ones understand each other.
pub(crate) const PROTOCOL: &str = "twinring.lab.agent/3";

/// How often either side says that it is there. It is a hundred bytes, so a window that is open
/// hardly feels it.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(2);

/// After so long without a line the other side is taken for lost.
pub(crate) const SILENCE: Duration = Duration::from_secs(15);

/// The longest line. A subject's own lines are bounded to 8 MiB, and one of JSON in a string is at
/// most a few times longer.
const MAX_LINE_BYTES: usize = 64 << 20;

/// The most processes that an agent runs at once: a server or a load generator, and one that is
/// still ending.
pub(crate) const MAX_PROCESSES: usize = 8;

/// What the lab says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ToAgent {
    /// A question or an order, answered by [`FromAgent::Reply`] with the same number.
    Ask {
        /// Its number.
        id: u64,
        /// What is asked.
        request: Request,
    },
    /// A heartbeat.
    Alive,
}

/// What an agent says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FromAgent {
    /// The first line.
    Hello(Box<Hello>),
    /// The answer, or why there is none.
    Reply {
        /// Number of the request.
        id: u64,
        /// As [`Request`] says for each.
        result: Result<Value, String>,
    },
    /// A process wrote a line.
    Line {
        /// Which process.
        process: u64,
        /// The line without its end.
        line: String,
    },
    /// A process closed its output.
    Closed {
        /// Which process.
        process: u64,
    },
    /// A heartbeat.
    Alive,
}

/// What can be asked of an agent, with the type of the answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// `CLOCK_MONOTONIC` in nanoseconds (`u64`), read and answered at once.
    Clock,
    /// Keeps the agent off these CPUs while there are others; the machine (`Fingerprint`).
    Settle { cpus: CpuList },
    /// The network device with this address (`Option<Interface>`).
    Interface { ip: IpAddr },
    /// Settings of the network (`Vec<(String, String)>`).
    Settings,
    /// Opens a port of this address for a moment, for somebody else to try (`u16`).
    Listen { ip: IpAddr },
    /// Whether a connection can be made (`Option<String>`: why not).
    Connect { address: SocketAddr },
    /// Whether the address is free (`Option<String>`: why not).
    CanBind { address: SocketAddr, protocol: Protocol },
    /// Whether a UDP socket has the port (`bool`).
    IsUdpBound { port: u16 },
    /// Starts a program pinned to CPUs, in its own group; its process id (`i32`).
    Start { process: u64, cpus: CpuList, command: Vec<String>, is_told: bool },
    /// Writes a line to the standard input of one that is told something (`()`).
    Tell { process: u64, line: String },
    /// Whether it has ended (`bool`).
    HasEnded { process: u64 },
    /// Sends it a signal (`()`).
    Signal { process: u64, signal: i32 },
    /// Waits for its end, then kills what is left of its group ([`Ended`]).
    Finish { process: u64, patience_ms: u64, asked: bool },
    /// Kills it and its group (`()`).
    Kill { process: u64 },
    /// One side of a run at this moment (`SideSample`).
    Sample { cpus: CpuList, pid: i32, detail: Detail },
    /// Memory of a process (`ProcessMemory`).
    ProcessMemory { pid: i32 },
    /// Memory of the kernel (`KernelMemory`).
    KernelMemory,
    /// CPU time of processes that do not come from these (`BackgroundLoad`).
    BackgroundLoad { roots: Vec<i32> },
    /// The nginx of this host (`Result<nginx::Installed, String>`).
    FindNginx,
    /// Makes the files of HTTP in a temporary directory (`Site`).
    MakeSite { grid: Box<HttpGrid>, seed: u64, certificate: Option<Certificate> },
    /// The words that tell a load generator here what to ask for (`Vec<String>`).
    Urls { point: HttpPoint, server: SocketAddr },
    /// Writes the configuration of nginx (`()`).
    Configure { text: String },
    /// Hashes of programs, found as a command finds them (`Vec<Program>`).
    Hash { programs: Vec<String> },
}

/// How a process ended.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Ended {
    pub(crate) exit: Exit,
    /// The last lines of its standard error.
    pub(crate) stderr: String,
}

/// Who and where an agent is.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// [`PROTOCOL`].
    pub(crate) protocol: String,
    /// Version of the program.
    pub(crate) version: String,
    /// Path of the program.
    pub(crate) binary: String,
    /// Its SHA-256.
    pub(crate) sha256: String,
    /// Name of the host, as it calls itself.
    pub(crate) hostname: String,
    /// Process id of the agent.
    pub(crate) pid: i32,
    /// Says which boot of which machine this is: equal on containers and namespaces of one kernel.
    pub(crate) boot_id: String,
    /// Says whose process ids are comparable.
    pub(crate) pid_namespace: String,
    /// The CPUs it may use, each with the hardware threads of its core.
    pub(crate) cores: BTreeMap<usize, Vec<usize>>,
    /// Addresses of the connection, if it is one of ssh, as this host sees them: the peer's and its
    /// own.
    pub(crate) connection: Option<[IpAddr; 2]>,
    /// Addresses that other hosts may reach it at.
    pub(crate) addresses: Vec<IpAddr>,
}

/// Writes a line and sends it off.
pub(crate) fn write(out: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    out.write_all(&line)?;
    out.flush()
}

/// Reads a line; nothing at the end.
///
/// # Errors
/// When reading fails or a line is longer than allowed.
pub(crate) fn read_line(input: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    let read = input.by_ref().take(MAX_LINE_BYTES as u64 + 1).read_until(b'\n', &mut line)?;
    if line.len() > MAX_LINE_BYTES {
        return Err(io::Error::other("a line is longer than 64 MiB"));
    }
    Ok((read > 0).then(|| String::from_utf8_lossy(&line).trim_end().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_way() {
        let request = Request::Start {
            process: 7,
            cpus: CpuList::one(1),
            command: vec!["a b".to_owned()],
            is_told: true,
        };
        let mut bytes = Vec::new();
        write(&mut bytes, &ToAgent::Ask { id: 3, request }).unwrap();
        let reply = FromAgent::Reply { id: 3, result: Err("no".to_owned()) };
        write(&mut bytes, &reply).unwrap();
        let mut input = bytes.as_slice();
        let line = read_line(&mut input).unwrap().unwrap();
        let ToAgent::Ask { id: 3, request } = serde_json::from_str(&line).unwrap() else {
            panic!("{line}");
        };
        assert!(matches!(request, Request::Start { process: 7, .. }));
        let line = read_line(&mut input).unwrap().unwrap();
        let reply: FromAgent = serde_json::from_str(&line).unwrap();
        assert!(matches!(reply, FromAgent::Reply { result: Err(why), .. } if why == "no"));
        assert!(read_line(&mut input).unwrap().is_none());
    }

    #[test]
    fn an_endless_line_is_an_error_and_not_all_of_the_memory() {
        let mut endless = io::BufReader::new(io::repeat(b'x'));
        assert!(read_line(&mut endless).is_err());
    }
}
