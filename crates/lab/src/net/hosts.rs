//! The hosts of an experiment: connected to, looked at, and made a network of.

mod cpus;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use self::cpus::{both_ends, choose_cpus};
use super::{NetRecord, Network};
use crate::cpus::{CpuList, Cpus, Pin};
use crate::error::LabError;
use crate::experiment::{Experiment, NetKind};
use crate::host::local::{self, PORTS};
use crate::host::protocol::{Hello, Request};
use crate::host::remote::Remote;
use crate::host::{End, Host, HostOptions, HostRecord, HostRole, LOCAL, share, transport};
use crate::machine::Fingerprint;
use crate::machine::Program;
use crate::namespace::Place;
use crate::placement::Wanted;
use crate::progress::say;
use crate::quorum::{LostHost, too_few};

/// The most hosts of servers, and of load generators, of an experiment.
const MAX_OF_A_ROLE: usize = 64;

/// The hosts of an experiment, ready for use.
pub(crate) struct Between {
    pub(crate) network: Network,
    pub(crate) cpus: Cpus,
    /// All hosts, the servers' first.
    pub(crate) records: Vec<HostRecord>,
    /// Client hosts that could not be reached.
    pub(crate) lost_hosts: Vec<LostHost>,
    /// The fewest client hosts with which the experiment goes on.
    pub(crate) least: usize,
    /// CPUs of the lab's own host that are left to it, if it is one of them.
    pub(crate) others: Vec<usize>,
}

/// What is wanted of the CPUs, and how this program is called.
pub(crate) struct Config<'a> {
    pub(crate) pin: &'a Pin,
    /// The most workers of a cell.
    pub(crate) workers: usize,
    pub(crate) binary: &'a Path,
    /// Arguments that lead to [`crate::helper()`].
    pub(crate) helper: &'a [String],
}

/// Connects to the hosts, and finds the addresses that all clients reach the servers at.
///
/// # Errors
/// [`LabError::BadExperiment`] for what cannot be measured between hosts; [`LabError::Host`] for a
/// host that cannot be used.
pub(crate) fn between_hosts(
    options: &HostOptions,
    experiment: &Experiment,
    config: &Config<'_>,
) -> Result<Between, LabError> {
    let names = names(options)?;
    let servers = options.count_servers();
    let clients = names.len() - servers;
    check(experiment, clients)?;
    let least = least_clients(options, servers, clients)?;
    let Met { nodes, lost_hosts } = meet_all(options, &names, config, least)?;
    let cpus = choose_cpus(&nodes, servers, config.pin, config.workers)?;
    let over_tcp = experiment.protocols().any(|protocol| protocol.workload().over_tcp);
    let (of_servers, of_clients) = nodes.split_at(servers);
    let mut server_ips = Vec::new();
    for (index, server) in of_servers.iter().enumerate() {
        let ip = server_address(options, index, server, of_clients)?;
        check_way(server, of_clients, ip, over_tcp)?;
        server_ips.push(ip);
    }
    let mut records = Vec::new();
    for (index, node) in nodes.iter().enumerate() {
        let listens = server_ips.get(index).copied();
        records.push(node.record(listens, &cpus[index], &nodes[..index])?);
    }
    let steering = |record: &HostRecord| match &record.interface {
        Some(interface) => interface.receive_steering.join(", "),
        None => String::new(),
    };
    let record = NetRecord {
        kind: NetKind::Hosts,
        server_ip: server_ips[0],
        server_rps: steering(&records[0]),
        client_rps: steering(&records[servers]),
        napi_cpus: Vec::new(),
        mtu_bytes: records[0].interface.as_ref().and_then(|interface| interface.mtu_bytes),
        settings: records[0].settings.clone(),
    };
    let chosen = both_ends(&nodes, servers, &cpus);
    let here = nodes.iter().zip(&cpus).find(|(it, _)| matches!(it.host, Host::Here(_)));
    let others = here.map_or_else(Vec::new, |(it, used)| {
        it.hello.cores.keys().copied().filter(|cpu| !used.all().contains(cpu)).collect()
    });
    let roots: Vec<Vec<i32>> = nodes.iter().map(|node| node.roots(&nodes)).collect();
    let ends = nodes.into_iter().zip(cpus).zip(roots);
    let ends = ends.map(|((node, cpus), roots)| End { host: node.host, cpus, roots, device: None });
    let mut of_servers: Vec<End> = ends.collect();
    let of_clients = of_servers.split_off(servers);
    let network = Network::new(record, of_servers, server_ips, of_clients);
    Ok(Between { network, cpus: chosen, records, lost_hosts, least, others })
}

/// The fewest client hosts with which the experiment goes on, one for each server at least; more than there are
/// without a quorum.
fn least_clients(options: &HostOptions, servers: usize, clients: usize) -> Result<usize, LabError> {
    let Some(quorum) = options.quorum else { return Ok(usize::MAX) };
    let least = quorum.least(clients).max(servers);
    if least <= clients {
        return Ok(least);
    }
    Err(LabError::BadExperiment {
        place: "--quorum".to_owned(),
        problem: format!("{least} of {clients} client hosts"),
        expected: format!("{clients} at most, or a percentage"),
    })
}

/// The hosts that were reached, the servers' first, and those that were not.
struct Met {
    nodes: Vec<Node>,
    lost_hosts: Vec<LostHost>,
}

/// Connects to all hosts at once: logging in and copying take a while on each. Those of the servers and `least` others
/// have to be there.
fn meet_all<'a>(
    options: &'a HostOptions,
    names: &'a [String],
    config: &'a Config<'_>,
    least: usize,
) -> Result<Met, LabError> {
    let met: Vec<Result<Node, LabError>> = std::thread::scope(|scope| {
        let meet = |name: &'a String| scope.spawn(move || Node::meet(options, name, config));
        let meetings: Vec<_> = names.iter().map(meet).collect();
        let gone = || LabError::Machine { why: "a thread of the lab panicked".to_owned() };
        let node =
            |meeting: std::thread::ScopedJoinHandle<'_, _>| meeting.join().map_err(|_| gone())?;
        meetings.into_iter().map(node).collect()
    });
    let servers = options.count_servers();
    let left = met.iter().skip(servers).filter(|it| it.is_ok()).count();
    let at = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let (mut nodes, mut lost_hosts) = (Vec::new(), Vec::new());
    for (index, met) in met.into_iter().enumerate() {
        match met {
            Ok(node) => nodes.push(node),
            Err(LabError::Host { host, why }) if index >= servers && least < usize::MAX => {
                if left < least {
                    return Err(too_few(&host, &why, left, least));
                }
                say(&format!("goes on without {host}: {why}"));
                lost_hosts.push(LostHost { host, why, at: at.clone(), from_run: 0 });
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Met { nodes, lost_hosts })
}

/// The names of all hosts, the servers' first.
fn names(options: &HostOptions) -> Result<Vec<String>, LabError> {
    let bad = |problem: String, expected: &str| LabError::BadExperiment {
        place: "--server-host and --client-host".to_owned(),
        problem,
        expected: expected.to_owned(),
    };
    let or_local = |names: &[String]| match names {
        [] => vec![LOCAL.to_owned()],
        names => names.to_vec(),
    };
    let (mut names, clients) = (or_local(&options.servers), or_local(&options.clients));
    let servers = names.len();
    if servers.max(clients.len()) > MAX_OF_A_ROLE {
        let problem =
            format!("{servers} hosts of servers and {} of load generators", clients.len());
        return Err(bad(problem, "64 of each at most"));
    }
    if clients.len() < servers {
        let problem = format!("{servers} servers and {} load generators", clients.len());
        return Err(bad(problem, "a load generator or more for each server"));
    }
    let addresses = options.server_addresses.len();
    if addresses > 0 && addresses != servers {
        let problem = format!("{servers} servers and {addresses} of --server-address");
        return Err(bad(problem, "an address for each server, in the same order, or none"));
    }
    names.extend(clients);
    for (index, name) in names.iter().enumerate() {
        if names[..index].contains(name) {
            return Err(bad(
                format!("`{name}` is given twice"),
                "a host for each; to measure on a single machine, run the lab on it",
            ));
        }
        if name.is_empty() || name.starts_with('-') {
            return Err(bad(
                format!("`{name}`"),
                "a name that the command to connect knows, or `local`",
            ));
        }
    }
    Ok(names)
}

/// What cannot be done between hosts.
fn check(experiment: &Experiment, clients: usize) -> Result<(), LabError> {
    let bad = |problem: &str, expected: &str| LabError::BadExperiment {
        place: "--server-host and --client-host".to_owned(),
        problem: problem.to_owned(),
        expected: expected.to_owned(),
    };
    if experiment.placement != Wanted::Any {
        let problem = "CPUs of different machines do not share a cache";
        return Err(bad(problem, "--placement any"));
    }
    share::check(experiment, clients)
}

/// A host that has been met.
struct Node {
    host: Host,
    hello: Hello,
}

impl Node {
    fn meet(options: &HostOptions, name: &str, config: &Config<'_>) -> Result<Node, LabError> {
        if name == LOCAL {
            let hello = local::hello(config.binary)
                .map_err(|error| LabError::Machine { why: error.to_string() })?;
            return Ok(Node { host: Host::Here(Place::Here), hello });
        }
        let session = transport::connect(options, name, config.binary, config.helper)?;
        let remote = Arc::new(Remote::new(name, session));
        Ok(Node { hello: remote.hello().clone(), host: Host::There(remote) })
    }

    fn is_same_machine(&self, other: &Node) -> bool {
        !self.hello.boot_id.is_empty() && self.hello.boot_id == other.hello.boot_id
    }

    /// Processes whose descendants belong to the experiment, as far as this host can see them.
    fn roots(&self, nodes: &[Node]) -> Vec<i32> {
        let sees = |other: &&Node| {
            self.is_same_machine(other) && self.hello.pid_namespace == other.hello.pid_namespace
        };
        let mut roots: Vec<i32> = nodes.iter().filter(sees).map(|it| it.hello.pid).collect();
        // Agents and the lab; the lab's host need not be one of the experiment.
        if [&*self.hello.boot_id, &*self.hello.pid_namespace] == local::kernel_and_processes() {
            roots.push(std::process::id() as i32);
        }
        roots
    }

    /// A server's host has the address that it `listens` on.
    fn record(
        &self,
        listens: Option<IpAddr>,
        cpus: &CpuList,
        before: &[Node],
    ) -> Result<HostRecord, LabError> {
        let Hello { hostname, binary, sha256, version, connection, addresses, .. } = &self.hello;
        let role = if listens.is_some() { HostRole::Server } else { HostRole::Client };
        let own = || connection.map(|[_, own]| own).or_else(|| only(addresses));
        let address = listens.or_else(own);
        let (machine, interface, settings) = match &self.host {
            Host::Here(_) => {
                let interface = address.and_then(local::interface);
                (Fingerprint::of_cpu(cpus.first()), interface, local::settings())
            }
            Host::There(remote) => {
                let interface = address.map(|ip| remote.ask(Request::Interface { ip }));
                (
                    remote.ask(Request::Settle { cpus: cpus.clone() })?,
                    interface.transpose()?.flatten(),
                    remote.ask(Request::Settings)?,
                )
            }
        };
        let name = self.host.name().to_owned();
        let host = (name != LOCAL).then(|| name.clone());
        let same = before.iter().find(|other| self.is_same_machine(other));
        Ok(HostRecord {
            role,
            name,
            hostname: hostname.clone(),
            cpus: cpus.clone(),
            address,
            interface,
            settings,
            binary: Program {
                path: binary.clone(),
                sha256: Some(sha256.clone()),
                host,
                peer: None,
            },
            version: version.clone(),
            clock: self.host.clock()?,
            same_machine_as: same.map(|other| other.host.name().to_owned()),
            machine,
        })
    }
}

/// The address that a server listens on: as told; or the one by which ssh gets there; or the only
/// one that it has.
fn server_address(
    options: &HostOptions,
    index: usize,
    server: &Node,
    clients: &[Node],
) -> Result<IpAddr, LabError> {
    if let Some(address) = options.server_addresses.get(index) {
        return Ok(*address);
    }
    let mut seen: Vec<IpAddr> = match server.host {
        Host::There(_) => server.hello.connection.map(|[_, own]| own).into_iter().collect(),
        Host::Here(_) => {
            clients.iter().filter_map(|client| Some(client.hello.connection?[0])).collect()
        }
    };
    if seen.is_empty() {
        seen.clone_from(&server.hello.addresses);
    }
    seen.sort_unstable();
    seen.dedup();
    if let Some(one) = only(&seen) {
        return Ok(one);
    }
    let seen: Vec<String> = seen.iter().map(IpAddr::to_string).collect();
    let why = match seen.is_empty() {
        true => "it has no address but those of loopback".to_owned(),
        false => format!("it has several addresses, {}", seen.join(", ")),
    };
    Err(LabError::Host {
        host: server.host.name().to_owned(),
        why: format!("{why}; give the address that the client hosts reach it at, --server-address"),
    })
}

fn only(addresses: &[IpAddr]) -> Option<IpAddr> {
    if let [one] = addresses { Some(*one) } else { None }
}

/// Whether a server can listen there and every client gets through.
fn check_way(
    server: &Node,
    clients: &[Node],
    server_ip: IpAddr,
    over_tcp: bool,
) -> Result<(), LabError> {
    for client in clients {
        let port = server.host.listen(server_ip).map_err(|error| LabError::Host {
            host: server.host.name().to_owned(),
            why: format!(
                "it cannot listen on {server_ip} ({error}); give one of its own addresses that \
                 the client hosts reach, --server-address"
            ),
        })?;
        if !over_tcp {
            continue;
        }
        let address = SocketAddr::new(server_ip, port);
        if let Some(why) = client.host.why_not_connect(address)? {
            let (host, ports) = (client.host.name().to_owned(), PORTS);
            return Err(LabError::Host {
                host,
                why: format!(
                    "it cannot connect to the server's host at {address} ({why}); give an address \
                     that it reaches, --server-address, and let it through to the ports {} to {}",
                    ports.start,
                    ports.end - 1
                ),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_named_once_and_one_is_elsewhere() {
        let of = |server: &str, clients: &[&str]| {
            names(&HostOptions {
                servers: server.split_whitespace().map(str::to_owned).collect(),
                clients: clients.iter().map(|name| (*name).to_owned()).collect(),
                ..HostOptions::default()
            })
        };
        assert_eq!(of("a", &[]).unwrap(), ["a", LOCAL]);
        assert_eq!(of("", &["b", "c"]).unwrap(), [LOCAL, "b", "c"]);
        assert_eq!(of("local", &["b"]).unwrap(), [LOCAL, "b"]);
        for (server, clients) in [("a", vec!["a"]), ("a", vec!["b", "b"]), ("local", vec![])] {
            let error = of(server, &clients).unwrap_err();
            assert!(error.to_string().contains("given twice"), "{error}");
            assert_eq!(error.exit_code(), 2);
        }
        assert_eq!(of("a b", &["c", "d"]).unwrap(), ["a", "b", "c", "d"]);
        let error = of("a b", &["c"]).unwrap_err().to_string();
        assert!(error.contains("2 servers and 1 load generators"), "{error}");
        // It would be taken for an option of the command.
        assert!(of("-oProxyCommand=x", &["b"]).is_err());
    }

    #[test]
    fn what_needs_one_machine_is_refused() {
        let mut experiment = Experiment::find("quick").unwrap();
        check(&experiment, 2).unwrap();
        experiment.placement = Wanted::Close;
        assert_eq!(check(&experiment, 1).unwrap_err().exit_code(), 2);
    }
}
