//! Which CPUs the server and the load generators of several hosts get: hosts that are one machine, such as
//! containers, share them.

use std::collections::BTreeMap;

use super::Node;
use crate::cpus::{CpuList, Cpus, count_cores, pick};
use crate::error::LabError;
use crate::experiment::Pin;

/// CPUs for each host, for up to `workers` threads. Those that are one machine get different ones, on cores
/// of their own, as long as there are.
pub(super) fn choose_cpus(
    nodes: &[Node],
    pin: &Pin,
    workers: usize,
) -> Result<Vec<CpuList>, LabError> {
    let mut chosen: Vec<CpuList> = Vec::new();
    for (index, node) in nodes.iter().enumerate() {
        let neighbours = nodes.iter().zip(&chosen).filter(|(it, _)| it.is_same_machine(node));
        let mut taken: Vec<CpuList> = neighbours.map(|(_, cpus)| cpus.clone()).collect();
        let Pin { server_cpu, client_cpu } = pin;
        // Beside a load generator the server leaves it the CPUs that were asked for.
        if index == 0 && nodes[1..].iter().any(|it| it.is_same_machine(node)) {
            taken.extend(client_cpu.clone());
        }
        let sharing = nodes.iter().filter(|it| it.is_same_machine(node)).count();
        let count = workers.min(count_cores(&node.hello.cores) / sharing).max(1);
        let wanted = if index == 0 { server_cpu } else { client_cpu };
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
pub(super) fn both_ends(nodes: &[Node], cpus: &[CpuList]) -> Cpus {
    let (server, client) = (cpus[0].clone(), cpus[1].clone());
    let clients = nodes.iter().zip(cpus).skip(1);
    let beside: Vec<usize> = clients
        .filter(|(it, _)| it.is_same_machine(&nodes[0]))
        .flat_map(|(_, cpus)| cpus.all().iter().copied())
        .collect();
    let on_core = |cpu: &usize| {
        let cores = server.all().iter().filter_map(|cpu| nodes[0].hello.cores.get(cpu));
        cores.flatten().any(|sibling| sibling == cpu)
    };
    let shared = beside.iter().any(|cpu| server.all().contains(cpu));
    let siblings = !shared && beside.iter().any(on_core);
    Cpus { server, client, shared, siblings, others: Vec::new() }
}

fn choose(
    cores: &BTreeMap<usize, Vec<usize>>,
    wanted: Option<&CpuList>,
    count: usize,
    taken: &[CpuList],
) -> Result<CpuList, String> {
    let used: Vec<usize> = taken.iter().flat_map(|cpus| cpus.all().iter().copied()).collect();
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
    // Rather beside another load generator than beside the server, which comes first.
    let servers = taken.first().map_or(&[][..], CpuList::all);
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
            let taken: Vec<CpuList> = taken.iter().copied().map(CpuList::one).collect();
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
        let told = |hosts: &[&str], all: &[(usize, Vec<usize>)]| {
            let nodes: Vec<Node> = hosts.iter().map(|boot_id| node(boot_id, all)).collect();
            let chosen = choose_cpus(&nodes, &Pin::default(), 1).unwrap();
            let Cpus { shared, siblings, .. } = both_ends(&nodes, &chosen);
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
            assert_eq!(told(hosts, all), expected, "{hosts:?} {all:?}");
        }
    }

    /// On one CPU they were measured, and nothing said so.
    #[test]
    fn a_cpu_that_was_asked_for_is_nobody_elses() {
        let cores = [(0, vec![0]), (1, vec![1])];
        let choose = |hosts: [&str; 2], server_cpu: Option<usize>, client_cpu: Option<usize>| {
            let [server_cpu, client_cpu] = [server_cpu, client_cpu].map(|it| it.map(CpuList::one));
            let pin = Pin { server_cpu, client_cpu };
            let chosen = choose_cpus(&hosts.map(|it| node(it, &cores)), &pin, 1)?;
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
