//! One stream of bytes, split in two ways, to the same service on both engines, over real sockets:
//! the answers are equal and complete.
//!
//! The first byte chooses the service and the engines' options, the next six where the stream is
//! split; the rest is the stream.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::error::Error;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::Duration;
use twinring::{Builder, EngineChoice, Runtime, net::ListenOptions};
use twinring_services::AllowList;
use twinring_services::echo::{EchoService, Limits};
use twinring_services::http::encoding::Coding;
use twinring_services::http::{HttpService, HttpSettings, Rule, Site};

/// The longest stream, in bytes. The sockets can hold all that the service has not read yet, so a
/// client may write all of it before it reads.
const STREAM_BYTES_MAX: usize = 16 * 1024;

/// Chunks that are sent one byte at a time, on request.
const TRICKLED_BYTES: usize = 48;

/// How long a service that owes an answer may be silent.
const PATIENCE: Duration = Duration::from_secs(15);

/// The services on one engine with one set of options.
struct Server {
    name: String,
    http: SocketAddr,
    echo: SocketAddr,
}

/// The files that are served: small ones from memory, a large one by sendfile(2), a hidden one, a
/// coded one, a directory to list.
const FILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/files");

/// The configurations to compare: each engine with its defaults, and with options that are as
/// different as possible. In the second pair the pool of io_uring is too small for most streams.
const PAIRS: [[(EngineChoice, &str); 2]; 3] = [
    [(EngineChoice::IoUring, ""), (EngineChoice::Epoll, "")],
    [(EngineChoice::IoUring, "buffer_bytes=256,buffer_count=4"), (EngineChoice::Epoll, "")],
    [(EngineChoice::IoUring, "multishot=off"), (EngineChoice::Epoll, "gather=off")],
];

/// Those of the pairs that this kernel can run.
static SERVERS: LazyLock<Vec<[Server; 2]>> = LazyLock::new(|| {
    let start = |(engine, options): (EngineChoice, &str)| {
        let name = format!("{engine:?} {options}");
        let started = builder(engine, options).and_then(|it| Server::start(&name, &it));
        started.map_err(|error| eprintln!("left out: {name}: {error}")).ok()
    };
    PAIRS.into_iter().filter_map(|[a, b]| Some([start(a)?, start(b)?])).collect()
});

fn builder(engine: EngineChoice, options: &str) -> Result<Builder, Box<dyn Error>> {
    let builder = Runtime::builder().engine(engine).linger(Duration::ZERO).stop_on_panic(true);
    Ok(match engine {
        EngineChoice::Epoll => builder.epoll(options.parse()?),
        _ => builder.uring(options.parse()?),
    })
}

impl Server {
    fn start(name: &str, builder: &Builder) -> Result<Server, Box<dyn Error>> {
        let (files, echo) = (builder.clone().build()?, builder.clone().build()?);
        Ok(Server { name: name.to_owned(), http: serve_files(files)?, echo: serve_echo(echo)? })
    }
}

fn any_port() -> [SocketAddr; 1] {
    [SocketAddr::from(([127, 0, 0, 1], 0))]
}

fn serve_files(runtime: Runtime) -> Result<SocketAddr, Box<dyn Error>> {
    let (mut site, mut rule) = (Site::default(), Rule::default());
    rule.listing = Some(true);
    site.rules.all.push(rule);
    site.root = Some(FILES.into());
    site.precompressed = vec![Coding::Gzip];
    let mut settings = HttpSettings::default();
    settings.sites.add(site).map_err(|wrong| format!("{wrong:?}"))?;
    settings.sendfile_above = 4096;
    settings.max_requests = 40;
    settings.max_body_bytes = 4096;
    let options = ListenOptions::default();
    let mut service = HttpService::new(settings, 1, runtime.handle());
    service.listen(&any_port(), &options, &None)?;
    let service = Arc::new(service);
    let address = service.addresses()[0];
    thread::spawn(move || runtime.run(move |worker| Arc::clone(&service).run(worker)));
    Ok(address)
}

fn serve_echo(runtime: Runtime) -> Result<SocketAddr, Box<dyn Error>> {
    let options = ListenOptions::default();
    let limits = Limits {
        max_connections: usize::MAX,
        max_connections_per_address: usize::MAX,
        allow: AllowList::any(),
        idle_timeout: None,
        drain_timeout: Duration::from_secs(10),
    };
    let service = EchoService::bind(&any_port(), &options, limits, 1, runtime.handle())?;
    let service = Arc::new(service);
    let address = service.addresses()[0];
    thread::spawn(move || runtime.run(move |worker| Arc::clone(&service).run(worker)));
    Ok(address)
}

/// The chunks of a stream that is cut after these shares of it.
fn cut<'a>(stream: &'a [u8], shares: &[u8], trickles: bool) -> Vec<&'a [u8]> {
    let mut ends: Vec<usize> =
        shares.iter().map(|share| stream.len() * usize::from(*share) / 256).collect();
    if trickles {
        ends.extend(1..TRICKLED_BYTES.min(stream.len()));
    }
    ends.push(stream.len());
    ends.sort_unstable();
    let mut begin = 0;
    let chunks = ends.into_iter().map(|end| &stream[std::mem::replace(&mut begin, end)..end]);
    chunks.filter(|chunk| !chunk.is_empty()).collect()
}

/// Sends the chunks and FIN, and returns all received data, and whether it is complete.
///
/// # Panics
/// When no data arrives for too long, or the connection ends with an error.
fn talk(server: &Server, address: SocketAddr, chunks: &[&[u8]]) -> (Vec<u8>, bool) {
    let told = |error: std::io::Error| panic!("{}: {error}", server.name);
    let mut stream = TcpStream::connect(address).unwrap_or_else(told);
    stream.set_nodelay(true).unwrap_or_else(|error| panic!("{}: {error}", server.name));
    stream.set_read_timeout(Some(PATIENCE)).expect("a time that is not zero");
    for chunk in chunks {
        // The server may have sent its last answer, and closed.
        if stream.write_all(chunk).is_err() {
            break;
        }
    }
    // As above.
    let _ = stream.shutdown(Shutdown::Write);
    let mut answers = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answers) {
        // The socket of a client that requested a close is closed behind the answer. Later data of
        // the client resets the connection, which drops data in transit.
        if error.kind() == ErrorKind::ConnectionReset && asks_for_the_end(chunks) {
            return (answers, false);
        }
        let had = String::from_utf8_lossy(&answers);
        panic!("{}: {error} after {} bytes: {had:?}", server.name, answers.len());
    }
    (answers, true)
}

/// Whether the chunks may contain a request that announces the end of its connection.
fn asks_for_the_end(chunks: &[&[u8]]) -> bool {
    let stream = chunks.concat().to_ascii_lowercase();
    [&b"http/1.0"[..], b"close"].iter().any(|word| stream.windows(word.len()).any(|it| it == *word))
}

/// Answers without the parts that may differ: the date, and whether a client that had already sent
/// its body got 100 Continue.
fn comparable(mut answers: Vec<u8>) -> Vec<u8> {
    const GO_ON: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
    const DATE: &[u8] = b"\r\nDate: ";
    const DATE_BYTES: usize = 29;
    while let Some(at) = answers.windows(GO_ON.len()).position(|part| part == GO_ON) {
        answers.drain(at..at + GO_ON.len());
    }
    let dates: Vec<usize> = (0..answers.len())
        .filter(|at| answers[*at..].starts_with(DATE))
        .map(|at| at + DATE.len())
        .collect();
    for at in dates {
        if let Some(date) = answers.get_mut(at..at + DATE_BYTES) {
            date.fill(b'x');
        }
    }
    answers
}

fuzz_target!(|bytes: &[u8]| {
    let Some(([flags, cuts @ ..], stream)) = bytes.split_first_chunk::<7>() else { return };
    let stream = &stream[..stream.len().min(STREAM_BYTES_MAX)];
    let pair = &SERVERS[usize::from(flags >> 2) % SERVERS.len()];
    let ways = [cut(stream, &cuts[..3], false), cut(stream, &cuts[3..], flags & 2 == 2)];
    let is_echo = flags & 1 == 1;
    let mut all: Vec<(String, Vec<u8>)> = Vec::new();
    for server in pair {
        for (number, chunks) in ways.iter().enumerate() {
            let who = format!("{}, way {number}", server.name);
            if is_echo {
                let (answers, _) = talk(server, server.echo, chunks);
                assert!(answers == stream, "{who} returns {} bytes", answers.len());
                continue;
            }
            // A client that sends after its last request may lose data.
            if let (answers, true) = talk(server, server.http, chunks) {
                all.push((who, comparable(answers)));
            }
        }
    }
    for pair in all.windows(2) {
        let shown = pair.iter().map(|(who, answers)| (who, String::from_utf8_lossy(answers)));
        assert!(pair[0].1 == pair[1].1, "{:?}", shown.collect::<Vec<_>>());
    }
});
