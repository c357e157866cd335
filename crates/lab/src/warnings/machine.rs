//! What the machine does to the figures.

use super::kinds::{Warning, WarningKind};
use crate::experiment::NetKind;
use crate::host::HostRecord;
use crate::machine::Fingerprint;
use crate::result::{Bundle, Resumed};

pub(super) fn warnings(bundle: &Bundle) -> Vec<Warning> {
    let of_setup = [resumed(bundle), loopback(bundle), shared_core(bundle)].into_iter().flatten();
    if bundle.hosts.is_empty() {
        return of_setup.chain(of_machine(&bundle.machine)).collect();
    }
    let of_host = |host: &HostRecord| {
        let name = host.name.clone();
        let with_name = move |it: Warning| Warning { what: format!("{name}: {}", it.what), ..it };
        of_machine(&host.machine).map(with_name)
    };
    of_setup.chain(bundle.hosts.iter().flat_map(of_host)).collect()
}

fn of_machine(machine: &Fingerprint) -> impl Iterator<Item = Warning> + use<> {
    let found = [virtual_machine(machine), turbo(machine), mitigations(machine)];
    found.into_iter().flatten()
}

/// That the lab was started several times, and whether between other hosts.
fn resumed(bundle: &Bundle) -> Option<Warning> {
    let names = |hosts: &[HostRecord]| hosts.iter().map(|it| it.name.clone()).collect::<Vec<_>>();
    let mut before = names(&bundle.hosts);
    let mut part = |it: &Resumed| {
        let now = names(&it.hosts);
        let hosts = if now == before { "" } else { " between other hosts" };
        before = now;
        format!("from run {} on at {}{hosts}", it.from_run, it.started)
    };
    let parts: Vec<String> = bundle.resumed.iter().map(&mut part).collect();
    (!parts.is_empty()).then(|| {
        let what = format!("it began at {} and was resumed: {}", bundle.started, parts.join("; "));
        Warning::of(WarningKind::Resumed, what)
    })
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
