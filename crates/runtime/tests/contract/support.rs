//! Configurations, peers, the watchdog, and the macro that pairs rules with configurations.

pub(crate) use std::io::{self, ErrorKind, Read, Write};
pub(crate) use std::net::SocketAddr;
use std::process::Command;
pub(crate) use std::rc::Rc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
pub(crate) use std::time::{Duration, Instant};
use testing::Case;
pub(crate) use testing::{Outcome, on_thread, poll_once};
use twinring::{Builder, EngineChoice};
pub(crate) use twinring::{
    Handle, JoinHandle, Runtime, TcpListener, TcpStream, UdpSocket, net, sleep, spawn, timeout,
    yield_now,
};

pub(crate) type Peer = std::net::TcpStream;

/// How long one test may take before it counts as hung. Most bugs of a driver show as a hang, and a
/// hung test reports nothing. Sanitizers make everything slower (`.ci/sanitizers`).
pub(crate) fn patience() -> Duration {
    let asked = std::env::var("TWINRING_TEST_PATIENCE_S").ok();
    Duration::from_secs(asked.and_then(|seconds| seconds.parse().ok()).unwrap_or(40))
}

/// One promise of the driver contract: its name, with the crate and the module, and how it is checked.
pub(crate) type Rule = (&'static str, fn(Configuration));

/// The functions that can be rules: of the configuration, or async ones that run on it.
pub(crate) trait Check<Arguments> {
    fn check(self, configuration: Configuration);
}

impl<F: Fn(Configuration)> Check<Configuration> for F {
    fn check(self, configuration: Configuration) {
        self(configuration);
    }
}

impl<F: AsyncFn()> Check<()> for F {
    fn check(self, configuration: Configuration) {
        configuration.run(self());
    }
}

impl<F: AsyncFn(Configuration, Handle)> Check<(Configuration, Handle)> for F {
    fn check(self, configuration: Configuration) {
        run_on(configuration.builder(), async |handle| self(configuration, handle).await);
    }
}

/// The rules of a module: `rules![a, b]` lists its functions, see [`Check`].
macro_rules! rules {
    ($($rule:ident),* $(,)?) => {
        &[$((
            concat!(module_path!(), "::", stringify!($rule)),
            |configuration| Check::check($rule, configuration),
        )),*]
    };
}

/// Each rule on each of these configurations, as tests of their own; on those that are `long` only with
/// `--include-ignored` (`.ci/long`).
pub(crate) fn cases(always: &[&str], long: &[&str], modules: &[&'static [Rule]]) -> Vec<Case> {
    let all = always.iter().map(|name| (name, false)).chain(long.iter().map(|name| (name, true)));
    let cases = all.flat_map(|(name, long)| {
        let named = CONFIGURATIONS.into_iter().find(|(it, _)| it == name);
        let (name, options) = named.expect("a configuration has this name");
        let configuration = Configuration { name, options };
        modules.iter().flat_map(|rules| rules.iter()).map(move |(name, rule)| {
            let (_crate, name) = name.split_once("::").expect("rules are in modules");
            let name: &'static str = format!("{name}::{}", configuration.name).leak();
            Case::new(name, long, move || check(name, configuration, *rule))
        })
    });
    cases.collect()
}

/// The names of configurations with their options.
const CONFIGURATIONS: [(&str, &str); 8] = [
    ("epoll", ""),
    ("epoll_ungathered", "gather=off"),
    ("epoll_tiny_pool", "buffer_count=4,buffer_bytes=64,gather=2"),
    ("io_uring", ""),
    ("single_shot", "multishot=off"),
    ("sqpoll", "sqpoll_idle_ms=50"),
    ("tiny_pool", "buffer_count=4,buffer_bytes=64"),
    ("tiny_rings", "sq_entries=8,cq_entries=16"),
];

/// An engine with its options.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Configuration {
    pub(crate) name: &'static str,
    options: &'static str,
}

impl Configuration {
    pub(crate) fn builder(self) -> Builder {
        self.builder_with("")
    }

    /// With further options, which win over those of the configuration.
    pub(crate) fn builder_with(self, more: &str) -> Builder {
        let options = format!("{},{more}", self.options);
        // A task that finds something wrong fails its test, whether it is joined or not.
        let builder = Runtime::builder().stop_on_panic(true);
        match self.is_epoll() {
            true => builder.engine(EngineChoice::Epoll).epoll(options.parse().expect("options")),
            false => builder.engine(EngineChoice::IoUring).uring(options.parse().expect("options")),
        }
    }

    /// True if receives may be cut short, and operations fail and begin again.
    pub(crate) fn has_faults(self) -> bool {
        cfg!(feature = "faults") && std::env::var_os("TWINRING_FAULTS").is_some()
    }

    pub(crate) fn is_epoll(self) -> bool {
        self.name.starts_with("epoll")
    }

    /// Runs `main` on a runtime of this configuration, which is gone when this returns.
    pub(crate) fn run<T>(self, main: impl Future<Output = T>) -> T {
        run_on(self.builder(), async |_| main.await)
    }
}

/// Runs `main` on a runtime with these settings.
pub(crate) fn run_on<T>(builder: Builder, main: impl AsyncFnOnce(Handle) -> T) -> T {
    let runtime = builder.build().expect("the configuration was tried before");
    let handle = runtime.handle();
    runtime.block_on(main(handle)).expect("the engine works")
}

/// Runs one rule on one configuration. If it takes too long, the process ends and names it.
fn check(name: &'static str, configuration: Configuration, rule: fn(Configuration)) {
    let (alive, watched) = mpsc::channel::<()>();
    std::thread::scope(move |scope| {
        scope.spawn(move || {
            let patience = patience();
            if watched.recv_timeout(patience) == Err(mpsc::RecvTimeoutError::Timeout) {
                // Not eprintln!, which the harness might capture and never show.
                let _ = writeln!(io::stderr(), "HUNG: {name} after {patience:?}");
                std::process::abort();
            }
        });
        match configuration.builder().build().and_then(|runtime| runtime.block_on(async {})) {
            Ok(()) => rule(configuration),
            Err(why) => testing::needs(format_args!("the engine {}", configuration.name), why),
        }
        drop(alive);
    });
}

/// Runs `body` in a process of its own, where no other test opens descriptors, with at most `descriptors` of them and
/// this in its environment.
pub(crate) fn alone(environment: &[(&str, &str)], descriptors: usize, body: impl FnOnce()) {
    if testing::is_rerun() {
        return body();
    }
    testing::needs_descriptors(descriptors as u64);
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -n \"$0\" && exec \"$@\"", &descriptors.to_string()]);
    shell.envs(environment.iter().copied());
    testing::assert_passed(&testing::rerun(shell).expect("a shell"));
}

/// Descriptors this process has open.
pub(crate) fn open_descriptors() -> usize {
    // One is the directory being read.
    std::fs::read_dir("/proc/self/fd").expect("/proc is mounted").count() - 1
}

pub(crate) fn listen() -> TcpListener {
    TcpListener::bind(loopback()).expect("a free port")
}

/// One loopback address after the other, of other blocks in other processes. A connection that the
/// listener's side ends keeps the listener's port for a minute (TIME_WAIT), and in a minute the suite
/// makes more listeners than an address has ports. And datagrams that are on their way to a socket that
/// was closed would go to whichever test got its port.
pub(crate) fn loopback() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let block = std::process::id().wrapping_mul(1024);
    let number = block.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
    let [_, high, middle, low] = number.to_be_bytes();
    SocketAddr::from(([127, 128 | (high & 63), middle, low], 0))
}

/// Both ends of a connection: ours, and a peer's with blocking calls.
pub(crate) async fn pair() -> (TcpStream, Peer) {
    let listener = listen();
    let peer = Peer::connect(listener.local_addr()).expect("the backlog has room");
    peer.set_nodelay(true).expect("a TCP socket");
    (listener.accept().await.expect("a connection"), peer)
}

/// A connection with small kernel buffers at both ends, so that a peer that does not read is
/// noticed after some tens of kilobytes. The small segments go with them: with those of loopback,
/// which are larger than the window, each would wait 200 ms for a window probe.
pub(crate) async fn narrow_pair() -> (TcpStream, Peer) {
    let listener = listen();
    let peer = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
    let peer = peer.expect("a socket");
    peer.set_tcp_mss(1400).expect("TCP_MAXSEG");
    peer.set_send_buffer_size(16 * 1024).expect("SO_SNDBUF");
    peer.set_recv_buffer_size(16 * 1024).expect("SO_RCVBUF");
    peer.connect(&listener.local_addr().into()).expect("the backlog has room");
    peer.set_tcp_nodelay(true).expect("a TCP socket");
    let stream = listener.accept().await.expect("a connection");
    stream.with_fd(|fd| {
        let socket = socket2::SockRef::from(&fd);
        socket.set_send_buffer_size(16 * 1024).expect("SO_SNDBUF");
        socket.set_recv_buffer_size(16 * 1024).expect("SO_RCVBUF");
    });
    (stream, peer.into())
}

pub(crate) fn reset(peer: Peer) {
    socket2::SockRef::from(&peer).set_linger(Some(Duration::ZERO)).expect("SO_LINGER");
    drop(peer);
}

/// An address without a listener, which no other test binds meanwhile.
pub(crate) fn closed_port() -> SocketAddr {
    let listener = std::net::TcpListener::bind(loopback()).expect("a free port");
    listener.local_addr().expect("a bound socket")
}

/// A listener whose backlog is full, with the connections that fill it: a further connect waits.
pub(crate) fn full_backlog() -> (SocketAddr, socket2::Socket, Vec<socket2::Socket>) {
    use socket2::{Domain, Socket, Type};
    let listener = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    listener.bind(&loopback().into()).expect("a free port");
    listener.listen(0).expect("a bound socket");
    let address = listener.local_addr().expect("a bound socket");
    let fillers = (0..4).map(|_| {
        let filler = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        filler.set_nonblocking(true).expect("a socket");
        let _in_progress = filler.connect(&address);
        filler
    });
    let fillers = fillers.collect();
    (address.as_socket().expect("an IPv4 address"), listener, fillers)
}

/// Bytes `range` of the stream that `seed` names. Neighbouring streams and shifted positions differ, so
/// that swapped, lost and repeated bytes show. Made of words, as tests are not optimized.
pub(crate) fn pattern(seed: u64, range: std::ops::Range<usize>) -> Vec<u8> {
    const WORD: usize = size_of::<u64>();
    let first = range.start / WORD;
    let mut bytes = Vec::with_capacity(range.len() + 2 * WORD);
    for word in first..range.end.div_ceil(WORD) {
        let mixed = ((seed << 40) ^ word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        bytes.extend_from_slice(&(mixed ^ mixed >> 32).to_ne_bytes());
    }
    bytes.drain(..range.start - first * WORD);
    bytes.truncate(range.len());
    bytes
}

/// Checks that `bytes` are those of stream `seed` from `position`; reports the first difference.
pub(crate) fn assert_pattern(seed: u64, position: usize, bytes: &[u8]) {
    let expected = pattern(seed, position..position + bytes.len());
    if bytes != expected {
        let differs = bytes.iter().zip(&expected).position(|(byte, expected)| byte != expected);
        panic!("stream {seed}, byte {}", position + differs.expect("equal lengths"));
    }
}

/// Checks that `bytes` are the first `count` of stream `seed`.
pub(crate) fn assert_whole(seed: u64, count: usize, bytes: &[u8]) {
    assert_eq!(bytes.len(), count);
    assert_pattern(seed, 0, bytes);
}

/// A small generator of repeatable randomness (xorshift64*).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }
}

/// Receives exactly `bytes` bytes, or panics at the end of the stream.
pub(crate) async fn recv_exactly(stream: &TcpStream, bytes: usize) -> Vec<u8> {
    let mut received = Vec::with_capacity(bytes);
    while received.len() < bytes {
        let chunk = stream.recv().await.expect("received bytes");
        assert!(!chunk.is_empty(), "the stream ended after {} of {bytes}", received.len());
        received.extend_from_slice(&chunk);
    }
    assert_eq!(received.len(), bytes, "more came than was sent");
    received
}

pub(crate) async fn recv_to_end(stream: &TcpStream) -> io::Result<Vec<u8>> {
    let mut received = Vec::new();
    loop {
        let chunk = stream.recv().await?;
        if chunk.is_empty() {
            return Ok(received);
        }
        received.extend_from_slice(&chunk);
    }
}

/// A receive is under way that nobody waits for.
pub(crate) async fn arm(stream: &TcpStream) {
    assert!(poll_once(stream.recv()).await.is_none());
    settle().await;
}

/// The results of tasks, of which none may panic or be aborted.
pub(crate) async fn join_all<T>(tasks: impl IntoIterator<Item = JoinHandle<T>>) -> Vec<T> {
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.expect("it ends by itself"));
    }
    results
}

/// Echoes until the peer finishes, then finishes.
pub(crate) async fn echo(stream: TcpStream) -> io::Result<()> {
    net::copy(&stream, &stream).await?;
    stream.shutdown().await
}

/// Accepts and echoes for ever.
pub(crate) async fn echo_server(listener: TcpListener) {
    loop {
        let stream = listener.accept().await.expect("a usable listener");
        spawn(echo(stream));
    }
}

/// An echo server on this worker.
pub(crate) fn echo_service() -> SocketAddr {
    let listener = listen();
    let address = listener.local_addr();
    spawn(echo_server(listener));
    address
}

/// Sends `bytes` and reads as many back, which have to be the same.
pub(crate) fn ping(peer: &mut Peer, bytes: &[u8]) {
    peer.write_all(bytes).expect("the server reads");
    let mut answer = vec![0; bytes.len()];
    peer.read_exact(&mut answer).expect("the server answers");
    assert!(answer == bytes, "the echo differs");
}

pub(crate) fn read_to_end(peer: &mut Peer) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    peer.read_to_end(&mut bytes).map(|_| bytes)
}

/// Reads to the end of the stream on a thread.
pub(crate) fn reading(mut peer: Peer) -> Outcome<Vec<u8>> {
    on_thread(move || read_to_end(&mut peer).expect("no reset"))
}

/// Some echoes on a connection of their own, and timers, which come to an end beside whatever else is running.
pub(crate) async fn another_is_served() {
    let (stream, mut peer) = pair().await;
    spawn(echo(stream));
    let pinging =
        on_thread(move || (0..20).for_each(|seed| ping(&mut peer, &pattern(seed, 0..2_000))));
    for _ in 0..10 {
        sleep(Duration::from_micros(100)).await;
    }
    pinging.await;
}

/// Tasks that receive, that send to a peer which does not read, and that sleep, for ever.
pub(crate) fn busy_tasks(stream: &Rc<TcpStream>) -> Vec<JoinHandle<()>> {
    let task = |task| {
        let stream = Rc::clone(stream);
        spawn(async move {
            match task {
                0 => drop(recv_to_end(&stream).await),
                1 => while stream.send(vec![1; 40_000]).await.is_ok() {},
                _ => sleep(Duration::from_secs(3600)).await,
            }
        })
    };
    (0..3).map(task).collect()
}

/// A peer that writes as long as it can.
pub(crate) fn pouring(mut peer: Peer) -> Outcome<()> {
    on_thread(move || while peer.write_all(&[8; 65536]).is_ok() {})
}

/// A peer that reads as long as it can.
pub(crate) fn draining(mut peer: Peer) -> Outcome<()> {
    on_thread(move || {
        let mut sink = vec![0; 1 << 20];
        while peer.read(&mut sink).is_ok_and(|bytes| bytes > 0) {}
    })
}

pub(crate) fn finish(peer: &Peer) {
    peer.shutdown(std::net::Shutdown::Write).expect("a connected socket");
}

/// System calls and waits of the worker in this time: the fewest of three times, because on a busy machine something may
/// be late, and a loop does not end.
pub(crate) async fn calls_in(handle: &Handle, time: Duration) -> (u64, u64) {
    let (mut calls, mut waits) = (u64::MAX, u64::MAX);
    for _ in 0..3 {
        let before = handle.counters();
        sleep(time).await;
        let after = handle.counters();
        calls = calls.min(after.syscalls - before.syscalls);
        waits = waits.min(after.waits - before.waits);
    }
    (calls, waits)
}

/// Rule 4: nothing is left of what `begin` has under way when its runtime ends by itself, or is stopped, but the
/// peers' ends, which it returns. What a thread does for a runtime that was stopped may take so much longer.
pub(crate) fn ends_without_a_trace<P>(
    configuration: Configuration,
    longer: Duration,
    begin: impl AsyncFn() -> Vec<P>,
) {
    alone(&[], 4000, || {
        let before = open_descriptors();
        let builder = configuration.builder().linger(Duration::from_millis(20));
        let peers = run_on(builder, async |_| begin().await);
        assert_eq!(open_descriptors(), before + peers.len(), "only the peers' ends are left");
        // A thread that was joined is listed for a moment longer.
        while has_file_threads() {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(peers);
        // The thread ran one worker; a second one finds everything in order.
        configuration.run(another_is_served());
        assert_eq!(open_descriptors(), before);
        let runtime = configuration.builder().linger(Duration::from_secs(3600)).build();
        let runtime = runtime.expect("tried before");
        let handle = runtime.handle();
        let stopped = runtime.block_on(async {
            let _peers = begin().await;
            handle.stop();
            std::future::pending::<()>().await;
        });
        assert!(stopped.expect_err("it was stopped").to_string().contains("stopped"));
        drop((runtime, handle));
        let deadline = Instant::now() + longer;
        while open_descriptors() != before && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(open_descriptors(), before);
    });
}

fn has_file_threads() -> bool {
    let tasks = std::fs::read_dir("/proc/self/task").expect("/proc is mounted");
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
    tasks.flatten().flat_map(name).any(|name| name.starts_with("twinring-file"))
}

/// Lets the driver process all events that have occurred on loopback.
pub(crate) async fn settle() {
    for _ in 0..8 {
        yield_now().await;
    }
    sleep(Duration::from_millis(2)).await;
}

/// The errno of a failure; 0 of a success or of an error without one.
pub(crate) fn errno<T>(result: &io::Result<T>) -> i32 {
    result.as_ref().err().and_then(io::Error::raw_os_error).unwrap_or(0)
}

/// A count that threads share.
#[derive(Clone, Default)]
pub(crate) struct Tally(Arc<AtomicUsize>);

impl Tally {
    pub(crate) fn add(&self, amount: usize) {
        self.0.fetch_add(amount, Ordering::SeqCst);
    }

    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}
