//! More connections than descriptors: those that have one are served, the others wait in the
//! backlog, and all are served when descriptors are there again.

use crate::crowd::{Crowd, KINDS, Kind, Scene, Witness};
use crate::limits::{Usage, crowds_leave_nothing, make_room_for_crowds, raise};
use crate::support::load::{Bounded, command, engines, sound};
use crate::support::{ENGINES, limited, run_to_its_end, wait_until};
use rustix::process::Resource;

const DESCRIPTORS: u64 = 48;
const CROWD: usize = 120;

/// Memory that a server has not given back after a crowd like one before it: what is free inside
/// the C library's heap.
const TOLERANCE_BYTES: u64 = 2 << 20;

fn exhaust(kind: Kind, engine: &str) {
    let few = limited(&format!("-n {DESCRIPTORS}"));
    let scene = Scene::start_with(few, kind, engine, &[]);
    let (server, target) = (&scene.server, &scene.target);
    let has_run_out = || server.descriptors() as u64 >= DESCRIPTORS - 2;
    let witness = Witness::of(target);
    let crowd = Crowd::gather(target, CROWD);
    wait_until("it says that descriptors ran out", || server.stderr().contains("ulimit -n"));
    wait_until("it has taken what it can", has_run_out);
    let at_first = crowd.served();
    assert!(at_first < CROWD, "descriptors were enough for everybody");
    // They come back because others leave.
    let mut refused = crowd.refused();
    crowd.end();
    // They come back because there are more: all are there at once.
    let crowd = Crowd::gather(target, CROWD);
    wait_until("it has run out again", has_run_out);
    if raise(server, Resource::Nofile, 4096) {
        crowd.wait_until_all_are_served();
    } else {
        // Root of a container often lacks it; the half above needs nothing.
        println!("limit not raised: that takes CAP_SYS_RESOURCE");
    }
    refused += crowd.refused();
    crowd.end();
    let growth = crowds_leave_nothing(TOLERANCE_BYTES, || {
        Crowd::gather(target, CROWD).end();
        Usage::at_rest_but_one(server, scene.listeners)
    });
    let served = witness.end();
    let ended = scene.server.terminate();
    assert_eq!((ended.code, ended.count("open")), (Some(0), 0), "{}", ended.stderr);
    let stalls = ended.last["runtime_counters"]["accept_stalls"].as_u64().expect("a counter");
    assert!(stalls > 0 && ended.stderr.matches("ulimit -n").count() == 1, "{}", ended.stderr);
    println!(
        "{engine} {kind:?}: {CROWD} connections and {DESCRIPTORS} descriptors: {at_first} served at \
         first, all in the end; {refused} times 503 for want of one for a file; {served}; \
         {growth}"
    );
}

#[test]
fn connections_without_a_descriptor_wait() {
    make_room_for_crowds();
    for engine in ENGINES {
        KINDS.into_iter().for_each(|kind| exhaust(kind, engine));
    }
}

#[test]
fn too_few_to_start_with_is_an_error() {
    for engine in ENGINES {
        for service in ["echo", "udp"] {
            for descriptors in [4, 8, 9, 10, 11, 12] {
                let mut command = limited(&format!("-n {descriptors}"));
                command.args(["serve", service, "--listen", "127.0.0.1:0", "--engine", engine]);
                // If it does start, this ends it.
                let (code, _, told) = run_to_its_end(command.arg("--sandbox-check"));
                if told.contains("error while loading shared libraries") {
                    // Somebody left a descriptor open to us, and so to it.
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
}

#[test]
fn a_load_reports_missing_descriptors() {
    let scene = Scene::start(Kind::Echo, "epoll", &[]);
    for engine in engines() {
        let target = scene.target.address.to_string();
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
}
