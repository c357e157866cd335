//! More connections than descriptors: those with a descriptor are served, the others wait in the
//! backlog, and all are served when descriptors are free again.

use crate::clients::{Clients, KINDS, Kind, OtherClient, Setup};
use crate::limits::{Usage, clients_leave_nothing, raise};
use crate::support::load::{Bounded, command, sound};
use crate::support::{limited, run_to_its_end, wait_until};
use rustix::process::Resource;
use testing::{Test, engine_tests};

pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![
    too_few_to_start_with_is_an_error,
    connections_without_a_descriptor_wait,
    a_load_reports_missing_descriptors
];

const DESCRIPTORS: u64 = 48;
const CLIENTS: usize = 120;

/// Memory that a server may keep after clients like those before: free space inside the C library's
/// heap.
const TOLERANCE_BYTES: u64 = 2 << 20;

fn exhaust(kind: Kind, engine: &str) {
    let few = limited(&format!("-n {DESCRIPTORS}"));
    let setup = Setup::start_with(few, kind, engine, &[]);
    let (server, target) = (&setup.server, &setup.target);
    let has_run_out = || server.descriptors() as u64 >= DESCRIPTORS - 2;
    let other = OtherClient::of(target);
    let clients = Clients::gather(target, CLIENTS);
    wait_until("it says that descriptors ran out", || server.stderr().contains("ulimit -n"));
    wait_until("it has taken what it can", has_run_out);
    let at_first = clients.served();
    assert!(at_first < CLIENTS, "descriptors were enough for all");
    // Descriptors return because clients disconnect.
    let mut refused = clients.refused();
    clients.end();
    // Descriptors return because the limit is raised: all clients are connected at once.
    let clients = Clients::gather(target, CLIENTS);
    wait_until("it has run out again", has_run_out);
    if raise(server, Resource::Nofile, 4096) {
        clients.wait_until_all_are_served();
    } else {
        // Root of a container often lacks it; the lower half needs no privilege.
        println!("limit not raised: that takes CAP_SYS_RESOURCE");
    }
    refused += clients.refused();
    clients.end();
    let growth = clients_leave_nothing(TOLERANCE_BYTES, || {
        Clients::gather(target, CLIENTS).end();
        Usage::at_rest_but_one(server, setup.listeners)
    });
    let served = other.end();
    let ended = setup.server.terminate();
    assert_eq!((ended.code, ended.count("open")), (Some(0), 0), "{}", ended.stderr);
    let stalls = ended.last["runtime_counters"]["accept_stalls"].as_u64().expect("a counter");
    assert!(stalls > 0 && ended.stderr.matches("ulimit -n").count() == 1, "{}", ended.stderr);
    println!(
        "{engine} {kind:?}: {CLIENTS} connections and {DESCRIPTORS} descriptors: {at_first} served at \
         first, all in the end; {refused} times 503 for want of one for a file; {served}; \
         {growth}"
    );
}

fn connections_without_a_descriptor_wait(engine: &str) {
    testing::needs_descriptors(500);
    KINDS.into_iter().for_each(|kind| exhaust(kind, engine));
}

fn too_few_to_start_with_is_an_error(engine: &str) {
    for service in ["echo", "udp"] {
        for descriptors in [4, 8, 9, 10, 11, 12] {
            let mut command = limited(&format!("-n {descriptors}"));
            command.args(["serve", service, "--listen", "127.0.0.1:0", "--engine", engine]);
            // If it does start, this ends it.
            let (code, _, told) = run_to_its_end(command.arg("--sandbox-check"));
            if told.contains("error while loading shared libraries") {
                // The parent left a descriptor open to this process, and so to the server.
                continue;
            }
            assert!(matches!(code, Some(0 | 1)), "{engine} {service}: {code:?} {told}");
            assert!(!told.contains("panicked"), "{engine} {service}: {told}");
            if code == Some(1) {
                assert!(told.contains("ulimit -n") || told.contains("open files"), "{told}");
            }
        }
    }
    println!("{engine}: 4 to 12 descriptors are enough, or an error");
}

fn a_load_reports_missing_descriptors(engine: &str) {
    let setup = Setup::start(Kind::Echo, "epoll", &[]);
    let target = setup.target.address.to_string();
    let load = command(engine, "tcp", &target, "-c 100 -d 300ms --warmup 100ms");
    let mut command = limited(&format!("-n {DESCRIPTORS}"));
    command.args(load.get_args()).stdin(std::process::Stdio::null());
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let output = Bounded(Some(command.spawn().expect("it starts"))).output();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!told.contains("panicked"), "{told}");
    let outcome = sound(output);
    let errors = outcome.errors();
    let said = outcome.result["first_error"].as_str().expect("a reason").to_owned();
    assert!(said.contains("Too many open files"), "{said}");
    assert!(matches!(&errors[..], [(kind, 1..100)] if kind == "connect"), "{errors:?}");
    println!("{engine}: 100 connections with {DESCRIPTORS} descriptors: {errors:?}: {said}");
}
