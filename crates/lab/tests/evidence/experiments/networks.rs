//! Networks of an experiment: made where rights allow, counted, and replaced or refused otherwise.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use crate::common::{Sketch, bundle_in, calm, fakes, files, runs, summary, voids, wait_until};
use testing::{Test, tests};
use twinring_lab::{NetKind, Outcome, verify};

pub(crate) const TESTS: &[Test] = tests![
    namespaces_are_used_where_rights_allow_and_said_otherwise,
    each_network_does_what_it_says_and_is_counted,
    a_network_that_cannot_be_had_is_an_error_that_says_so
];

fn namespaces_are_used_where_rights_allow_and_said_otherwise() {
    let sketch = Sketch { net: "auto", ..Sketch::default() };
    let passes = |outcome: &Outcome| voids(&summary(outcome).cells[0], "echo").is_empty();
    let out = tempfile::tempdir().unwrap();
    let outcome = sketch.run(out.path()).unwrap();
    let network = &outcome.bundle.networks[0];
    match &outcome.bundle.network_fallback {
        Some(why) => {
            assert_eq!(network.kind, NetKind::Lo);
            testing::needs("root", why);
        }
        None => {
            assert_eq!(network.kind, NetKind::Rps);
            assert!(!network.server_rps.is_empty() && !network.client_rps.is_empty());
            assert!(passes(&outcome), "{:?}", summary(&outcome).cells[0].findings);
        }
    }
    let devices = files(Path::new("/sys/class/net"));
    assert!(!devices.iter().any(|name| name == "server0" || name == "client0"), "{devices:?}");
}

fn each_network_does_what_it_says_and_is_counted() {
    testing::needs_root("it changes users, mounts or networks");
    let out = tempfile::tempdir().unwrap();
    // Of fewer than a thousand answers the audits of a network say nothing.
    let sketch = Sketch { net: "all", window_s: 1.5, ..Sketch::default() };
    let outcome = sketch.run(out.path()).unwrap();
    let kinds: Vec<NetKind> = outcome.bundle.networks.iter().map(|it| it.kind).collect();
    assert_eq!(kinds, [NetKind::Rps, NetKind::Lo, NetKind::Napi]);
    let napi = outcome.bundle.networks.last().unwrap();
    let cpus = [&outcome.bundle.cpus.server, &outcome.bundle.cpus.client].map(|it| it.first());
    assert!(napi.napi_cpus == cpus && napi.server_rps == "0", "{napi:?}");
    for cell in &summary(&outcome).cells {
        // Steered packets are counted for the whole machine: on loopback those of others void it.
        if cell.cell.net != NetKind::Lo {
            assert_eq!(voids(cell, "echo"), [], "{}: {:?}", cell.cell, cell.findings);
        }
    }
    for kind in kinds {
        let of_kind = runs(&outcome).into_iter().filter(|run| run.cell.net == kind);
        let counts = of_kind.filter_map(|run| {
            let cpu = run.cpu?;
            assert!(cpu.server.minor_faults.is_some());
            Some([cpu.server_cpu.counts, cpu.client_cpu.as_ref()?.counts])
        });
        // A process that has ended by the time of the last sample has no network to count in.
        let counts = counts.flatten().find(|counts| counts.tcp_retransmits.is_some());
        let counts = counts.unwrap_or_else(|| panic!("nothing is counted on {kind}"));
        assert!(counts.net_rx_runs.is_some(), "{counts:?}");
        assert_eq!(counts.device_drops, Some(0), "{counts:?}");
        assert_eq!(counts.napi_threads_ns.is_some_and(|ns| ns > 0), kind == NetKind::Napi);
    }
    let verified = verify(&outcome.directory).unwrap();
    assert!(verified.holds(), "{verified}");
}

fn a_network_that_cannot_be_had_is_an_error_that_says_so() {
    // A thread without rights: as another user inside a user namespace of its own would be.
    let out = tempfile::tempdir().unwrap();
    let experiment = Sketch { net: "rps", ..Sketch::default() }.text();
    let file = out.path().join("sketch.toml");
    fs::write(&file, experiment).unwrap();
    testing::needs_root("it changes users, mounts or networks");
    fs::set_permissions(out.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let copy = out.path().join("fakes");
    fs::copy(fakes(), &copy).unwrap();
    let run = |net: &str| {
        fs::write(&file, Sketch { net, window_s: 1.0, ..Sketch::default() }.text()).unwrap();
        let mut command = Command::new(&copy);
        command.arg("lab").arg(&file).arg(out.path().join(net));
        std::os::unix::process::CommandExt::uid(&mut command, 65_534);
        // While it was copied another test may have started a process, which has the copy open for
        // writing until it runs its own program.
        wait_until("the copy can be run", || match command.output() {
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => None,
            output => Some(output.unwrap()),
        })
    };
    let refused = run("rps");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("rps") && said.contains("unshare") && said.contains("EPERM"), "{said}");
    let fallen_back = run("auto");
    let said = String::from_utf8_lossy(&fallen_back.stdout);
    // Lines are broken where they are long.
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("plain loopback") && said.contains("on lo"), "{said}");
    // Ticks of 10 ms took the place of the idle clock, and nobody was told.
    let bundle = bundle_in(&out.path().join("auto")).unwrap();
    let report = twinring_lab::markdown(&calm(&bundle));
    assert!(report.contains("CPU time in ticks of 10 ms"), "{report}");
    let stored = fs::read_to_string(bundle.join("bundle.json")).unwrap();
    assert!(stored.contains("\"idle_clock\": \"proc_stat\""), "{stored}");
    let runs = fs::read_to_string(bundle.join("runs.jsonl")).unwrap();
    assert!(runs.contains("\"busy_unsure_s\":0.0"), "{runs}");
    assert_eq!(fallen_back.status.code(), Some(0));
}
