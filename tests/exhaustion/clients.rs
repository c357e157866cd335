//! Clients of the three kinds of connections, many at a time, and another client that is served
//! meanwhile.

use crate::support::http::{Site, get, read_response};
use crate::support::tls::{Identity, VERSIONS, secure_over};
use crate::support::{Server, assert_same, connect, pattern, ping, tls, wait_until};
use rustls::ClientConfig;
use std::fmt;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The kinds of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Echo,
    Http,
    Https,
}

pub(crate) const KINDS: [Kind; 3] = [Kind::Echo, Kind::Http, Kind::Https];

/// A server and the data for its clients.
pub(crate) struct Setup {
    pub(crate) server: Server,
    pub(crate) target: Target,
    /// Sockets of the server that listen.
    pub(crate) listeners: usize,
    _site: Site,
}

impl Setup {
    pub(crate) fn start(kind: Kind, engine: &str, arguments: &[&str]) -> Setup {
        Setup::start_with(Command::new(env!("CARGO_BIN_EXE_twinring")), kind, engine, arguments)
    }

    /// With a command that arguments can be added to.
    pub(crate) fn start_with(
        mut command: Command,
        kind: Kind,
        engine: &str,
        arguments: &[&str],
    ) -> Setup {
        let site = Site::usual();
        let identity = Identity::new();
        let service = if kind == Kind::Echo { "echo" } else { "http" };
        command.args(["serve", service, "--json", "--listen", "127.0.0.1:0", "--engine", engine]);
        if kind != Kind::Echo {
            command.arg("--root").arg(site.path());
        }
        if kind == Kind::Https {
            command.args(identity.arguments());
        }
        command.args(arguments);
        let server = Server::spawn(command);
        let address = match kind {
            Kind::Echo | Kind::Http => server.address(),
            Kind::Https => tls::encrypted(&server),
        };
        let trust = (kind == Kind::Https).then(|| Arc::new(identity.trust(&VERSIONS)));
        let listeners = server.addresses().len();
        Setup { server, target: Target { kind, address, trust }, listeners, _site: site }
    }
}

/// The address of a server, and its protocol.
#[derive(Clone)]
pub(crate) struct Target {
    kind: Kind,
    pub(crate) address: SocketAddr,
    trust: Option<Arc<ClientConfig>>,
}

impl Target {
    /// Connects, and shakes hands if that is the custom.
    pub(crate) fn connect(&self) -> Session {
        let stream = connect(self.address);
        match &self.trust {
            None => Session { kind: self.kind, line: Line::Plain(stream) },
            Some(trust) => {
                let client = secure_over(stream, trust).expect("a TLS handshake");
                Session { kind: self.kind, line: Line::Tls(Box::new(client)) }
            }
        }
    }
}

enum Line {
    Plain(TcpStream),
    Tls(Box<tls::Client>),
}

/// A client that is connected.
pub(crate) struct Session {
    kind: Kind,
    line: Line,
}

impl Session {
    /// Sends a request, and checks the answer: 1,000 bytes back, or a small file. False if the
    /// server has no descriptor for the file.
    pub(crate) fn ask(&mut self, number: u64) -> bool {
        match (&mut self.line, self.kind) {
            (Line::Plain(stream), Kind::Echo) => {
                ping(stream, &pattern(number, 1000));
                true
            }
            (Line::Plain(stream), _) => request(stream, "/hello.txt", HELLO),
            (Line::Tls(client), _) => request(&mut **client, "/hello.txt", HELLO),
        }
    }

    /// Requests more: 50,000 bytes back, or a file that the server has to open.
    pub(crate) fn request_much(&mut self, number: u64) -> bool {
        match (&mut self.line, self.kind) {
            (Line::Plain(stream), Kind::Echo) => {
                ping(stream, &pattern(number, 50_000));
                true
            }
            (Line::Plain(stream), _) => request(stream, "/large.bin", &LARGE),
            (Line::Tls(client), _) => request(&mut **client, "/large.bin", &LARGE),
        }
    }
}

/// The files of [`Site::usual`].
const HELLO: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyz";
static LARGE: LazyLock<Vec<u8>> = LazyLock::new(|| pattern(7, 700_001));

fn request(line: &mut (impl Read + Write), path: &str, content: &[u8]) -> bool {
    line.write_all(get(path, "").as_bytes()).expect("the server reads");
    line.flush().expect("the server reads");
    let answer = read_response(line, false);
    match answer.status {
        // First as one comparison: in debug builds the other one is slow.
        200 if answer.body == content => {}
        200 => assert_same(&answer.body, content),
        status => assert_eq!(status, 503, "{}", answer.head),
    }
    answer.status == 200
}

/// Concurrent clients, a thread each. Each repeats its request until it is served, reconnecting if
/// it was refused, and then stays connected until it is released.
pub(crate) struct Clients {
    served: Arc<AtomicUsize>,
    refused: Arc<AtomicUsize>,
    leave: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Clients {
    pub(crate) fn gather(target: &Target, count: usize) -> Clients {
        let mut clients = Clients {
            served: Arc::default(),
            refused: Arc::default(),
            leave: Arc::default(),
            threads: Vec::new(),
        };
        for number in 0..count as u64 {
            let (target, leave) = (target.clone(), Arc::clone(&clients.leave));
            let (served, refused) = (Arc::clone(&clients.served), Arc::clone(&clients.refused));
            let client = move || {
                let mut session = target.connect();
                while !session.request_much(number) {
                    refused.fetch_add(1, Relaxed);
                    drop(session);
                    std::thread::sleep(Duration::from_millis(20));
                    session = target.connect();
                }
                served.fetch_add(1, Relaxed);
                while !leave.load(Relaxed) {
                    std::thread::sleep(Duration::from_millis(5));
                }
            };
            let thread = std::thread::Builder::new().stack_size(256 << 10).spawn(client);
            clients.threads.push(thread.expect("a thread"));
        }
        clients
    }

    /// Clients that were served.
    pub(crate) fn served(&self) -> usize {
        self.served.load(Relaxed)
    }

    /// How often a client was refused.
    pub(crate) fn refused(&self) -> usize {
        self.refused.load(Relaxed)
    }

    /// Disconnects clients that have been served.
    pub(crate) fn release(&self) {
        self.leave.store(true, Relaxed);
    }

    pub(crate) fn wait_until_all_are_served(&self) {
        let all = self.threads.len();
        wait_until("all are served", || self.served() == all || self.has_failed());
    }

    fn has_failed(&self) -> bool {
        self.threads.iter().any(|client| client.is_finished() && !self.leave.load(Relaxed))
    }

    /// Waits until all are served and disconnected.
    pub(crate) fn end(self) {
        self.release();
        self.threads.into_iter().for_each(|client| client.join().expect("a client was served"));
    }
}

/// A client that was connected before, and must still be served.
pub(crate) struct OtherClient {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Served>,
}

/// The results of the other client.
pub(crate) struct Served {
    times: Vec<Duration>,
    refused: usize,
}

impl OtherClient {
    pub(crate) fn of(target: &Target) -> OtherClient {
        let mut session = target.connect();
        assert!(session.ask(0), "nothing has run out yet");
        OtherClient::new(move |number| session.ask(number))
    }

    /// Sends a request every 2 ms; `ask` returns whether it was answered or refused.
    pub(crate) fn new(mut ask: impl FnMut(u64) -> bool + Send + 'static) -> OtherClient {
        let stop = Arc::new(AtomicBool::new(false));
        let asked_to_stop = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut served = Served { times: Vec::new(), refused: 0 };
            // At least once, however late this thread gets a CPU.
            loop {
                let began = Instant::now();
                match ask(served.times.len() as u64) {
                    true => served.times.push(began.elapsed()),
                    false => served.refused += 1,
                }
                if asked_to_stop.load(Relaxed) {
                    return served;
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        OtherClient { stop, thread }
    }

    /// Fails if the client was not served.
    pub(crate) fn end(self) -> Served {
        self.stop.store(true, Relaxed);
        let mut served = self.thread.join().expect("the other client was served");
        assert!(!served.times.is_empty(), "the other client was never served");
        served.times.sort_unstable();
        served
    }
}

impl Served {
    /// How often.
    pub(crate) fn count(&self) -> usize {
        self.times.len()
    }
}

impl fmt::Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let p99 = self.times[(self.times.len() - 1) * 99 / 100];
        write!(
            f,
            "others served {} times, p99 {:.2} ms",
            self.times.len(),
            p99.as_secs_f64() * 1e3
        )?;
        if self.refused > 0 {
            write!(f, ", refused {} times", self.refused)?;
        }
        Ok(())
    }
}
