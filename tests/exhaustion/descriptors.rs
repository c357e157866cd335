//! More connections than descriptors: those with a descriptor are served, the others wait in the
//! backlog, and all are served when descriptors are free again.

use crate::clients::{Clients, KINDS, Kind, Setup, beside_another};
use crate::limits::{Usage, clients_leave_nothing, raise};
use crate::support::load::{Bounded, command, sound};
use crate::support::{Server, limited, run_to_its_end, serving, wait_until};
use rustix::process::Resource;
use testing::{Test, engine_tests, tests};

pub(crate) const TESTS: &[Test] =
    tests![too_few_to_start_with_is_an_error, a_load_reports_missing_descriptors];
pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![connections_without_a_descriptor_wait];

const DESCRIPTORS: u64 = 48;
const CLIENTS: usize = 120;

/// Memory that a server may keep after clients like those before: free space inside the C library's
/// heap.
const TOLERANCE_BYTES: u64 = 2 << 20;

fn exhaust(kind: Kind, engine: &str) {
    let setup = Setup::start(limited(&format!("-n {DESCRIPTORS}")), kind, engine, &[]);
    let (server, target) = (&setup.server, &setup.target);
    let has_run_out = || server.descriptors() as u64 >= DESCRIPTORS - 2;
    let mut other = target.connect();
    beside_another(
        move |number| other.ask(number),
        || {
            let clients = Clients::gather(target, CLIENTS);
            wait_until("it says so", || server.stderr().contains("ulimit -n"));
            wait_until("it has taken what it can", has_run_out);
            assert!(clients.served() < CLIENTS, "descriptors were enough for all");
            // Descriptors return because clients disconnect.
            clients.end();
            // Descriptors return because the limit is raised: all clients are connected at once.
            let clients = Clients::gather(target, CLIENTS);
            wait_until("it has run out again", has_run_out);
            // Root of a container often lacks CAP_SYS_RESOURCE; the rest needs no privilege.
            if raise(server, Resource::Nofile, 4096) {
                clients.wait_until_all_are_served();
            }
            clients.end();
            clients_leave_nothing(TOLERANCE_BYTES, || {
                Clients::gather(target, CLIENTS).end();
                Usage::at_rest_but_one(server, setup.listeners)
            });
        },
    );
    let ended = setup.server.end();
    let stalls = ended.last["runtime_counters"]["accept_stalls"].as_u64().expect("a counter");
    assert!(stalls > 0 && ended.stderr.matches("ulimit -n").count() == 1, "{}", ended.stderr);
}

fn connections_without_a_descriptor_wait(engine: &str) {
    testing::needs_descriptors(500);
    KINDS.into_iter().for_each(|kind| exhaust(kind, engine));
}

fn too_few_to_start_with_is_an_error() {
    for service in ["echo", "udp"] {
        for descriptors in [4, 8, 9, 10, 11, 12] {
            let few = limited(&format!("-n {descriptors}"));
            let mut command = serving(few, service, "auto", &["--listen", "127.0.0.1:0"]);
            // If it does start, this ends it.
            let (code, _, told) = run_to_its_end(command.arg("--sandbox-check"));
            if told.contains("error while loading shared libraries") {
                // The parent left a descriptor open to this process, and so to the server.
                continue;
            }
            assert!(matches!(code, Some(0 | 1)), "{service}: {code:?} {told}");
            assert!(!told.contains("panicked"), "{service}: {told}");
            if code == Some(1) {
                assert!(told.contains("ulimit -n") || told.contains("open files"), "{told}");
            }
        }
    }
}

fn a_load_reports_missing_descriptors() {
    let server = Server::echo("epoll", &[]);
    let target = server.address().to_string();
    let load = command("auto", "tcp", &target, "-c 100 -d 300ms --warmup 100ms");
    let mut command = limited(&format!("-n {DESCRIPTORS}"));
    command.args(load.get_args()).stdin(std::process::Stdio::null());
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let output = Bounded(Some(command.spawn().expect("it starts"))).output();
    let outcome = sound(output);
    let errors = outcome.errors();
    let said = outcome.result["first_error"].as_str().expect("a reason").to_owned();
    assert!(said.contains("Too many open files"), "{said}");
    assert!(matches!(&errors[..], [(kind, 1..100)] if kind == "connect"), "{errors:?}");
}
