//! Where a process runs and is looked at: on this host, or on another one.
//!
//! On another host an [`agent`] does what the lab does here: it is the same program, started there
//! through a command such as `ssh` ([`transport`]), and does it with the same functions ([`local`]). Lab and
//! agent speak a small [`protocol`] over the connection; [`remote`] is the lab's end of it. The
//! offset between the hosts' clocks is measured in [`crate::clock`].[`share`] divides the load among the client hosts.

mod agent;
pub(crate) mod fuzzing;
pub(crate) mod local;
pub(crate) mod options;
pub(crate) mod protocol;
pub(crate) mod remote;
pub(crate) mod share;
pub(crate) mod transport;

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::accounting::{
    BackgroundLoad, Detail, Device, KernelMemory, ProcessMemory, SideSample, Sides, Watched,
};
use crate::clock::Offset;
use crate::cpus::CpuList;
use crate::error::LabError;
use crate::experiment::{HttpGrid, HttpPoint, Nginx, Protocol};
use crate::machine::Fingerprint;
use crate::machine::Program;
use crate::namespace::Place;
use crate::process::{self, Event, Exit, Role};
use crate::procfs;
use crate::site::{Certificate, Made, Site, nginx};

pub(crate) use agent::serve;
pub use local::Interface;
pub use options::{HostOptions, NODE, Quorum};
use protocol::Request;
use remote::{Pending, Remote, RemoteProcess, Starting};

/// What the host of the lab itself is called.
pub const LOCAL: &str = "local";

/// What is written into the bundle about a host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostRecord {
    /// What it does in the experiment.
    pub role: HostRole,
    /// What the user calls it; [`LOCAL`] for the host of the lab.
    pub name: String,
    /// What it calls itself.
    pub hostname: String,
    /// The CPU of its server or load generator; a list if it has several.
    #[serde(rename = "cpu")]
    pub cpus: CpuList,
    /// Its address towards the others.
    pub address: Option<IpAddr>,
    /// The device with that address.
    pub interface: Option<Interface>,
    /// Settings of its network.
    pub settings: Vec<(String, String)>,
    /// The program of the lab on it, and its version.
    pub binary: Program,
    /// See `binary`.
    pub version: String,
    /// How far its clock was ahead of the lab's when the experiment began.
    pub clock: Offset,
    /// Another host of the experiment that is the same machine: a container or a namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub same_machine_as: Option<String>,
    /// The machine.
    pub machine: Fingerprint,
}

/// What a host does in an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HostRole {
    /// The subjects run on it.
    Server,
    /// A load generator runs on it.
    Client,
}

impl std::fmt::Display for HostRole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            HostRole::Server => "server",
            HostRole::Client => "client",
        })
    }
}

/// One end of a network: where a process runs, on which CPUs.
pub(crate) struct End {
    pub(crate) host: Host,
    pub(crate) cpus: CpuList,
    /// Processes of that host whose descendants are not background load.
    pub(crate) roots: Vec<i32>,
    /// The device of its network, if that is the lab's or loopback.
    pub(crate) device: Option<Device>,
}

impl End {
    /// On this host.
    pub(crate) fn here(place: Place, cpus: CpuList) -> End {
        End { host: Host::Here(place), cpus, roots: vec![std::process::id() as i32], device: None }
    }
}

/// Where a process runs and is looked at.
pub(crate) enum Host {
    /// On this host, in a place of it.
    Here(Place),
    /// On another one.
    There(Arc<Remote>),
}

/// What was asked of a host: it is there, or on its way from another one.
pub(crate) enum Answer<T> {
    Now(Result<T, LabError>),
    Later(Pending<T>),
}

impl<T: DeserializeOwned> Answer<T> {
    /// # Errors
    /// As where it comes from; [`LabError::Host`] when it gets lost.
    pub(crate) fn wait(self) -> Result<T, LabError> {
        match self {
            Answer::Now(value) => value,
            Answer::Later(pending) => pending.wait(),
        }
    }
}

impl Host {
    /// What the user calls it.
    pub(crate) fn name(&self) -> &str {
        match self {
            Host::Here(_) => LOCAL,
            Host::There(remote) => remote.name(),
        }
    }

    /// The path of this program on the host; here it is `own`.
    pub(crate) fn binary<'a>(&'a self, own: &'a str) -> &'a str {
        match self {
            Host::Here(_) => own,
            Host::There(remote) => &remote.hello().binary,
        }
    }

    /// The files of HTTP on the host; here they are `own`.
    pub(crate) fn site<'a>(&'a self, own: Option<&'a Site>) -> Option<&'a Site> {
        match self {
            Host::Here(_) => own,
            Host::There(remote) => remote.site(),
        }
    }

    /// How far its clock is ahead of the lab's.
    pub(crate) fn clock(&self) -> Result<Offset, LabError> {
        match self {
            Host::Here(_) => Ok(Offset::NONE),
            Host::There(remote) => remote.clock(),
        }
    }

    /// Starts a program pinned to CPUs, which may be told something later. Here it needs the `helper`.
    pub(crate) fn start(
        &self,
        helper: &[OsString],
        cpus: &CpuList,
        command: &[String],
        is_told: bool,
        role: Role,
        events: Sender<Event>,
    ) -> Started {
        match self {
            Host::Here(place) => {
                Started::Here(process::start(helper, place, cpus, command, is_told, role, events))
            }
            Host::There(remote) => {
                Started::There(remote.start(cpus, command, is_told, role, events))
            }
        }
    }

    fn sample(&self, side: Watched<'_>, detail: Detail) -> Answer<SideSample> {
        let Watched { cpus, pid, .. } = side;
        match self {
            Host::Here(_) => Answer::Now(SideSample::take(side, detail)),
            Host::There(remote) => {
                let cpus = cpus.clone();
                Answer::Later(remote.begin(Request::Sample { cpus, pid, detail }))
            }
        }
    }

    /// Memory of a process of the host.
    pub(crate) fn process_memory(&self, pid: i32) -> Result<ProcessMemory, LabError> {
        match self {
            Host::Here(_) => Ok(ProcessMemory::take(pid)),
            Host::There(remote) => remote.ask(Request::ProcessMemory { pid }),
        }
    }

    /// Memory of the host's kernel.
    pub(crate) fn kernel_memory(&self) -> Result<KernelMemory, LabError> {
        match self {
            Host::Here(_) => Ok(KernelMemory::take()),
            Host::There(remote) => remote.ask(Request::KernelMemory),
        }
    }

    /// CPU time so far of processes that do not come from `roots`.
    pub(crate) fn background(&self, roots: &[i32]) -> Answer<BackgroundLoad> {
        match self {
            Host::Here(_) => Answer::Now(BackgroundLoad::take(roots)),
            Host::There(remote) => {
                Answer::Later(remote.begin(Request::BackgroundLoad { roots: roots.to_vec() }))
            }
        }
    }

    /// Why the address cannot be bound, if it cannot.
    pub(crate) fn why_not_bind(
        &self,
        address: SocketAddr,
        protocol: Protocol,
    ) -> Result<Option<String>, LabError> {
        match self {
            Host::Here(place) => {
                let bound = place.run(move || local::can_bind(address, protocol));
                Ok(bound.err().map(|error| error.to_string()))
            }
            Host::There(remote) => remote.ask(Request::CanBind { address, protocol }),
        }
    }

    /// Why no connection can be made, if none can.
    pub(crate) fn why_not_connect(&self, address: SocketAddr) -> Result<Option<String>, LabError> {
        match self {
            Host::Here(place) => {
                let connected = place.run(move || local::connect(address));
                Ok(connected.err().map(|error| error.to_string()))
            }
            Host::There(remote) => remote.ask(Request::Connect { address }),
        }
    }

    /// Opens a port for a moment, for others to try.
    pub(crate) fn listen(&self, ip: IpAddr) -> Result<u16, LabError> {
        match self {
            Host::Here(place) => {
                let opened = place.run(move || local::listen(ip));
                let why = |error: std::io::Error| LabError::Host {
                    host: LOCAL.to_owned(),
                    why: error.to_string(),
                };
                opened.map_err(why)
            }
            Host::There(remote) => remote.ask(Request::Listen { ip }),
        }
    }

    /// UDP has no handshake; that a socket has the port is all that can be seen from outside.
    pub(crate) fn is_udp_bound(&self, port: u16) -> Result<bool, LabError> {
        match self {
            Host::Here(place) => Ok(place.run(move || procfs::is_udp_bound(port))),
            Host::There(remote) => remote.ask(Request::IsUdpBound { port }),
        }
    }

    /// The nginx of the host, or why there is none.
    pub(crate) fn find_nginx(&self) -> Result<Result<nginx::Installed, String>, LabError> {
        match self {
            Host::Here(_) => Ok(nginx::Installed::find(Nginx::PROGRAM)),
            Host::There(remote) => remote.ask(Request::FindNginx),
        }
    }

    /// Programs with the hashes of their files on that host.
    pub(crate) fn hash(&self, programs: Vec<String>) -> Result<Vec<Program>, LabError> {
        match self {
            Host::Here(_) => Ok(local::hash(programs)),
            Host::There(remote) => {
                let mut programs: Vec<Program> = remote.ask(Request::Hash { programs })?;
                for program in &mut programs {
                    program.host = Some(remote.name().to_owned());
                }
                Ok(programs)
            }
        }
    }

    /// The words that tell a load generator on the host what to ask for; here the files are `own`.
    pub(crate) fn urls(
        &self,
        own: &Site,
        point: HttpPoint,
        server: SocketAddr,
    ) -> Result<Vec<String>, LabError> {
        match self {
            Host::Here(_) => own.urls(point, server),
            Host::There(remote) => remote.ask(Request::Urls { point, server }),
        }
    }

    /// Writes the configuration of a server that needs one; here beside the files of `own`.
    pub(crate) fn configure(&self, own: Option<&Site>, text: &str) -> Result<(), LabError> {
        match (self, own) {
            (Host::Here(_), None) => Ok(()),
            (Host::Here(_), Some(own)) => {
                let path = own.configuration();
                std::fs::write(&path, text).map_err(|error| LabError::write(&path, error))
            }
            (Host::There(remote), _) => remote.ask(Request::Configure { text: text.to_owned() }),
        }
    }
}

/// Makes the same files on all these hosts; those of this one in `directory`, until what is
/// returned is dropped.
///
/// # Errors
/// When a host cannot write them.
pub(crate) fn make_sites<'a>(
    hosts: impl Iterator<Item = &'a Host>,
    directory: PathBuf,
    grid: &HttpGrid,
    seed: u64,
    certificate: Option<Certificate>,
) -> Result<Option<Made>, LabError> {
    let mut here = false;
    let mut pending: Vec<(&Remote, Pending<Site>)> = Vec::new();
    for host in hosts {
        match host {
            Host::Here(_) => here = true,
            Host::There(remote) => {
                let (grid, certificate) = (Box::new(grid.clone()), certificate.clone());
                let request = Request::MakeSite { grid, seed, certificate };
                pending.push((remote, remote.begin(request)));
            }
        }
    }
    let made = here.then(|| Made::make(directory, grid, seed, certificate.as_ref()));
    for (remote, site) in pending {
        remote.set_site(site.wait()?);
    }
    made.transpose()
}

/// Both sides of a run, as they are looked at by their hosts.
pub(crate) struct Sampling {
    server: Answer<SideSample>,
    client: Answer<SideSample>,
}

impl Sampling {
    /// Has both sides looked at now. Of many load generators the marks come together, so nobody waits for the answers
    /// here. The server runs on `server_cpus` of its end.
    ///
    /// # Errors
    /// As [`SideSample::take`].
    pub(crate) fn begin(
        [server, client]: [&End; 2],
        server_cpus: &CpuList,
        [server_pid, client_pid]: [i32; 2],
        detail: Detail,
    ) -> Result<Sampling, LabError> {
        let of_server =
            Watched { cpus: server_cpus, pid: server_pid, device: server.device.as_ref() };
        let of_client =
            Watched { cpus: &client.cpus, pid: client_pid, device: client.device.as_ref() };
        if let (Host::Here(_), Host::Here(_)) = (&server.host, &client.host) {
            let Sides { server, client } = SideSample::take_both(of_server, of_client, detail)?;
            let [server, client] = [server, client].map(|side| Answer::Now(Ok(side)));
            return Ok(Sampling { server, client });
        }
        let server = server.host.sample(of_server, detail);
        let client = client.host.sample(of_client, detail);
        Ok(Sampling { server, client })
    }

    /// # Errors
    /// As [`SideSample::take`]; [`LabError::Host`].
    pub(crate) fn wait(self) -> Result<Sides, LabError> {
        Ok(Sides { server: self.server.wait()?, client: self.client.wait()? })
    }
}

/// A program that is being started.
pub(crate) enum Started {
    Here(Result<process::Process, LabError>),
    There(Starting),
}

impl Started {
    /// # Errors
    /// [`LabError::Spawn`], [`LabError::Host`].
    pub(crate) fn wait(self) -> Result<Process, LabError> {
        match self {
            Started::Here(process) => process.map(Process::Here),
            Started::There(starting) => starting.wait().map(Process::There),
        }
    }
}

/// A running program, wherever it runs. Dropping it kills it and everything in its process group.
pub(crate) enum Process {
    Here(process::Process),
    There(RemoteProcess),
}

impl Process {
    /// Its id on its host.
    pub(crate) fn pid(&self) -> i32 {
        match self {
            Process::Here(process) => process.pid(),
            Process::There(process) => process.pid(),
        }
    }

    pub(crate) fn has_ended(&self) -> Result<bool, LabError> {
        match self {
            Process::Here(process) => Ok(process.has_ended()),
            Process::There(process) => process.has_ended(),
        }
    }

    /// Writes a line to its standard input, if it was started to be told something.
    pub(crate) fn tell(&mut self, line: &str) -> Answer<()> {
        match self {
            Process::Here(process) => {
                process.tell(line);
                Answer::Now(Ok(()))
            }
            Process::There(process) => Answer::Later(process.tell(line)),
        }
    }

    /// Sends a signal if it still runs.
    pub(crate) fn signal(&self, signal: Signal) -> Result<(), LabError> {
        match self {
            Process::Here(process) => {
                process.signal(signal);
                Ok(())
            }
            Process::There(process) => process.signal(signal),
        }
    }

    /// Waits for the end up to `patience`; then kills the rest of the group and reaps.
    /// `asked` says whether the process had been asked to stop.
    pub(crate) fn finish(&mut self, patience: Duration, asked: bool) -> Result<Exit, LabError> {
        match self {
            Process::Here(process) => Ok(process.finish(patience, asked)),
            Process::There(process) => process.finish(patience, asked),
        }
    }

    /// The last lines of its standard error, once it has ended.
    pub(crate) fn stderr(&self) -> String {
        match self {
            Process::Here(process) => process.stderr(),
            Process::There(process) => process.stderr().to_owned(),
        }
    }
}
