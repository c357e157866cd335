//! Clients of the three kinds of connections, many at a time, and another client that is served
//! meanwhile.

use crate::support::http::{Site, get, read_response};
use crate::support::tls::{Identity, VERSIONS, secure_over};
use crate::support::{AtTheEnd, Server, assert_same, connect, pattern, serving, tls, wait_until};
use rustls::ClientConfig;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::thread::JoinHandle;
use std::time::Duration;

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
    /// With a command that arguments can be added to.
    pub(crate) fn start(command: Command, kind: Kind, engine: &str, more: &[&str]) -> Setup {
        let (site, identity) = (Site::usual(), Identity::new());
        let service = if kind == Kind::Echo { "echo" } else { "http" };
        let listen = ["--listen", "127.0.0.1:0"];
        let mut command = serving(command, service, engine, &[&listen[..], more].concat());
        if kind != Kind::Echo {
            command.arg("--root").arg(site.path());
        }
        let trust = (kind == Kind::Https).then(|| {
            command.args(identity.arguments());
            Arc::new(identity.trust(&VERSIONS))
        });
        let server = Server::spawn(command);
        let address = if trust.is_some() { tls::encrypted(&server) } else { server.address() };
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

trait Line: Read + Write + Send {}
impl<T: Read + Write + Send> Line for T {}

/// A client that is connected, and has shaken hands if that is the custom.
pub(crate) struct Session {
    kind: Kind,
    line: Box<dyn Line>,
}

impl Target {
    pub(crate) fn connect(&self) -> Session {
        let stream = connect(self.address);
        let line: Box<dyn Line> = match &self.trust {
            None => Box::new(stream),
            Some(trust) => Box::new(secure_over(stream, trust).expect("a TLS handshake")),
        };
        Session { kind: self.kind, line }
    }
}

/// A file of [`Site::usual`].
static LARGE: LazyLock<Vec<u8>> = LazyLock::new(|| pattern(7, 700_001));

impl Session {
    /// Requests 1,000 bytes back, or a file that is kept in memory; and checks the answer.
    pub(crate) fn ask(&mut self, number: u64) -> bool {
        self.request(&pattern(number, 1000), "/hello.txt", b"0123456789abcdefghijklmnopqrstuvwxyz")
    }

    /// Requests more: 50,000 bytes back, or a file that the server has to open. False if it has no descriptor for
    /// the file.
    pub(crate) fn request_much(&mut self, number: u64) -> bool {
        self.request(&pattern(number, 50_000), "/large.bin", &LARGE)
    }

    fn request(&mut self, echoed: &[u8], path: &str, content: &[u8]) -> bool {
        if self.kind == Kind::Echo {
            self.line.write_all(echoed).expect("the server reads");
            let mut back = vec![0; echoed.len()];
            self.line.read_exact(&mut back).expect("an echo");
            assert_same(&back, echoed);
            return true;
        }
        self.line.write_all(get(path, "").as_bytes()).expect("the server reads");
        self.line.flush().expect("the server reads");
        let answer = read_response(&mut self.line, false);
        match answer.status {
            200 => assert_same(&answer.body, content),
            status => assert_eq!(status, 503, "{}", answer.head),
        }
        answer.status == 200
    }
}

/// Concurrent clients, a thread each. Each repeats its request until it is served, reconnecting if
/// it was refused, and then stays connected until it is released.
pub(crate) struct Clients {
    served: Arc<AtomicUsize>,
    leave: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Clients {
    pub(crate) fn gather(target: &Target, count: usize) -> Clients {
        let (served, leave) = <(Arc<AtomicUsize>, Arc<AtomicBool>)>::default();
        let client = |number| {
            let (target, served, leave) = (target.clone(), Arc::clone(&served), Arc::clone(&leave));
            let client = move || {
                let mut session = target.connect();
                while !session.request_much(number) {
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
            thread.expect("a thread")
        };
        let threads = (0..count as u64).map(client).collect();
        Clients { served, leave, threads }
    }

    /// Clients that were served.
    pub(crate) fn served(&self) -> usize {
        self.served.load(Relaxed)
    }

    pub(crate) fn wait_until_all_are_served(&self) {
        let has_failed = || self.threads.iter().any(JoinHandle::is_finished);
        wait_until("all are served", || self.served() == self.threads.len() || has_failed());
    }

    /// Disconnects clients that have been served, and waits until all are served and disconnected.
    pub(crate) fn end(self) {
        self.leave.store(true, Relaxed);
        self.threads.into_iter().for_each(|client| client.join().expect("a client was served"));
    }
}

/// While `test` runs, another client that was connected before sends a request every 2 ms; `ask` gets its number, and
/// returns whether it was answered. It has to be served at least once.
pub(crate) fn beside_another<R>(
    mut ask: impl FnMut(u64) -> bool + Send,
    test: impl FnOnce() -> R,
) -> (R, u64) {
    assert!(ask(0), "nothing has run out yet");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let at_the_end = AtTheEnd(&done);
        let other = scope.spawn(|| {
            let mut served = 0;
            for number in 1.. {
                served += u64::from(ask(number));
                if done.load(Relaxed) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            served
        });
        let result = test();
        drop(at_the_end);
        let served = other.join().expect("the other client was served");
        assert!(served > 0, "the other client was never served");
        (result, served)
    })
}
