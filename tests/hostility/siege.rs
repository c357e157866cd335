//! Common to all attacks: another client that is served meanwhile, and the resources of the server
//! before and after.

use crate::support::datagrams::client;
use crate::support::http::{ask_on, get};
use crate::support::*;

/// Memory that an attack may leave behind beyond what the one before it left. Allocators keep what was
/// freed for the next time, and do not find the same holes twice; a leak comes with each attack.
const KEPT_BYTES_MAX: u64 = 4 << 20;

/// Memory that may be left beyond the server's memory before any attack and its pool: the free memory that the command lets
/// glibc keep at the end of a heap, and what debug builds have in quarantine. Other C libraries keep the memory of closed
/// connections.
const GROWN_BYTES_MAX: u64 = if cfg!(target_env = "gnu") { (64 + 32) << 20 } else { u64::MAX };

/// Attacks of a kind until one leaves no more than the one before.
const ATTACKS_MAX: u64 = 5;

/// How many connections an attack has at once: `TWINRING_ATTACKERS`, or 250.
pub(crate) fn attackers() -> usize {
    let descriptors = twinring_services::raise_descriptor_limit().expect("a limit");
    let asked = std::env::var("TWINRING_ATTACKERS").ok();
    let asked = asked.map_or(250, |text| text.parse().expect("TWINRING_ATTACKERS: a number"));
    // Both ends have as many, and others want to be served.
    asked.min(descriptors as usize - 500).max(20)
}

/// The resources of a server at one moment.
#[derive(Clone, Copy, Debug)]
struct Holding {
    memory_bytes: u64,
    descriptors: usize,
    slots: u64,
    buffers: u64,
    connections: u64,
}

impl Holding {
    fn of(server: &Server) -> Holding {
        let statistics = server.statistics();
        let runtime = |name: &str| statistics["runtime_counters"][name].as_u64().expect(name);
        Holding {
            memory_bytes: server.memory_bytes(),
            descriptors: server.descriptors(),
            slots: runtime("slots_in_use"),
            buffers: runtime("buffers_in_use"),
            // A reflector of datagrams has no connections.
            connections: statistics["service_counters"]["open"].as_u64().unwrap_or(0),
        }
    }
}

/// A harmless client of this server: each call sends a request, and checks its answer.
fn other_client(server: &Server) -> Box<dyn FnMut(u64)> {
    let address = server.address();
    match server.ready["service"].as_str() {
        Some("echo") => {
            let stream = connect(address);
            Box::new(move |number| ping(&stream, &pattern(number, 64)))
        }
        Some("http") => {
            let mut stream = connect(address);
            Box::new(move |_| {
                let answer = ask_on(&mut stream, &get("/hello.txt", ""));
                assert_eq!(answer.body, b"0123456789abcdefghijklmnopqrstuvwxyz");
            })
        }
        // In a flood, the kernel drops datagrams of all clients: lost ones are sent again.
        _ => {
            let socket = client(address);
            socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a socket");
            Box::new(move |number| {
                let (datagram, mut answer) = (pattern(number, 64), [0; 2000]);
                wait_until("it is answered", || {
                    socket.send(&datagram).expect("room");
                    // Perhaps behind answers to what was given up, and sent again, too early.
                    while let Ok(length) = socket.recv(&mut answer) {
                        assert_eq!(length, 64, "the answer of another client");
                        if answer[..length] == datagram {
                            return true;
                        }
                    }
                    false
                });
            })
        }
    }
}

/// Attacks, while another client asks and gets its answers; returns the most memory that was in use.
fn attacked(server: &Server, attack: impl FnOnce()) -> u64 {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let peak = scope.spawn(|| {
            let (mut peak, mut ask) = (0, other_client(server));
            // Once at least, however late this thread comes to its turn.
            for number in (0..).take_while(|number| *number == 0 || !done.load(Ordering::Relaxed)) {
                // Now and then by a new connection.
                if number % 100 == 99 {
                    ask = other_client(server);
                }
                ask(number);
                peak = peak.max(server.memory_bytes());
                thread::sleep(Duration::from_millis(1));
            }
            peak
        });
        let at_the_end = AtTheEnd(&done);
        attack();
        drop(at_the_end);
        peak.join().expect("the server lives, and no answer is wrong")
    })
}

/// Attacks a server, which prints statistics every second, until an attack leaves no more memory than the one before,
/// with everything that the crate's documentation promises. While it is attacked it may need `growth_bytes_max` of
/// memory beyond the baseline. `attack` is told its number, and returns when its connections are gone. Returns how the
/// server ended, and how many attacks it was.
pub(crate) fn withstand(
    what: &str,
    server: Server,
    growth_bytes_max: u64,
    attack: impl Fn(&Server, u64),
) -> (Ended, u64) {
    // Attacks that run at the same time have a few hundred connections each.
    testing::needs_descriptors(5_000);
    let what = format!("{what} on {}", server.ready["engine"]);
    let begin = Holding::of(&server);
    let settled = |descriptors: usize| {
        let mut now = begin;
        let is_free = waited(|| {
            now = Holding::of(&server);
            (now.connections, now.buffers, now.slots) == (0, 0, begin.slots)
                && now.descriptors <= descriptors
        });
        assert!(is_free, "{what} leaves something: {begin:?}, now {now:?}");
        now
    };
    attacked(&server, || attack(&server, 1));
    let mut before = settled(usize::MAX);
    let mut left_bytes = vec![before.memory_bytes];
    for number in 2..=ATTACKS_MAX {
        let peak = attacked(&server, || attack(&server, number));
        let after = settled(before.descriptors);
        let grown = peak.saturating_sub(begin.memory_bytes);
        assert!(grown <= growth_bytes_max, "{what}: {grown} more bytes than {growth_bytes_max}");
        let kept = after.memory_bytes.saturating_sub(begin.memory_bytes);
        let is_back = kept.saturating_sub(server.pool_bytes()) <= GROWN_BYTES_MAX;
        if is_back && after.memory_bytes <= before.memory_bytes + KEPT_BYTES_MAX {
            return (server.end(), number);
        }
        left_bytes.push(after.memory_bytes);
        before = after;
    }
    panic!("{what}: each attack left more, or all too much: {begin:?}, then {left_bytes:?} bytes");
}
