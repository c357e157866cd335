//! `twinring serve` on machines without IPv6, asked to listen on addresses of both families.

use crate::support::namespace::in_a_namespace;
use crate::support::*;
use std::collections::BTreeMap;
use testing::{Test, engine_tests, tests};

pub(crate) const TESTS: &[Test] = tests![an_address_in_use_is_an_error];
pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![
    a_kernel_without_ipv6_serves_the_addresses_of_ipv4,
    a_machine_whose_ipv6_is_switched_off_serves_the_addresses_of_ipv4
];

/// What the C library calls socket(2) and AF_INET6.
const SOCKET: i64 = libc::SYS_socket;
const INET6: u64 = libc::AF_INET6 as u64;

/// Starts each server on addresses of both families and on those of IPv6 only.
fn both_families(engine: &str, refusal: &str) {
    let site = http::Site::usual();
    let root = ["--root", site.path().to_str().expect("UTF-8")];
    for (service, more) in [("echo", &[][..]), ("http", &root[..]), ("udp", &[][..])] {
        let six = ["--listen", "[::1]:0"];
        let both = [&six[..], &["--listen", "127.0.0.1:0"]].concat();
        let server = Server::spawn(serving(twinring(), service, engine, &[&both, more].concat()));
        assert_eq!(server.addresses().len(), 1, "{service} {engine}");
        assert!(server.address().is_ipv4(), "{service} {engine}");
        let told = "not listening on [::1]:0: this machine has no IPv6";
        let ended = server.end();
        assert_eq!(ended.stderr.matches(told).count(), 1, "{}", ended.stderr);
        let mut alone = serving(twinring(), service, engine, &[&six, more].concat());
        let (code, _, told) = run_to_its_end(&mut alone);
        assert_eq!(code, Some(1), "{told}");
        assert!(told.contains(refusal) && told.contains("[::1]:0"), "{told}");
    }
}

/// Neither address was served.
fn a_kernel_without_ipv6_serves_the_addresses_of_ipv4(engine: &str) {
    let engine = engine.to_owned();
    // The filter is of this thread, and of the processes that it starts.
    let kernel = std::thread::spawn(move || {
        use seccompiler::*;
        let is_inet6 =
            SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, INET6).unwrap();
        let rules = BTreeMap::from([(SOCKET, vec![SeccompRule::new(vec![is_inet6]).unwrap()])]);
        let refuse = SeccompAction::Errno(libc::EAFNOSUPPORT as u32);
        let architecture = TargetArch::try_from(std::env::consts::ARCH).unwrap();
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, architecture).unwrap();
        apply_filter(&BpfProgram::try_from(filter).unwrap()).expect("a filter");
        both_families(&engine, "Address family not supported");
    });
    if let Err(panic) = kernel.join() {
        std::panic::resume_unwind(panic);
    }
}

fn a_machine_whose_ipv6_is_switched_off_serves_the_addresses_of_ipv4(engine: &str) {
    in_a_namespace(|| {
        std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").expect("a setting");
        both_families(engine, "Cannot assign requested address");
    });
}

/// An address that this machine does not have is an error, as before.
fn an_address_in_use_is_an_error() {
    // Otherwise it is left out, and the server runs.
    testing::needs_ipv6();
    let arguments = ["serve", "echo", "--listen", "127.0.0.1:0", "--listen", "[2001:db8::1]:0"];
    let (code, _, told) = run(&[&arguments[..], &["--allow", "::/0"]].concat());
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("no interface of this machine has this address"), "{told}");
}
