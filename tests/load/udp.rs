//! `twinring load udp` against reflectors of known behaviour, on both engines: loss, duplicates,
//! reordering and corruption must be detected, and the counts must always balance.

use crate::support::load::*;
use crate::support::*;

pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![
    known_faults_of_each_stream_are_found,
    wrong_replies_are_counted_by_kind_and_the_first_is_named,
    silence_is_loss_and_a_closed_port_is_reported,
    streams_for_which_there_is_no_descriptor_are_named,
    a_correct_reflector_has_no_fault_and_all_counts_balance
];

/// A reflector of its own kind: for each packet it is given, with its number among those of the
/// same sender, it returns what to send back. Ends with the test process. One for each run: another
/// run may get a port that a sender had before.
fn reflector(
    mut behave: impl FnMut(usize, Vec<u8>) -> Vec<Vec<u8>> + Send + 'static,
) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket2::SockRef::from(&socket).set_recv_buffer_size(4 << 20).unwrap();
    let address = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut bytes = vec![0; 65_536];
        let mut numbers: HashMap<SocketAddr, usize> = HashMap::new();
        loop {
            // Errors are about senders that have gone.
            let Ok((length, from)) = socket.recv_from(&mut bytes) else { continue };
            let number = numbers.entry(from).or_default();
            for reply in behave(*number, bytes[..length].to_vec()) {
                let _gone = socket.send_to(&reply, from);
            }
            *number += 1;
        }
    });
    address
}

impl Outcome {
    fn packets(&self, name: &str) -> u64 {
        self.number(&format!("/packets/{name}"))
    }
}

fn run(engine: &str, target: SocketAddr, arguments: &str) -> Outcome {
    finished(command(engine, "udp", &target.to_string(), arguments))
}

fn a_correct_reflector_has_no_fault_and_all_counts_balance(engine: &str) {
    let server = Server::udp("auto", &[]);
    // With the packets that are due in 300 ms: no more than the 1024 that leave in one go, however late.
    let cases = [
        ("", 15),
        ("--streams 100 --pps 30", 900),
        ("--streams 7 --pps 33.333333 -t 2", 70),
        ("--pps 2000 -s 12", 600),
        ("--pps 2000 -s 1400 --gso", 600),
        ("--streams 20 --tick 5ms --no-verify", 300),
        ("--streams 5 --local 127.0.0.2,127.0.0.3", 75),
        ("--streams 5 --pending 8", 75),
        ("--pps 1000 --pending 200", 300),
        ("--streams 20 --uring multishot=off", 300),
        ("--streams 3 --rcvbuf 100000 --sndbuf 100000", 45),
    ];
    for (case, due) in cases {
        let common = "-d 300ms --warmup 60ms --per-stream";
        let one = || run(engine, server.address(), &format!("{common} {case}"));
        // Where others take the CPU for that long, packets are too late or too many at once.
        let mut outcomes = std::iter::repeat_with(one).take(5);
        let outcome = outcomes.find(|it| it.packets("received") == due);
        let outcome = outcome.unwrap_or_else(|| panic!("{case}: not all came back, five times"));
        if case.contains("--pending") {
            // Receives of which each packet wakes all may complete in any order.
            assert_eq!(outcome.code, 0, "{case}");
        } else {
            let faults = ["refused", "duplicated", "reordered", "mismatched", "lost"];
            for fault in faults.into_iter().chain(["foreign", "late"]) {
                assert_eq!(outcome.packets(fault), 0, "{case}: {fault} in {}", outcome.result);
            }
            outcome.expect(0, &[]);
            let answered = outcome.number("/settings/streams");
            outcome.has(&[("/streams/answered", answered)]);
        }
        assert_eq!(outcome.packets("due"), due, "{case}");
        assert_eq!(outcome.result["engine"], engine);
        let rows = outcome.result["streams"]["all"].as_array().unwrap().len() as u64;
        assert_eq!(rows, outcome.number("/streams/opened"), "{case}");
    }
}

fn known_faults_of_each_stream_are_found(engine: &str) {
    // Of each stream's 30 packets: the 3rd is lost, the 7th comes three times, the 10th behind
    // the 12th.
    let mut held: HashMap<u32, Vec<u8>> = HashMap::new();
    let target = reflector(move |number, packet| {
        let ssrc = u32::from_be_bytes(packet[8..12].try_into().unwrap());
        match number {
            2 => vec![],
            6 => vec![packet.clone(), packet.clone(), packet],
            9 => {
                held.insert(ssrc, packet);
                vec![]
            }
            11 => vec![packet, held.remove(&ssrc).unwrap()],
            _ => vec![packet],
        }
    });
    let arguments = "--streams 10 --pps 100 -d 300ms --warmup 0s --drain 1200ms --per-stream";
    let outcome = run(engine, target, arguments);
    assert_eq!(outcome.code, 0, "plain loss is a result: {}", outcome.result);
    for row in outcome.result["streams"]["all"].as_array().unwrap() {
        let count = |name: &str| row[name].as_u64().unwrap();
        let counts = ["sent", "received", "lost", "duplicated", "reordered"].map(count);
        assert_eq!(counts, [30, 29, 1, 2, 1], "{engine}: {row}");
    }
    assert_eq!(outcome.result["streams"]["worst"].as_array().unwrap().len(), 10);
}

fn wrong_replies_are_counted_by_kind_and_the_first_is_named(engine: &str) {
    let wrong = || {
        reflector(|number, mut packet| match number {
            // A byte too many, one too few, and another one.
            3 => vec![[&packet[..], b"!"].concat()],
            4 => vec![packet[..171].to_vec()],
            5 => {
                packet[100] ^= 1;
                vec![packet]
            }
            // Of no stream, and no packets at all.
            6 => {
                let mut stranger = packet.clone();
                stranger[8] ^= 0x80;
                vec![stranger, b"?".to_vec(), Vec::new(), packet]
            }
            _ => vec![packet],
        })
    };
    let arguments = "--streams 3 -d 300ms --warmup 0s --drain 1200ms";
    let outcome = run(engine, wrong(), arguments);
    assert_eq!((outcome.code, outcome.packets("mismatched")), (1, 9), "{}", outcome.result);
    // A wrong reply is none.
    assert_eq!((outcome.packets("foreign"), outcome.packets("lost")), (9, 9));
    let first = outcome.result["first_error"].as_str().unwrap();
    assert!(first.contains("sent 172 bytes, got back 173"), "{first}");
    assert!(outcome.stderr.contains("9 replies differ"), "{}", outcome.stderr);
    let unchecked = run(engine, wrong(), &format!("{arguments} --no-verify"));
    assert_eq!((unchecked.code, unchecked.packets("mismatched")), (0, 0));
    assert_eq!(unchecked.packets("lost"), 0);
}

fn silence_is_loss_and_a_closed_port_is_reported(engine: &str) {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let silent_address = silent.local_addr().unwrap();
    let arguments = "--streams 5 -d 300ms --warmup 100ms --drain 100ms";
    let outcome = run(engine, silent_address, arguments);
    assert_eq!(outcome.code, 1, "{}", outcome.result);
    outcome.has(&[("/packets/lost", 75), ("/streams/answered", 0)]);
    assert!(outcome.stderr.contains("no packet was answered"), "{}", outcome.stderr);
    // A port that was free a moment ago, of an address that no other test uses.
    let closed = UdpSocket::bind("127.0.0.62:0").unwrap().local_addr().unwrap();
    let outcome = run(engine, closed, arguments);
    assert_eq!((outcome.code, outcome.packets("due")), (1, 75), "{}", outcome.result);
    assert!(outcome.number("/errors/icmp_refused") > 0, "{}", outcome.result);
    assert!(outcome.stderr.contains("ICMP errors"), "{}", outcome.stderr);
}

fn streams_for_which_there_is_no_descriptor_are_named(engine: &str) {
    let server = Server::udp("auto", &[]);
    let (target, few) = (server.address().to_string(), limited("-n 60"));
    let arguments = "--streams 100 -d 200ms --warmup 0s --drain 1200ms";
    let outcome = finished(command_by(few, engine, "udp", &target, arguments));
    let opened = outcome.number("/streams/opened");
    assert!((1..60).contains(&opened), "{}", outcome.result);
    outcome.has(&[("/streams/answered", opened), ("/packets/due", 10 * opened)]);
    let first = outcome.result["first_error"].as_str().unwrap();
    assert!(first.contains("ulimit -n"), "{first}");
}
