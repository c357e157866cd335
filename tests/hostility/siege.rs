//! Common to all attacks: another client that is served meanwhile, and the resources of the server
//! before and after.

use crate::support::datagrams::client;
use crate::support::http::{ask_on_buffered, get};
use crate::support::{AtTheEnd, Ended, PATIENCE, Server, connect, pattern, ping};
use std::io::BufReader;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Memory that an attack may leave behind beyond what the one before it left. Allocators keep what was
/// freed for the next time, and do not find the same holes twice; a leak comes with each attack.
const KEPT_BYTES_MAX: u64 = 4 << 20;

/// Memory that may be left beyond the server's memory before any attack and its pool: the free memory that the command lets
/// glibc keep at the end of a heap. Other C libraries keep the memory of closed connections.
const GROWN_BYTES_MAX: u64 = if cfg!(target_env = "gnu") { 64 << 20 } else { u64::MAX };

/// Attacks of a kind until one leaves no more than the one before.
const ATTACKS_MAX: u64 = 5;

/// Time between two looks at the memory of the server.
const SAMPLE_PERIOD: Duration = Duration::from_millis(20);

/// Requests of the other client on one connection, and the pause between them.
const REQUESTS_PER_CONNECTION: usize = 100;
const PAUSE: Duration = Duration::from_millis(1);

/// How long the other client waits for a datagram before it sends it again.
const DATAGRAM_PATIENCE: Duration = Duration::from_millis(100);

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

    /// Without connections, and without resources kept for them.
    fn is_free(&self, slots: u64) -> bool {
        (self.connections, self.buffers, self.slots) == (0, 0, slots)
    }
}

/// The most memory that was in use while an attack ran.
fn peak_bytes(server: &Server, done: &AtomicBool) -> u64 {
    let mut peak = 0;
    while !done.load(Ordering::Relaxed) {
        peak = peak.max(server.memory_bytes());
        thread::sleep(SAMPLE_PERIOD);
    }
    peak
}

/// A harmless client: one request after the other, and periodically a new connection. Every answer
/// is checked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Others {
    Echo(SocketAddr),
    /// Asks for `/hello.txt` of the usual site.
    Http(SocketAddr),
    /// Sends lost datagrams again: in a flood, the kernel drops those of all clients.
    Udp(SocketAddr),
}

/// The observations of the other client.
#[derive(Debug, Default)]
pub(crate) struct Experience {
    /// From the request, or from the begin of its connection if it is the first there, to the last
    /// byte of the answer.
    latencies: Vec<Duration>,
    sent_again: u64,
}

impl Experience {
    /// Requests that were answered.
    pub(crate) fn count(&self) -> usize {
        self.latencies.len()
    }

    pub(crate) fn sent_again(&self) -> u64 {
        self.sent_again
    }

    /// The latency that this share of the requests did not exceed.
    pub(crate) fn quantile(&self, share: f64) -> Duration {
        let rank = (self.latencies.len() as f64 * share).ceil() as usize;
        self.latencies[rank.clamp(1, self.latencies.len()) - 1]
    }
}

impl Others {
    pub(crate) fn experience_until(self, done: &AtomicBool) -> Experience {
        let mut experience = Experience::default();
        // Once at least, however late this thread comes to its turn.
        loop {
            match self {
                Others::Echo(address) => echo(address, &mut experience, done),
                Others::Http(address) => fetch(address, &mut experience, done),
                Others::Udp(address) => reflect(address, &mut experience, done),
            }
            if done.load(Ordering::Relaxed) {
                break;
            }
        }
        experience.latencies.sort_unstable();
        experience
    }
}

/// Calls `request` with the number of each request, and notes how long it took.
fn request_each(experience: &mut Experience, done: &AtomicBool, mut request: impl FnMut(u64)) {
    let mut asked = Instant::now();
    for _ in 0..REQUESTS_PER_CONNECTION {
        request(experience.latencies.len() as u64);
        experience.latencies.push(asked.elapsed());
        if done.load(Ordering::Relaxed) {
            break;
        }
        thread::sleep(PAUSE);
        asked = Instant::now();
    }
}

fn echo(address: SocketAddr, experience: &mut Experience, done: &AtomicBool) {
    let mut stream = None;
    request_each(experience, done, |number| {
        let stream = stream.get_or_insert_with(|| connect(address));
        ping(stream, &pattern(number, 64));
    });
}

fn fetch(address: SocketAddr, experience: &mut Experience, done: &AtomicBool) {
    let mut stream = None;
    request_each(experience, done, |_| {
        let stream = stream.get_or_insert_with(|| BufReader::new(connect(address)));
        let answer = ask_on_buffered(stream, &get("/hello.txt", ""));
        assert_eq!(answer.status, 200);
        assert_eq!(answer.body, b"0123456789abcdefghijklmnopqrstuvwxyz");
    });
}

fn reflect(address: SocketAddr, experience: &mut Experience, done: &AtomicBool) {
    let socket = client(address);
    socket.set_read_timeout(Some(DATAGRAM_PATIENCE)).expect("a socket");
    let mut sent_again = 0;
    request_each(experience, done, |number| {
        let datagram = pattern(number, 64);
        let began = Instant::now();
        socket.send(&datagram).expect("room");
        let mut answer = [0; 2000];
        loop {
            match socket.recv(&mut answer) {
                Ok(length) if answer[..length] == datagram => break,
                // An answer to what was given up, and sent again, too early.
                Ok(length) => assert_eq!(length, datagram.len(), "the answer of another client"),
                Err(_) => {
                    assert!(began.elapsed() < PATIENCE, "never answered");
                    sent_again += 1;
                    socket.send(&datagram).expect("room");
                }
            }
        }
    });
    experience.sent_again += sent_again;
}

/// A server and what it has to withstand.
pub(crate) struct Siege {
    attack: &'static str,
    engine: String,
    server: Server,
    others: Others,
    growth_bytes_max: u64,
}

impl Siege {
    /// Of a server that prints statistics every second, whose other client is one of `others`. While
    /// it is attacked it may need `growth_bytes_max` of memory beyond the baseline.
    pub(crate) fn new(
        attack: &'static str,
        server: Server,
        others: fn(SocketAddr) -> Others,
        growth_bytes_max: u64,
    ) -> Siege {
        // Attacks that run at the same time have a few hundred connections each.
        testing::needs_descriptors(5_000);
        let engine = server.ready["engine"].as_str().expect("a name").to_owned();
        let others = others(server.address());
        Siege { attack, engine, server, others, growth_bytes_max }
    }

    /// Runs the attack again and again, until it leaves no more memory than the time before, with
    /// everything that the crate's documentation promises. `attack` returns when its connections are
    /// gone. Returns how the server ended, and how many attacks it was.
    pub(crate) fn withstand(self, attack: impl Fn(&Server)) -> (Ended, u64) {
        let begin = Holding::of(&self.server);
        self.run(&attack);
        let mut before = self.settled("the first attack", |now| now.is_free(begin.slots));
        let mut left_bytes = vec![before.memory_bytes];
        for attacks in 2..=ATTACKS_MAX {
            let (peak, others) = self.run(&attack);
            let after = self.settled("an attack", |now| {
                now.is_free(begin.slots) && now.descriptors <= before.descriptors
            });
            let grown = peak.saturating_sub(begin.memory_bytes);
            assert!(
                grown <= self.growth_bytes_max,
                "{} on {}: {grown} bytes more, allowed are {}",
                self.attack,
                self.engine,
                self.growth_bytes_max
            );
            let grown = after.memory_bytes.saturating_sub(begin.memory_bytes);
            let is_back = grown.saturating_sub(self.server.pool_bytes()) <= GROWN_BYTES_MAX;
            if is_back && after.memory_bytes <= before.memory_bytes + KEPT_BYTES_MAX {
                self.print(peak.saturating_sub(begin.memory_bytes), &others);
                assert!(!others.latencies.is_empty(), "the other client was not served");
                return (self.end(), attacks);
            }
            left_bytes.push(after.memory_bytes);
            before = after;
        }
        panic!(
            "{} on {}: each attack left more, or all too much; {} bytes before, then {left_bytes:?}",
            self.attack, self.engine, begin.memory_bytes
        );
    }

    /// Attacks, and looks on.
    fn run(&self, attack: &impl Fn(&Server)) -> (u64, Experience) {
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let peak = scope.spawn(|| peak_bytes(&self.server, &done));
            let others = scope.spawn(|| self.others.experience_until(&done));
            let at_the_end = AtTheEnd(&done);
            attack(&self.server);
            drop(at_the_end);
            let sound = "no wrong answer";
            (peak.join().expect("the server lives"), others.join().expect(sound))
        })
    }

    /// Waits until the counters match.
    fn settled(&self, what: &str, settled: impl Fn(&Holding) -> bool) -> Holding {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let holding = Holding::of(&self.server);
            if settled(&holding) {
                return holding;
            }
            let (attack, engine) = (self.attack, &self.engine);
            assert!(Instant::now() < deadline, "{attack} on {engine}, after {what}: {holding:?}");
        }
    }

    /// How long others waited: the machine's figures, which are not judged.
    fn print(&self, grown_bytes: u64, others: &Experience) {
        let [p50, p99, max] =
            [0.5, 0.99, 1.0].map(|share| others.quantile(share).as_secs_f64() * 1e3);
        println!(
            "{:<27} {:<8} others waited, ms: p50 {p50:.2}, p99 {p99:.2}, max {max:.2}, of {} requests, {} sent again; \
             {:.1} MiB more in use",
            self.attack,
            self.engine,
            others.latencies.len(),
            others.sent_again,
            grown_bytes as f64 / f64::from(1 << 20),
        );
    }

    fn end(self) -> Ended {
        let ended = self.server.terminate();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert_eq!(ended.last["event"], "final");
        for left in ["slots_in_use", "buffers_in_use"] {
            assert_eq!(ended.last["runtime_counters"][left], 0, "{}", ended.last);
        }
        let counters = &ended.last["service_counters"];
        assert_eq!(counters["accepted"], counters["closed"], "{}", ended.last);
        ended
    }
}
