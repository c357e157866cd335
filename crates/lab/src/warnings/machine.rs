//! What the machine does to the figures.

use super::kinds::{Warning, WarningKind};
use crate::experiment::NetKind;
use crate::machine::Fingerprint;
use crate::result::Bundle;

pub(super) fn warnings(bundle: &Bundle) -> Vec<Warning> {
    let of_setup = [loopback(bundle), shared_core(bundle)].into_iter().flatten();
    of_setup.chain(of_machine(&bundle.machine)).collect()
}

fn of_machine(machine: &Fingerprint) -> impl Iterator<Item = Warning> + use<> {
    let found = [virtual_machine(machine), turbo(machine), mitigations(machine)];
    found.into_iter().flatten()
}

fn loopback(bundle: &Bundle) -> Option<Warning> {
    let used = bundle.networks.iter().any(|network| network.kind == NetKind::Lo);
    let what = "on `lo` the kernel does the receive work on the CPU of the sender: a part of the \
                server's cost is charged to the load generator, and vice versa";
    used.then(|| Warning::of(WarningKind::LoopbackAccounting, what.to_owned()))
}

fn shared_core(bundle: &Bundle) -> Option<Warning> {
    let cpus = &bundle.cpus;
    let what = match (cpus.shared, cpus.siblings) {
        (true, _) => format!("server and load generator share CPU {}", cpus.server),
        (false, true) => format!(
            "CPU {} of the server and CPU {} of the load generator are threads of one core: each \
             is slower while the other is busy",
            cpus.server, cpus.client
        ),
        (false, false) => return None,
    };
    Some(Warning::of(WarningKind::SharedCore, what))
}

fn virtual_machine(machine: &Fingerprint) -> Option<Warning> {
    let product = machine.virtualisation.as_ref()?;
    let what = format!("the machine is virtual ({product})");
    Some(Warning::of(WarningKind::VirtualMachine, what))
}

fn turbo(machine: &Fingerprint) -> Option<Warning> {
    let boost = machine.boost.as_deref().is_some_and(|boost| matches!(boost, "on" | "1"));
    let governor = machine.governor.as_deref().filter(|governor| *governor != "performance");
    let what = match (boost, governor) {
        (false, None) => return None,
        (true, None) => "boost is on: the clock follows heat and load".to_owned(),
        (false, Some(governor)) => format!("the frequency governor is {governor}"),
        (true, Some(governor)) => {
            format!("boost is on and the frequency governor is {governor}: the clock follows load")
        }
    };
    Some(Warning::of(WarningKind::Turbo, what))
}

fn mitigations(machine: &Fingerprint) -> Option<Warning> {
    let active = machine.mitigations.iter().filter(|(_, state)| state.starts_with("Mitigation"));
    let names: Vec<&str> = active.map(|(name, _)| name.as_str()).collect();
    let what = format!(
        "the kernel mitigates {} of {} vulnerabilities ({})",
        names.len(),
        machine.mitigations.len(),
        names.join(", ")
    );
    (!names.is_empty()).then(|| Warning::of(WarningKind::Mitigations, what))
}
