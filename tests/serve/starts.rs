//! How servers start: what each prints, and why one does not; two engines on the same addresses.

use crate::support::http::*;
use crate::support::namespace::in_a_namespace;
use crate::support::tls::Identity;
use crate::support::*;
use std::os::fd::OwnedFd;

pub(crate) const TESTS: &[Test] = tests![
    wrong_arguments_are_named,
    failures_state_the_cause_and_a_fix,
    certificates_that_cannot_be_used_are_named,
    both_engines_serve_files_and_the_end_has_the_counters_of_each,
    datagrams_are_reflected_by_both,
    sockets_that_are_not_passed_or_do_not_listen_are_an_error,
    a_kernel_without_ipv6_serves_the_addresses_of_ipv4,
    a_machine_whose_ipv6_is_switched_off_serves_the_addresses_of_ipv4;
    engines:
    ready_statistics_and_final_lines_keep_the_contract,
    a_passed_socket_is_served_by_all_workers_and_outlives_the_server
];

fn wrong_arguments_are_named() {
    for service in ["echo", "udp"] {
        for (wrong, words) in [
            ("--listen 127.0.0.1:99999", "--listen"),
            ("--engine kqueue", "--engine"),
            ("--workers 0", "--workers"),
            ("--pin 3-1", "--pin"),
            ("--pin 1000", "may not use CPU 1000: choose from "),
            ("--allow 10.0.0.1/8", "or any"),
            ("--uring multishot=perhaps", "--uring"),
            ("--epoll trigger=edge", "--epoll"),
            ("--drain-timeout soon", "--drain-timeout"),
            ("--listen 0.0.0.0:0", "--allow CIDR"),
            ("--listen 127.0.0.1:9 --listen 127.0.0.1:9", "127.0.0.1:9 stands twice"),
            ("--sandbox off,ring", "expected off, or some of ring, seccomp"),
        ] {
            assert_ends(&format!("serve {service} {wrong}"), 2, &[words]);
        }
    }
    for (arguments, words) in [
        ("echo --max-connections 0", "--max-connections"),
        ("echo --idle-timeout 0s", "--idle-timeout"),
        ("echo --engine all", "expected auto, io_uring, epoll or both"),
        ("udp --max-datagram 15", "--max-datagram"),
        ("udp --buffers 1000", "--buffers"),
        ("udp --rcvbuf 0", "--rcvbuf"),
        ("udp --gro perhaps", "--gro"),
        ("udp --dscp 64", "--dscp"),
        ("http", "--root"),
        ("http --root / --listen 127.0.0.1:9 --listen 127.0.0.1:9", "127.0.0.1:9 stands twice"),
        ("http --root / --listing xml", "expected html or off"),
        ("http --root / --listen fd:", "expected fd:NAME"),
        ("http --root / --listen-tls 127.0.0.1:0", "--tls-cert"),
    ] {
        assert_ends(&format!("serve {arguments}"), 2, &[words]);
    }
}

fn failures_state_the_cause_and_a_fix() {
    let site = Site::usual();
    let root = site.path().display();
    let fifo = site.file("fifo");
    nix::unistd::mkfifo(&*fifo, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    let (echo, reflector) = (Server::echo("epoll", &[]), Server::udp("epoll", &[]));
    let holder = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let taken = holder.local_addr().expect("bound");
    for (arguments, words) in [
        (format!("http --root {root} --listen {taken}"), "ss -ltnp"),
        (format!("http --root {root} --listen 127.0.0.1:0 --admin {taken}"), "another socket"),
        (format!("http --root {root}/hello.txt"), "hello.txt"),
        (format!("http --root {root} --listen systemd"), "no sockets were passed"),
        // A pipe without a reader is not waited for.
        (format!("http --root {root} --access-log {fifo}"), "cannot open access-log"),
        (format!("http --root {root} --access-log {fifo} --check"), "cannot open access-log"),
        ("http --root /no/such/directory".to_owned(), "/no/such/directory"),
        ("echo --listen 192.0.2.1:7400 --allow any".to_owned(), "ip address"),
        ("udp --listen 192.0.2.1:7400 --allow any".to_owned(), "ip address"),
    ] {
        assert_ends(&format!("serve {arguments}"), 1, &[words]);
    }
    for workers in [1, 2] {
        for (service, address, command) in
            [("echo", echo.address(), "ss -ltnp"), ("udp", reflector.address(), "ss -lunp")]
        {
            let arguments = format!("serve {service} --listen {address} --workers {workers}");
            let words = [&address.to_string(), "in use", command, "choose another port"];
            assert_ends(&arguments, 1, &words);
        }
    }
    // An address that this machine does not have is no address of a family that it does not have.
    testing::needs_ipv6();
    let other = "serve echo --listen 127.0.0.1:0 --listen [2001:db8::1]:0 --allow ::/0";
    assert_ends(other, 1, &["no interface of this machine has this address"]);
    testing::needs_io_uring();
    for (more, words) in
        [("--workers 1", "needs --workers 2"), ("--uring sqpoll_idle_ms=50", "sqpoll")]
    {
        assert_ends(&format!("serve echo --listen 127.0.0.1:0 --engine both {more}"), 1, &[words]);
    }
}

fn certificates_that_cannot_be_used_are_named() {
    let (site, identity, other) = (Site::usual(), Identity::new(), Identity::new());
    let [.., certificate, _, key] = identity.arguments();
    let [.., other] = other.arguments();
    let root = site.path().display();
    // An address that is in use: had it been bound first, that would be the complaint.
    let holder = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = holder.local_addr().expect("bound");
    for (certificate, key, words) in [
        (certificate, other, "it is not that of the certificate"),
        (key, key, "the file has none in PEM format"),
        ("/nowhere", key, "No such file"),
        (certificate, "/proc", "is a directory"),
    ] {
        let files = format!("--tls-cert {certificate} --tls-key {key}");
        let serve = format!("serve http --root {root} --listen-tls {address} {files}");
        assert_ends(&serve, 1, &[words]);
    }
    let files = format!("--tls-cert {certificate} --tls-key {key}");
    assert_ends(&format!("serve http --root {root} {files}"), 2, &["--listen-tls"]);
    // `--check` passed it. (It is of the year 2000.)
    site.write("expired.pem", include_bytes!("expired.pem"));
    let files = site.file("expired.pem");
    let files = format!("--listen-tls 127.0.0.1:0 --tls-cert {files} --tls-key {files}");
    assert_ends(&format!("serve http --check --root {root} {files}"), 1, &["has expired"]);
}

fn ready_statistics_and_final_lines_keep_the_contract(engine: &str) {
    let site = Site::usual();
    let stats = ["--stats", "1", "--workers", "2"];
    for (service, server) in [
        ("echo", Server::echo(engine, &stats)),
        ("udp", Server::udp(engine, &stats)),
        ("http", Server::http(engine, site.path(), &stats)),
    ] {
        let ready = server.ready.clone();
        let found = ["schema", "service", "engine"].map(|name| ready[name].as_str());
        assert_eq!(found, ["twinring.serve/1", service, engine].map(Some));
        assert!(ready["workers"] == 2 && ready["features"].is_object(), "{ready}");
        assert!(ready["why_not"].is_null(), "{ready}");
        let stats = server.next_line();
        let ended = server.end();
        assert_eq!((&stats["event"], &ended.last["event"]), (&"stats".into(), &"final".into()));
        for group in ["service_counters", "runtime_counters"] {
            let names = |line: &Value| -> Vec<String> {
                line[group].as_object().expect("an object").keys().cloned().collect()
            };
            assert_eq!(names(&stats), names(&ended.last), "{service} {group}");
        }
    }
}

/// The sum of a counter over both engines; both have some of it.
fn sum(ended: &Ended, field: &str) -> f64 {
    let engines = &ended.last["engines"];
    let of = |engine: &str| engines[engine][field].as_f64().expect("a number");
    let (uring, epoll) = (of("io_uring"), of("epoll"));
    assert!(uring > 0.0 && epoll > 0.0, "{field}: {engines}");
    uring + epoll
}

fn both_engines_serve_files_and_the_end_has_the_counters_of_each() {
    testing::needs_io_uring();
    let (_site, server) = served_on("both", &["--stats", "1"]);
    assert_eq!(server.ready["engine"], "io_uring+epoll");
    assert_eq!(server.ready["workers"], 2);
    let answer = ask(&server, &get("/hello.txt", "")).body;
    for _ in 1..60 {
        assert_same(&ask(&server, &get("/hello.txt", "")).body, &answer);
    }
    let ended = server.terminate();
    ended.expect(0, &[("requests", 60)]);
    assert_eq!(ended.last["engines"]["io_uring"]["workers"], 1);
    for (counter, value) in [("units", 60.0), ("connections", 60.0)] {
        assert_eq!(sum(&ended, counter), value, "{}", ended.last);
    }
    let calls = ended.last["runtime_counters"]["syscalls"].as_f64();
    assert_eq!(Some(sum(&ended, "syscalls")), calls, "{}", ended.last);
    let bytes = (ended.count("received_bytes") + ended.count("sent_bytes")) as f64;
    assert_eq!(sum(&ended, "bytes"), bytes, "{}", ended.last);
    let cpu = |engine: &str, mode: &str| ended.last["engines"][engine][mode].as_f64();
    for engine in ["io_uring", "epoll"] {
        let all = cpu(engine, "cpu_user_s").zip(cpu(engine, "cpu_system_s"));
        assert!(all.is_some_and(|(user, system)| user + system > 0.0), "{}", ended.last);
    }
}

fn datagrams_are_reflected_by_both() {
    testing::needs_io_uring();
    let server = Server::udp("both", &[]);
    // Between two sockets the kernel chooses by a hash of the addresses.
    for source in 0..40 {
        let client = datagrams::client(server.address());
        (0..5).for_each(|number| {
            datagrams::reflected(&client, &datagrams::numbered(source, number, 100));
        });
    }
    assert_eq!(sum(&server.end(), "units"), 200.0);
}

/// Starts each server on addresses of both families and on those of IPv6 only.
fn both_families(refusal: &str) {
    let site = Site::usual();
    let root = ["--root", &site.file(".")];
    for (service, more) in [("echo", &[][..]), ("http", &root[..]), ("udp", &[][..])] {
        let six = ["--listen", "[::1]:0"];
        let both = [&six[..], &["--listen", "127.0.0.1:0"]].concat();
        let server = Server::spawn(serving(twinring(), service, ENGINE, &[&both, more].concat()));
        assert!(server.addresses().iter().all(SocketAddr::is_ipv4), "{}", server.ready);
        let told = "not listening on [::1]:0: this machine has no IPv6";
        let ended = server.end();
        assert_eq!(ended.stderr.matches(told).count(), 1, "{}", ended.stderr);
        let mut alone = serving(twinring(), service, ENGINE, &[&six, more].concat());
        assert_ended(&mut alone, 1, &[refusal, "[::1]:0"]);
    }
}

/// Neither address was served.
fn a_kernel_without_ipv6_serves_the_addresses_of_ipv4() {
    // The filter is of this thread, and of the processes that it starts.
    let kernel = thread::spawn(|| {
        use seccompiler::*;
        let inet6 = libc::AF_INET6 as u64;
        let is_inet6 = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, inet6);
        let rule = SeccompRule::new(vec![is_inet6.unwrap()]).unwrap();
        let rules = [(libc::SYS_socket, vec![rule])].into();
        let refuse = SeccompAction::Errno(libc::EAFNOSUPPORT as u32);
        let architecture = TargetArch::try_from(std::env::consts::ARCH).unwrap();
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, architecture).unwrap();
        apply_filter(&BpfProgram::try_from(filter).unwrap()).expect("a filter");
        both_families("Address family not supported");
    });
    kernel.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

fn a_machine_whose_ipv6_is_switched_off_serves_the_addresses_of_ipv4() {
    in_a_namespace(|| {
        fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").expect("a setting");
        both_families("Cannot assign requested address");
    });
}

/// `serve http` under this script of a shell, which passes sockets on.
fn passing(script: &str) -> Command {
    let mut command = Command::new("bash");
    command.args(["-c", script, "bash", TWINRING, "serve", "http", "--json"]);
    command
}

fn a_passed_socket_is_served_by_all_workers_and_outlives_the_server(engine: &str) {
    let site = Site::usual();
    let socket = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = socket.local_addr().expect("an address");
    for listen in
        [&["--listen", "systemd"][..], &["--listen", "fd:http", "--listen", "127.0.0.1:0"]]
    {
        // Nothing is refused before the start, nor between two servers.
        let mut early = begin(address, get("/hello.txt", ""));
        // No other process of the tests gets it: it is standard input until the server starts.
        let mut serve = passing("exec 3<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\"");
        serve.args(["--engine", engine, "--workers", "2", "--root", &site.file(".")]).args(listen);
        let descriptor = OwnedFd::from(socket.try_clone().expect("a descriptor"));
        serve.env("LISTEN_FDNAMES", "http").stdin(descriptor);
        let server = Server::spawn(serve);
        assert!(server.addresses().contains(&address), "{engine}: {}", server.ready);
        assert_eq!(read_response(&mut early, false).status, 200, "{engine}");
        drop(early);
        for address in server.addresses().into_iter().cycle().take(50) {
            assert!(talk(address, get("/", "")).starts_with(b"HTTP/1.1 200"));
        }
        server.end_with(&[("accepted", 51)]);
    }
    drop(connect(address));
}

fn sockets_that_are_not_passed_or_do_not_listen_are_an_error() {
    let site = Site::usual();
    for (script, words) in [
        // Passed to another process: a variable that was inherited by chance.
        ("LISTEN_PID=1 LISTEN_FDS=1 exec \"$@\"", "no sockets were passed"),
        ("LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\" 3</dev/null", "passed socket 0 (`"),
    ] {
        let serve = ["--listen", "systemd", "--root", &site.file(".")];
        assert_ended(passing(script).args(serve), 1, &[words]);
    }
}
