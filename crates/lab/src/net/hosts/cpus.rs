//! Which CPUs the server and the load generators of several hosts get: hosts that are one machine, such as
//! containers, share them.

use std::collections::BTreeMap;

use super::Node;
use crate::cpus::{CpuList, Cpus, Pin, count_cores, pick};
use crate::error::LabError;

/// CPUs for each host, the `servers` first, for up to `workers` threads. Those that are one machine get different ones, on cores
/// of their own, as long as there are.
pub(super) fn choose_cpus(
    nodes: &[Node],
    servers: usize,
    pin: &Pin,
    workers: usize,
) -> Result<Vec<CpuList>, LabError> {
    let mut chosen: Vec<CpuList> = Vec::new();
    for (index, node) in nodes.iter().enumerate() {
        let neighbours = nodes.iter().zip(&chosen).enumerate();
        let neighbours = neighbours.filter(|(_, (it, _))| it.is_same_machine(node));
        let mut taken = Taken::default();
        for (other, (_, cpus)) in neighbours {
            let of_role =
                if other < servers { &mut taken.by_servers } else { &mut taken.by_clients };
            of_role.extend(cpus.all());
        }
        let Pin { server_cpu, client_cpu } = pin;
        // Beside a load generator a server leaves it the CPUs that were asked for.
        if index < servers && nodes[servers..].iter().any(|it| it.is_same_machine(node)) {
            taken.by_clients.extend(client_cpu.iter().flat_map(CpuList::all));
        }
        let sharing = nodes.iter().filter(|it| it.is_same_machine(node)).count();
        let count = workers.min(count_cores(&node.hello.cores) / sharing).max(1);
        let wanted = if index < servers { server_cpu } else { client_cpu };
        let cpus = choose(&node.hello.cores, wanted.as_ref(), count, &taken);
        chosen.push(cpus.map_err(|problem| LabError::BadExperiment {
            place: format!("the CPUs of {}", node.host.name()),
            problem,
            expected: format!("one of {:?}", node.hello.cores.keys().collect::<Vec<_>>()),
        })?);
    }
    Ok(chosen)
}

/// What the server and the load generators of its machine share.
pub(super) fn both_ends(nodes: &[Node], servers: usize, cpus: &[CpuList]) -> Cpus {
    let (mut shared, mut siblings) = (false, false);
    let all: Vec<(&Node, &CpuList)> = nodes.iter().zip(cpus).collect();
    let (of_servers, of_clients) = all.split_at(servers);
    for (server, own) in of_servers {
        let on_core = |cpu: &usize| {
            let cores = own.all().iter().filter_map(|cpu| server.hello.cores.get(cpu));
            cores.flatten().any(|sibling| sibling == cpu)
        };
        let beside = of_clients.iter().filter(|(it, _)| it.is_same_machine(server));
        for cpu in beside.flat_map(|(_, cpus)| cpus.all()) {
            shared |= own.all().contains(cpu);
            siblings |= on_core(cpu);
        }
    }
    let (server, client) = (cpus[0].clone(), cpus[servers].clone());
    Cpus { server, client, shared, siblings: siblings && !shared, others: Vec::new() }
}

/// CPUs of a machine that other hosts on it have.
#[derive(Default)]
struct Taken {
    by_servers: Vec<usize>,
    by_clients: Vec<usize>,
}

fn choose(
    cores: &BTreeMap<usize, Vec<usize>>,
    wanted: Option<&CpuList>,
    count: usize,
    taken: &Taken,
) -> Result<CpuList, String> {
    let used = [&taken.by_servers[..], &taken.by_clients].concat();
    if let Some(wanted) = wanted {
        for cpu in wanted.all() {
            if used.contains(cpu) {
                return Err(format!(
                    "CPU {cpu} is that of another host, which is the same machine"
                ));
            }
            if !cores.contains_key(cpu) {
                return Err(format!("CPU {cpu} may not be used"));
            }
        }
        return Ok(wanted.clone());
    }
    let siblings: Vec<usize> =
        used.iter().filter_map(|cpu| cores.get(cpu)).flatten().copied().collect();
    // Rather beside a load generator than beside a server.
    let servers = &taken.by_servers;
    let cpus = pick(cores, count, &used, &siblings).or_else(|| pick(cores, count, servers, &[]));
    cpus.or_else(|| pick(cores, count, &[], &[])).ok_or_else(|| "it has none".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Host;
    use crate::host::protocol::Hello;
    use crate::namespace::Place;

    #[test]
    fn hosts_that_are_one_machine_get_different_cpus() {
        let cores: BTreeMap<usize, Vec<usize>> =
            [(0, vec![0, 1]), (1, vec![0, 1]), (2, vec![2, 3]), (3, vec![2, 3])].into();
        let of = |cores, wanted: Option<usize>, count, taken: &[usize]| {
            let (by_servers, by_clients) = taken.split_at(taken.len().min(1));
            let taken = Taken { by_servers: by_servers.to_vec(), by_clients: by_clients.to_vec() };
            choose(cores, wanted.map(CpuList::one).as_ref(), count, &taken).map(|it| it.to_string())
        };
        for (taken, expected) in [(&[][..], "0"), (&[0], "2"), (&[0, 2], "1"), (&[0, 1, 2, 3], "1")]
        {
            assert_eq!(of(&cores, None, 1, taken).unwrap(), expected, "{taken:?}");
        }
        assert_eq!(of(&cores, None, 2, &[]).unwrap(), "0,2");
        assert_eq!(of(&cores, Some(3), 1, &[2]).unwrap(), "3");
        assert!(of(&cores, Some(3), 1, &[3]).unwrap_err().contains("another host"));
        assert!(of(&cores, Some(4), 1, &[]).is_err());
        assert!(of(&BTreeMap::new(), None, 1, &[]).is_err());
    }

    fn node(boot_id: &str, cores: &[(usize, Vec<usize>)]) -> Node {
        Node {
            host: Host::Here(Place::Here),
            hello: Hello {
                protocol: String::new(),
                version: String::new(),
                binary: String::new(),
                sha256: String::new(),
                hostname: String::new(),
                pid: 1,
                boot_id: boot_id.to_owned(),
                pid_namespace: String::new(),
                cores: cores.iter().cloned().collect(),
                connection: None,
                addresses: Vec::new(),
            },
        }
    }

    /// Two containers on one core were said to have a core each.
    #[test]
    fn what_server_and_load_generator_share_is_told() {
        let alone = [(0, vec![0])];
        let core = [(0, vec![0, 1]), (1, vec![0, 1])];
        let cores = [(0, vec![0]), (1, vec![1])];
        let told = |servers: usize, hosts: &[&str], all: &[(usize, Vec<usize>)]| {
            let nodes: Vec<Node> = hosts.iter().map(|boot_id| node(boot_id, all)).collect();
            let chosen = choose_cpus(&nodes, servers, &Pin::default(), 1).unwrap();
            let Cpus { shared, siblings, .. } = both_ends(&nodes, servers, &chosen);
            (shared, siblings)
        };
        for (hosts, all, expected) in [
            (&["a", "a"][..], &alone[..], (true, false)),
            (&["a", "a"], &core, (false, true)),
            (&["a", "a"], &cores, (false, false)),
            (&["a", "a", "a"], &cores, (false, false)),
            (&["a", "b"], &alone, (false, false)),
            (&["a", "b", "a"], &alone, (true, false)),
            (&["a", "b", "b"], &core, (false, false)),
        ] {
            assert_eq!(told(1, hosts, all), expected, "{hosts:?} {all:?}");
        }
        // Two servers, the second beside a load generator.
        assert_eq!(told(2, &["a", "b", "b", "c"], &alone), (true, false));
        assert_eq!(told(2, &["a", "b", "c", "d"], &alone), (false, false));
    }

    /// On one CPU they were measured, and nothing said so.
    #[test]
    fn a_cpu_that_was_asked_for_is_nobody_elses() {
        let cores = [(0, vec![0]), (1, vec![1])];
        let choose = |hosts: [&str; 2], server_cpu: Option<usize>, client_cpu: Option<usize>| {
            let [server_cpu, client_cpu] = [server_cpu, client_cpu].map(|it| it.map(CpuList::one));
            let pin = Pin { server_cpu, client_cpu };
            let chosen = choose_cpus(&hosts.map(|it| node(it, &cores)), 1, &pin, 1)?;
            Ok::<_, LabError>(chosen.iter().map(CpuList::first).collect::<Vec<_>>())
        };
        let (together, apart) = (["a", "a"], ["a", "b"]);
        assert_eq!(choose(together, None, Some(0)).unwrap(), [1, 0]);
        assert_eq!(choose(together, Some(1), None).unwrap(), [1, 0]);
        let error = choose(together, Some(1), Some(1)).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{error}");
        assert_eq!(choose(apart, Some(1), Some(1)).unwrap(), [1, 1]);
        assert_eq!(choose(apart, None, Some(0)).unwrap(), [0, 0]);
    }
}
