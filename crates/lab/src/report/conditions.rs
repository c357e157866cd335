//! What the machine, the hosts and the settings were.

use crate::clock::Offset;
use crate::experiment::NetKind;
use crate::host::{HostRecord, HostRole, Interface};
use crate::machine::Fingerprint;
use crate::result::{Bundle, Occasion};

/// The conditions, as name and value.
pub(super) fn conditions(bundle: &Bundle) -> Vec<(String, String)> {
    let mut facts: Vec<(String, String)> = Vec::new();
    let mut fact = |name: &str, value: String| {
        if !value.is_empty() {
            facts.push((name.to_owned(), value));
        }
    };
    for network in &bundle.networks {
        if network.kind == NetKind::Hosts {
            fact("network", format!("between hosts, server at {}", network.server_ip));
            continue;
        }
        let steering = match (&*network.server_rps, &*network.client_rps) {
            ("" | "0", "" | "0") => match &network.napi_cpus[..] {
                [server, client] => {
                    format!("polled by threads of the kernel on CPU {server} and CPU {client}")
                }
                _ => "no receive steering".to_owned(),
            },
            (server, client) => format!("receive steering: server {server}, client {client}"),
        };
        let mtu = network.mtu_bytes.map_or(String::new(), |mtu| format!(", MTU {mtu} B"));
        fact(&format!("network {}", network.kind), format!("{steering}{mtu}"));
        for (name, value) in &network.settings {
            fact(&format!("{}: {name}", network.kind), value.replace('\t', " "));
        }
    }
    fact("why not another network", bundle.network_fallback.clone().unwrap_or_default());
    for (number, occasion) in bundle.occasions.iter().enumerate() {
        let Occasion { started, machine, seed, .. } = occasion;
        let what =
            format!("{started}, {}, Linux {}, seed {seed}", machine.cpu_model, machine.kernel);
        fact(&format!("occasion {number}"), what);
    }
    if bundle.hosts.is_empty() {
        fact("CPUs used", cpus(bundle));
        for (name, value) in machine_facts(&bundle.machine) {
            fact(&name, value);
        }
    }
    for host in &bundle.hosts {
        for (name, value) in host_facts(host).into_iter().chain(machine_facts(&host.machine)) {
            fact(&format!("{} {}: {name}", host.role, host.name), value);
        }
    }
    facts
}

fn interrupts(accounted: Option<bool>) -> &'static str {
    match accounted {
        Some(true) => "counted exactly by the kernel, charged to no process",
        Some(false) => "sampled by the kernel, charged to whom they interrupt",
        None => "",
    }
}

/// What is reported of every machine.
fn machine_facts(machine: &Fingerprint) -> Vec<(String, String)> {
    let fact = |name: &str, value: String| (name.to_owned(), value);
    let virtual_machine = machine.virtualisation.clone().unwrap_or_else(|| "no".to_owned());
    let mut facts = vec![
        fact("processor", machine.cpu_model.clone()),
        fact("processors online", machine.cpus_online.to_string()),
        fact("caches", machine.caches.join(", ")),
        fact("memory", format!("{} MiB", machine.memory_kib >> 10)),
        fact("virtual machine", virtual_machine),
        fact("kernel", machine.kernel.clone()),
        fact("kernel command line", machine.kernel_command_line.clone()),
        fact("clock source", machine.clocksource.clone()),
        fact("time of interrupts", interrupts(machine.irq_time_accounting).to_owned()),
        fact("frequency governor", machine.governor.clone().unwrap_or_default()),
        fact("boost", machine.boost.clone().unwrap_or_default()),
        fact("load average at the start", machine.load_average.clone()),
    ];
    facts.extend(machine.limits.iter().map(|(name, value)| fact(name, value.clone())));
    facts.extend(machine.sysctls.iter().map(|(name, value)| fact(name, value.clone())));
    let mitigations = machine.mitigations.iter();
    facts.extend(
        mitigations.map(|(name, value)| fact(&format!("mitigation: {name}"), value.clone())),
    );
    facts
}

/// What is reported of one of several hosts.
fn host_facts(host: &HostRecord) -> Vec<(String, String)> {
    let fact = |name: &str, value: String| (name.to_owned(), value);
    let mut facts = vec![
        fact("name", host.hostname.clone()),
        fact("CPU used", host.cpus.to_string()),
        fact("address", host.address.map_or_else(String::new, |address| address.to_string())),
    ];
    if let Some(interface) = &host.interface {
        let Interface { name, mtu_bytes, driver, receive_steering } = interface;
        let mtu = mtu_bytes.map_or(String::new(), |mtu| format!(", MTU {mtu} B"));
        let driver = driver.as_ref().map_or(String::new(), |driver| format!(", {driver}"));
        facts.push(fact("network device", format!("{name}{mtu}{driver}")));
        facts.push(fact("receive steering", receive_steering.join(", ")));
    }
    let Offset { offset_ns, uncertainty_us } = host.clock;
    let offset_s = offset_ns as f64 / 1e9;
    let clock = format!("{offset_s:.6} s ahead of the lab's, known to {uncertainty_us:.0} us");
    facts.push(fact("clock", clock));
    facts.push(fact("version", host.version.clone()));
    facts.extend(host.settings.iter().map(|(name, value)| fact(name, value.replace('\t', " "))));
    facts
}

/// A line for each machine: what a reader has to know of it.
pub(super) fn machines(bundle: &Bundle) -> Vec<String> {
    if bundle.hosts.is_empty() {
        let version = &bundle.lab_version;
        return vec![format!("{}, Twinring {version}", in_short(&bundle.machine))];
    }
    hosts(bundle)
}

/// Processors and kernel.
fn in_short(machine: &Fingerprint) -> String {
    let kernel = machine.kernel.split(' ').next().unwrap_or_default();
    let virtual_machine = if machine.virtualisation.is_some() { ", virtual" } else { "" };
    format!("{} CPUs {}{virtual_machine}, Linux {kernel}", machine.cpus_online, machine.cpu_model)
}

fn hosts(bundle: &Bundle) -> Vec<String> {
    let one = |host: &HostRecord| {
        let HostRecord { role, name, cpus, machine, .. } = host;
        let address = host.address.map_or(String::new(), |address| format!(" ({address})"));
        let kernel = machine.kernel.split(' ').next().unwrap_or_default();
        let virtual_machine = if machine.virtualisation.is_some() { ", virtual" } else { "" };
        let same = host.same_machine_as.as_ref();
        let same = same.map_or(String::new(), |other| format!("; the same machine as {other}"));
        format!(
            "{role} {name}{address}: CPU {cpus} of {}, {}{virtual_machine}, Linux {kernel}{same}",
            machine.cpus_online, machine.cpu_model
        )
    };
    let servers = bundle.hosts.iter().filter(|host| host.role == HostRole::Server).count();
    let several = (servers > 1).then(|| {
        format!(
            "{servers} servers, to which load generators are assigned in turn; the results of all servers are added"
        )
    });
    several.into_iter().chain(bundle.hosts.iter().map(one)).collect()
}

fn cpus(bundle: &Bundle) -> String {
    let cpus = &bundle.cpus;
    let mut text = format!("server on CPU {}, load generator on CPU {}", cpus.server, cpus.client);
    if cpus.shared {
        text.push_str("; there is one CPU only, which both share: not comparable with two");
    } else if cpus.siblings {
        text.push_str("; both are threads of one core and slow each other down");
    }
    text
}
