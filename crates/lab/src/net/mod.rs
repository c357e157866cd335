//! The network between server and client.
//!
//! Three of them differ in who does the receive work: on loopback (`lo`) the sender's CPU; on a veth
//! pair with receive steering (`rps`) the receiver's CPU, which an interrupt notifies it; on a veth pair
//! with threaded NAPI (`napi`) a thread of the kernel on the receiver's CPU, which polls. Both veth
//! pairs join two network namespaces.
//!
//! The namespaces have no names: threads of the lab and their children hold them, and with the
//! last of these they vanish with everything in them, however the lab ends.

mod ethtool;
mod hosts;
mod rtnetlink;
mod veth;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};

use serde::{Deserialize, Serialize};

use crate::accounting::Device;
use crate::cpus::{CpuList, Cpus};
use crate::error::LabError;
use crate::experiment::{NetChoice, NetKind, Protocol};
use crate::host::{End, local::PORTS, local::settings};
use crate::namespace::Place;
use crate::procfs;

pub(crate) use hosts::{Between, Config, between_hosts};

/// One of the networks of an experiment, ready for use.
pub(crate) struct Network {
    pub(crate) record: NetRecord,
    /// Where servers run: one end, or several between hosts.
    pub(crate) servers: Vec<End>,
    /// Where each of them listens.
    server_ips: Vec<IpAddr>,
    /// Where load generators run: one end, or several between hosts.
    pub(crate) clients: Vec<End>,
    next_port: u16,
    /// To which CPUs receive steering was set for the last run.
    steered_to: Option<CpuList>,
}

/// What is written into the bundle about a network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NetRecord {
    /// Which it is.
    pub kind: NetKind,
    /// The address the server listens on; that of the first of several.
    pub server_ip: IpAddr,
    /// Mask of `rps_cpus` of the server's end, or empty; between hosts those of all its queues,
    /// which are theirs and left as they are.
    pub server_rps: String,
    /// The same of the client's end; of the first one if there are several.
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
pub(crate) struct Networks {
    pub(crate) list: Vec<Network>,
    pub(crate) fallback: Option<String>,
}

/// Sets up what `choice` asks for.
///
/// # Errors
/// [`LabError::Net`] when a network was asked for by name and cannot be had.
pub(crate) fn set_up(choice: NetChoice, cpus: &Cpus) -> Result<Networks, LabError> {
    let mut networks = Networks { list: Vec::new(), fallback: None };
    for &kind in choice.kinds() {
        let network = match kind {
            NetKind::Rps | NetKind::Napi => veth::set_up(kind, cpus),
            NetKind::Lo | NetKind::Hosts => Ok(loopback(cpus)),
        };
        networks.list.push(match network {
            Ok(network) => network,
            Err(why) if choice == NetChoice::Auto => {
                networks.fallback = Some(format!("no network namespaces ({why}): plain loopback"));
                loopback(cpus)
            }
            Err(why) => return Err(LabError::Net { net: kind.to_string(), why }),
        });
    }
    Ok(networks)
}

fn loopback(cpus: &Cpus) -> Network {
    let record = NetRecord {
        kind: NetKind::Lo,
        server_ip: IpAddr::V4(Ipv4Addr::LOCALHOST),
        server_rps: procfs::text("/sys/class/net/lo/queues/rx-0/rps_cpus").unwrap_or_default(),
        client_rps: String::new(),
        napi_cpus: Vec::new(),
        mtu_bytes: procfs::text("/sys/class/net/lo/mtu").and_then(|mtu| mtu.parse().ok()),
        settings: settings(),
    };
    let [server, client] = [&cpus.server, &cpus.client].map(|cpus| {
        let device = Device { name: "lo".to_owned(), napi_threads: Vec::new() };
        End { device: Some(device), ..End::here(Place::Here, cpus.clone()) }
    });
    let server_ips = vec![record.server_ip];
    Network::new(record, vec![server], server_ips, vec![client])
}

impl Network {
    /// `server_ips` are the addresses of the servers, one for each.
    pub(crate) fn new(
        record: NetRecord,
        servers: Vec<End>,
        server_ips: Vec<IpAddr>,
        clients: Vec<End>,
    ) -> Network {
        // Two labs at once on one loopback should not start at the same port, in one process or two.
        static MADE: AtomicU32 = AtomicU32::new(0);
        let spread = (std::process::id() + MADE.fetch_add(1, Ordering::Relaxed)) % 100 * 100;
        let next_port = PORTS.start + spread as u16;
        Network { record, servers, server_ips, clients, next_port, steered_to: None }
    }

    /// Where the servers listen.
    pub(crate) fn server_ips(&self) -> &[IpAddr] {
        &self.server_ips
    }

    /// Has the CPUs of a server's workers receive, where the lab decides that. Nothing changes from run to
    /// run if all cells have as many.
    ///
    /// # Errors
    /// [`LabError::Net`] with the kernel's answer.
    pub(crate) fn steer_to(&mut self, cpus: CpuList) -> Result<(), LabError> {
        if self.record.kind == NetKind::Rps && self.steered_to.as_ref() != Some(&cpus) {
            veth::steer_to_workers(&self.servers[0], &cpus)
                .map_err(|why| LabError::Net { net: self.record.kind.to_string(), why })?;
            self.steered_to = Some(cpus);
        }
        Ok(())
    }

    /// An address for each server that is free for this protocol.
    ///
    /// # Errors
    /// [`LabError::Net`] when none of the ports can be bound, [`LabError::Host`].
    pub(crate) fn free_addresses(
        &mut self,
        protocol: Protocol,
    ) -> Result<Vec<SocketAddr>, LabError> {
        (0..self.servers.len()).map(|server| self.free_address(server, protocol)).collect()
    }

    fn free_address(&mut self, server: usize, protocol: Protocol) -> Result<SocketAddr, LabError> {
        let ip = self.server_ips[server];
        let mut why = String::new();
        for _ in PORTS {
            let address = SocketAddr::new(ip, self.next_port);
            self.next_port =
                if self.next_port + 1 < PORTS.end { self.next_port + 1 } else { PORTS.start };
            match self.servers[server].host.why_not_bind(address, protocol)? {
                None => return Ok(address),
                Some(error) => why = format!("{address}: {error}"),
            }
        }
        Err(LabError::Net { net: self.record.kind.to_string(), why })
    }
}
