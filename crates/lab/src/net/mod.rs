//! The network between server and client.
//!
//! Three of them differ in who does the receive work ([`NetKind`]). Two are veth pairs between two network namespaces.
//! The namespaces have no names: threads of the lab and their children hold them, and with the
//! last of these they vanish with everything in them, however the lab ends.

mod netlink;
mod veth;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::accounting::Device;
use crate::cpus::{CpuList, Cpus};
use crate::error::LabError;
use crate::experiment::{Experiment, NetKind, Protocol};
use crate::namespace::Place;
use crate::procfs;

/// Ports for the subjects, outside the range that the kernel hands out to clients. Every run takes
/// the next one: a port can stay bound for about 10 ms after its io_uring process was killed.
pub(crate) const PORTS: std::ops::Range<u16> = 20_000..30_000;

const CONNECT_PATIENCE: Duration = Duration::from_millis(1500);

/// The settings recorded for each network; the first is also made equal at both ends.
const SETTINGS: &[&str] = &[
    "net.ipv4.tcp_congestion_control",
    "net.core.somaxconn",
    "net.core.rmem_max",
    "net.core.wmem_max",
    "net.core.rmem_default",
    "net.core.wmem_default",
    "net.core.netdev_max_backlog",
    "net.core.netdev_budget",
    "net.core.netdev_budget_usecs",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "net.ipv4.tcp_autocorking",
    "net.ipv4.tcp_max_syn_backlog",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_max_tw_buckets",
];

/// One end of a network: where a process runs, on which CPUs.
pub(crate) struct End {
    pub(crate) place: Place,
    pub(crate) cpus: CpuList,
    /// The device of its network, if that is the lab's or loopback.
    pub(crate) device: Option<Device>,
}

pub(crate) struct Network {
    pub(crate) record: NetRecord,
    pub(crate) server: End,
    pub(crate) client: End,
    next_port: u16,
    /// To which CPUs receive steering was set for the last run.
    steered_to: Option<CpuList>,
}

/// What is written into the bundle about a network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NetRecord {
    /// Which it is.
    pub kind: NetKind,
    /// The address the server listens on.
    pub server_ip: IpAddr,
    /// Mask of `rps_cpus` of the server's end, or empty.
    pub server_rps: String,
    /// The same of the client's end.
    pub client_rps: String,
    /// The CPUs of server and client, to which the threads of the kernel that poll the two ends are
    /// pinned; empty without such threads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub napi_cpus: Vec<usize>,
    /// Maximum transmission unit in bytes.
    pub mtu_bytes: Option<u32>,
    /// Settings of the network stack that both ends were measured with.
    pub settings: Vec<(String, String)>,
}

/// The networks an experiment asked for, and why it got another one, if so.
pub(crate) fn set_up(
    experiment: &Experiment,
    cpus: &Cpus,
) -> Result<(Vec<Network>, Option<String>), LabError> {
    let (mut networks, mut fallback) = (Vec::new(), None);
    for &kind in experiment.networks() {
        let network = match (kind, &experiment.via) {
            (NetKind::Rps | NetKind::Napi, _) => veth::set_up(kind, cpus),
            (NetKind::Hosts, Some(via)) => machines(via.address, cpus),
            (NetKind::Lo | NetKind::Hosts, _) => Ok(loopback(cpus)),
        };
        networks.push(match network {
            Ok(network) => network,
            Err(why) if experiment.net.is_auto() && kind != NetKind::Hosts => {
                fallback = Some(format!("no network namespaces ({why}): plain loopback"));
                loopback(cpus)
            }
            Err(why) => return Err(LabError::net(kind, why)),
        });
    }
    Ok((networks, fallback))
}

fn loopback(cpus: &Cpus) -> Network {
    Network::here(NetKind::Lo, IpAddr::V4(Ipv4Addr::LOCALHOST), cpus)
}

/// The network of this machine, at one of its addresses.
fn machines(address: IpAddr, cpus: &Cpus) -> Result<Network, String> {
    TcpListener::bind((address, 0)).map_err(|error| {
        format!("cannot listen on {address}: {error}; --address takes an address of this machine")
    })?;
    Ok(Network::here(NetKind::Hosts, address, cpus))
}

impl Network {
    fn new(record: NetRecord, server: End, client: End) -> Network {
        // Two labs at once on one loopback should not start at the same port, in one process or in two, whose numbers
        // often follow one another.
        static MADE: AtomicU32 = AtomicU32::new(0);
        let made = MADE.fetch_add(1, Ordering::Relaxed);
        let spread = std::process::id() % 100 * 100 + made % 10 * 10;
        let next_port = PORTS.start + spread as u16;
        Network { record, server, client, next_port, steered_to: None }
    }

    fn here(kind: NetKind, ip: IpAddr, cpus: &Cpus) -> Network {
        let is_lo = kind == NetKind::Lo;
        let of_lo =
            |name: &str| procfs::text(&format!("/sys/class/net/lo/{name}")).filter(|_| is_lo);
        let record = NetRecord {
            kind,
            server_ip: ip,
            server_rps: of_lo("queues/rx-0/rps_cpus").unwrap_or_default(),
            client_rps: String::new(),
            napi_cpus: Vec::new(),
            mtu_bytes: of_lo("mtu").and_then(|mtu| mtu.parse().ok()),
            settings: procfs::settings(SETTINGS).collect(),
        };
        let end = |cpus: &CpuList| {
            let device = Device { name: "lo".to_owned(), napi_threads: Vec::new() };
            End { place: Place::Here, cpus: cpus.clone(), device: is_lo.then_some(device) }
        };
        Network::new(record, end(&cpus.server), end(&cpus.client))
    }

    /// Has the CPUs of a server's workers receive, where the lab decides that. Nothing changes from run to
    /// run if all cells have as many.
    pub(crate) fn steer_to(&mut self, cpus: &CpuList) -> Result<(), LabError> {
        if self.record.kind == NetKind::Rps && self.steered_to.as_ref() != Some(cpus) {
            let kind = self.record.kind;
            veth::steer_to_workers(&self.server, cpus).map_err(|why| LabError::net(kind, why))?;
            self.steered_to = Some(cpus.clone());
        }
        Ok(())
    }

    pub(crate) fn free_address(&mut self, protocol: Protocol) -> Result<SocketAddr, LabError> {
        let mut why = String::new();
        for _ in PORTS {
            let address = SocketAddr::new(self.record.server_ip, self.next_port);
            self.next_port =
                if self.next_port + 1 < PORTS.end { self.next_port + 1 } else { PORTS.start };
            match self.server.place.run(move || can_bind(address, protocol)) {
                Ok(()) => return Ok(address),
                Err(error) => why = format!("{address}: {error}"),
            }
        }
        Err(LabError::net(self.record.kind, why))
    }

    pub(crate) fn can_connect(&self, address: SocketAddr) -> bool {
        let connect = move || TcpStream::connect_timeout(&address, CONNECT_PATIENCE).is_ok();
        self.client.place.run(connect)
    }

    /// Whether a socket of the server's end has the port: UDP has no handshake, and this is all that can
    /// be seen from outside.
    pub(crate) fn is_udp_bound(&self, port: u16) -> bool {
        self.server.place.run(move || procfs::is_udp_bound(port))
    }
}

fn can_bind(address: SocketAddr, protocol: Protocol) -> io::Result<()> {
    match protocol.is_over_tcp() {
        true => TcpListener::bind(address).map(drop),
        false => UdpSocket::bind(address).map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpus::Pin;

    #[test]
    fn an_address_of_another_machine_is_refused() {
        let cpus = Cpus::choose(&Pin::default(), 1).unwrap();
        // Of a block reserved for documentation (RFC 5737): no machine has it.
        let why = machines("192.0.2.1".parse().unwrap(), &cpus).err().unwrap();
        assert!(why.contains("--address"), "{why}");
    }
}
