//! What the machine and the settings were.

use crate::experiment::NetKind;
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
            fact("network", format!("to other machines, server at {}", network.server_ip));
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
    fact("CPUs used", cpus(bundle));
    for (name, value) in machine_facts(&bundle.machine) {
        fact(&name, value);
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

/// A line for each machine: what a reader has to know of it.
pub(super) fn machines(bundle: &Bundle) -> Vec<String> {
    vec![format!("{}, Twinring {}", in_short(&bundle.machine), bundle.lab_version)]
}

/// Processors and kernel.
fn in_short(machine: &Fingerprint) -> String {
    let kernel = machine.kernel.split(' ').next().unwrap_or_default();
    let virtual_machine = if machine.virtualisation.is_some() { ", virtual" } else { "" };
    format!("{} CPUs {}{virtual_machine}, Linux {kernel}", machine.cpus_online, machine.cpu_model)
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
