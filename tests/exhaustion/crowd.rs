//! Clients of the three kinds of connections, crowds of them, and a witness who is served meanwhile.

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

/// A server and what is needed to talk to it.
pub(crate) struct Scene {
    pub(crate) server: Server,
    pub(crate) target: Target,
    /// Sockets of the server that listen.
    pub(crate) listeners: usize,
    _site: Site,
}

impl Scene {
    pub(crate) fn start(kind: Kind, engine: &str, arguments: &[&str]) -> Scene {
        Scene::start_with(Command::new(env!("CARGO_BIN_EXE_twinring")), kind, engine, arguments)
    }

    /// With a command that arguments can be added to.
    pub(crate) fn start_with(
        mut command: Command,
        kind: Kind,
        engine: &str,
        arguments: &[&str],
    ) -> Scene {
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
        Scene { server, target: Target { kind, address, trust }, listeners, _site: site }
    }
}

/// Where to go, and how to talk there.
#[derive(Clone)]
pub(crate) struct Target {
    kind: Kind,
    pub(crate) address: SocketAddr,
    trust: Option<Arc<ClientConfig>>,
}

impl Target {
    /// Connects, and shakes hands if that is the custom.
    pub(crate) fn visit(&self) -> Guest {
        let stream = connect(self.address);
        match &self.trust {
            None => Guest { kind: self.kind, line: Line::Plain(stream) },
            Some(trust) => {
                let client = secure_over(stream, trust).expect("hands are shaken");
                Guest { kind: self.kind, line: Line::Secret(Box::new(client)) }
            }
        }
    }
}

enum Line {
    Plain(TcpStream),
    Secret(Box<tls::Client>),
}

/// A client that is connected.
pub(crate) struct Guest {
    kind: Kind,
    line: Line,
}

impl Guest {
    /// Asks for something, and checks that it comes: 1,000 bytes back, or a small file. False if the
    /// server says that it has no descriptor for the file just now.
    pub(crate) fn ask(&mut self, number: u64) -> bool {
        match (&mut self.line, self.kind) {
            (Line::Plain(stream), Kind::Echo) => {
                ping(stream, &pattern(number, 1000));
                true
            }
            (Line::Plain(stream), _) => request(stream, "/hello.txt", HELLO),
            (Line::Secret(client), _) => request(&mut **client, "/hello.txt", HELLO),
        }
    }

    /// Asks for more: 50,000 bytes back, or a file that the server has to open.
    pub(crate) fn ask_for_much(&mut self, number: u64) -> bool {
        match (&mut self.line, self.kind) {
            (Line::Plain(stream), Kind::Echo) => {
                ping(stream, &pattern(number, 50_000));
                true
            }
            (Line::Plain(stream), _) => request(stream, "/large.bin", &LARGE),
            (Line::Secret(client), _) => request(&mut **client, "/large.bin", &LARGE),
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
        // First as one comparison: without optimisation the other takes its time.
        200 if answer.body == content => {}
        200 => assert_same(&answer.body, content),
        status => assert_eq!(status, 503, "{}", answer.head),
    }
    answer.status == 200
}

/// Clients at once, a thread each. Each asks until it gets what it wants, coming anew if it was
/// refused, and then stays until it is sent away.
pub(crate) struct Crowd {
    served: Arc<AtomicUsize>,
    refused: Arc<AtomicUsize>,
    leave: Arc<AtomicBool>,
    members: Vec<JoinHandle<()>>,
}

impl Crowd {
    pub(crate) fn gather(target: &Target, count: usize) -> Crowd {
        let mut crowd = Crowd {
            served: Arc::default(),
            refused: Arc::default(),
            leave: Arc::default(),
            members: Vec::new(),
        };
        for number in 0..count as u64 {
            let (target, leave) = (target.clone(), Arc::clone(&crowd.leave));
            let (served, refused) = (Arc::clone(&crowd.served), Arc::clone(&crowd.refused));
            let member = move || {
                let mut guest = target.visit();
                while !guest.ask_for_much(number) {
                    refused.fetch_add(1, Relaxed);
                    drop(guest);
                    std::thread::sleep(Duration::from_millis(20));
                    guest = target.visit();
                }
                served.fetch_add(1, Relaxed);
                while !leave.load(Relaxed) {
                    std::thread::sleep(Duration::from_millis(5));
                }
            };
            let thread = std::thread::Builder::new().stack_size(256 << 10).spawn(member);
            crowd.members.push(thread.expect("a thread"));
        }
        crowd
    }

    /// Members that have got what they wanted.
    pub(crate) fn served(&self) -> usize {
        self.served.load(Relaxed)
    }

    /// Times that a member was told to come again.
    pub(crate) fn refused(&self) -> usize {
        self.refused.load(Relaxed)
    }

    /// From now on everybody leaves who has been served.
    pub(crate) fn send_away(&self) {
        self.leave.store(true, Relaxed);
    }

    pub(crate) fn wait_until_all_are_served(&self) {
        let all = self.members.len();
        wait_until("all are served", || self.served() == all || self.has_failed());
    }

    fn has_failed(&self) -> bool {
        self.members.iter().any(|member| member.is_finished() && !self.leave.load(Relaxed))
    }

    /// Waits until all are served and gone.
    pub(crate) fn end(self) {
        self.send_away();
        self.members.into_iter().for_each(|member| member.join().expect("a member is content"));
    }
}

/// Somebody who was there before, and goes on being served, or should.
pub(crate) struct Witness {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Served>,
}

/// What a witness says.
pub(crate) struct Served {
    times: Vec<Duration>,
    refused: usize,
}

impl Witness {
    pub(crate) fn of(target: &Target) -> Witness {
        let mut guest = target.visit();
        assert!(guest.ask(0), "nothing has run out yet");
        Witness::who(move |number| guest.ask(number))
    }

    /// Asks every 2 ms; `ask` says whether it was answered or refused.
    pub(crate) fn who(mut ask: impl FnMut(u64) -> bool + Send + 'static) -> Witness {
        let stop = Arc::new(AtomicBool::new(false));
        let asked_to_stop = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut served = Served { times: Vec::new(), refused: 0 };
            // Once at least, however late this thread comes to its turn.
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
        Witness { stop, thread }
    }

    /// Fails if the witness was not served.
    pub(crate) fn end(self) -> Served {
        self.stop.store(true, Relaxed);
        let mut served = self.thread.join().expect("the witness was served");
        assert!(!served.times.is_empty(), "the witness was never served");
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
