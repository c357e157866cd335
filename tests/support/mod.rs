//! Starts the real command, talks to it over real sockets, and looks at it through /proc.

// Each test binary compiles this module for itself and uses its own part of it.
#![allow(dead_code, unused_imports)]

pub(crate) mod datagrams;
pub(crate) mod dead_mount;
pub(crate) mod http;
pub(crate) mod http2;
pub(crate) mod load;
pub(crate) mod namespace;
pub(crate) mod nginx;
pub(crate) mod tls;

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;

// What many tests need.
pub(crate) use nix::sys::signal::{Signal, kill};
pub(crate) use nix::unistd::Pid;
pub(crate) use serde_json::Value;
pub(crate) use socket2::{Domain, Socket, Type};
pub(crate) use std::collections::HashMap;
pub(crate) use std::fs::{self, File};
pub(crate) use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
pub(crate) use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
pub(crate) use std::path::{Path, PathBuf};
pub(crate) use std::process::{Child, Command, Stdio};
pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
pub(crate) use std::thread;
pub(crate) use std::time::{Duration, Instant};
pub(crate) use testing::{Test, engine_tests, long_tests, tests};

/// For tests of what no engine can make different.
pub(crate) const ENGINE: &str = "auto";

/// The longest that anything in these tests may take before it counts as hung.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Sockets of a server without connections: one listener and the pair behind its signals.
pub(crate) const SOCKETS_WITHOUT_CONNECTIONS: usize = 3;

/// Ends the test if this machine does not have the engine.
pub(crate) fn needs(engine: &str) {
    if engine == "io_uring" {
        testing::needs_io_uring();
    }
}

pub(crate) const TWINRING: &str = env!("CARGO_BIN_EXE_twinring");

/// The command.
pub(crate) fn twinring() -> Command {
    let mut command = Command::new(TWINRING);
    command.stdin(Stdio::null());
    command
}

/// A command that serves with these arguments and prints JSON.
pub(crate) fn serving(
    mut command: Command,
    service: &str,
    engine: &str,
    arguments: &[&str],
) -> Command {
    needs(engine);
    command.args(["serve", service, "--json", "--engine", engine]).args(arguments);
    command
}

/// A running `twinring serve`, killed when dropped.
pub(crate) struct Server {
    child: Child,
    lines: Mutex<Receiver<Value>>,
    stderr: Arc<Mutex<String>>,
    /// Reads standard error to its end.
    stderr_reader: JoinHandle<()>,
    pub(crate) ready: Value,
    /// Where its configuration file is, if it has one.
    configuration: Option<tempfile::TempDir>,
}

/// How a server ended.
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) last: Value,
    pub(crate) stderr: String,
}

impl Ended {
    /// A counter of the service in the final line.
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.last["service_counters"][name].as_u64().unwrap_or_else(|| panic!("no {name}"))
    }

    /// It ended with this code, and these counters of the service.
    pub(crate) fn expect(&self, code: i32, counts: &[(&str, u64)]) {
        assert_eq!(self.code, Some(code), "{}", self.stderr);
        for (name, expected) in counts {
            assert_eq!(self.count(name), *expected, "{name} in {}", self.last);
        }
    }
}

impl Server {
    pub(crate) fn echo(engine: &str, arguments: &[&str]) -> Server {
        Server::start(twinring(), "echo", engine, arguments)
    }

    pub(crate) fn udp(engine: &str, arguments: &[&str]) -> Server {
        Server::start(twinring(), "udp", engine, arguments)
    }

    pub(crate) fn http(engine: &str, root: &Path, arguments: &[&str]) -> Server {
        let root = ["--root", root.to_str().expect("UTF-8")];
        Server::start(twinring(), "http", engine, &[&root, arguments].concat())
    }

    /// `twinring serve` by this command, such as one with limits, on a free port of 127.0.0.1 unless the arguments
    /// specify one. Those with ` = ` are keys of a configuration file, such as `server.header-timeout = '1s'` or
    /// `default.rule = [{ ... }]`.
    pub(crate) fn start(
        command: Command,
        service: &str,
        engine: &str,
        arguments: &[&str],
    ) -> Server {
        let (keys, mut all): (Vec<&str>, Vec<&str>) =
            arguments.iter().partition(|argument| argument.contains(" = "));
        if !all.contains(&"--listen") {
            all.extend(["--listen", "127.0.0.1:0"]);
        }
        if keys.is_empty() {
            return Server::spawn(serving(command, service, engine, &all));
        }
        let directory = tempfile::tempdir().expect("a directory for temporary files");
        let file = directory.path().join("twinring.toml");
        fs::write(&file, keys.join("\n")).expect("a file");
        all.extend(["--config", file.to_str().expect("UTF-8")]);
        let mut server = Server::spawn(serving(command, service, engine, &all));
        server.configuration = Some(directory);
        server
    }

    /// Starts a command that serves and prints JSON, and waits until it is ready.
    pub(crate) fn spawn(mut command: Command) -> Server {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the command starts");
        let stdout = child.stdout.take().expect("stdout is piped");
        let stderr = child.stderr.take().expect("stderr is piped");
        let (sender, lines) = channel();
        thread::spawn(move || {
            let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
            let parse =
                |line: String| serde_json::from_str(&line).expect("stdout holds JSON lines");
            lines.try_for_each(|line| sender.send(parse(line)))
        });
        let told = Arc::new(Mutex::new(String::new()));
        let telling = Arc::clone(&told);
        let stderr_reader = thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                *telling.lock().unwrap() += &(line + "\n");
            }
        });
        let mut server = Server {
            child,
            lines: Mutex::new(lines),
            stderr: told,
            stderr_reader,
            ready: Value::Null,
            configuration: None,
        };
        server.ready = server.next_line();
        assert_eq!(server.ready["event"], "ready");
        server
    }

    /// The next JSON line on standard output.
    pub(crate) fn next_line(&self) -> Value {
        match self.lines.lock().unwrap().recv_timeout(PATIENCE) {
            Ok(line) => line,
            Err(error) => panic!("no further line ({error}); stderr: {}", self.stderr()),
        }
    }

    /// Waits until a counter in its statistics is what it should be; it has to print them every second.
    pub(crate) fn wait_for_count(&self, name: &str, expected: u64) {
        let mut found = None;
        let is_there = waited(|| {
            found = self.statistics()["service_counters"][name].as_u64();
            found == Some(expected)
        });
        assert!(is_there, "{name} is {found:?}, not {expected}");
    }

    /// The statistics that are printed next, later than this call; it has to print them every second.
    pub(crate) fn statistics(&self) -> Value {
        while self.lines.lock().unwrap().try_recv().is_ok() {}
        self.next_line()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.addresses()[0]
    }

    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        let addresses = self.ready["listen"].as_array().expect("a list").iter();
        let address = |value: &Value| value.as_str().expect("an address").parse();
        addresses.map(|value| address(value).expect("an address")).collect()
    }

    /// The address of the admin service.
    pub(crate) fn admin(&self) -> SocketAddr {
        self.ready["admin"].as_str().expect("an address").parse().expect("an address")
    }

    pub(crate) fn stderr(&self) -> String {
        self.stderr.lock().unwrap().clone()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid() as i32), signal).expect("the server runs");
    }

    /// Waits for the end of the process and its final line.
    pub(crate) fn wait(mut self) -> Ended {
        let mut status = None;
        wait_until("the server ends", || {
            status = self.child.try_wait().expect("a child");
            status.is_some()
        });
        let code = status.and_then(|status| status.code());
        let mut last = Value::Null;
        while let Ok(line) = self.lines.get_mut().unwrap().recv_timeout(PATIENCE) {
            last = line;
        }
        // Its last words may not have been read yet.
        wait_until("standard error ends", || self.stderr_reader.is_finished());
        Ended { code, last, stderr: self.stderr() }
    }

    /// SIGTERM, and the end it leads to.
    pub(crate) fn terminate(self) -> Ended {
        self.signal(Signal::SIGTERM);
        self.wait()
    }

    /// SIGTERM, and the end in order that it leads to, with these counters: nothing is open or was cut.
    pub(crate) fn end_with(self, counts: &[(&str, u64)]) {
        self.end().expect(0, counts);
    }

    /// The same, for a look at more.
    pub(crate) fn end(self) -> Ended {
        let ended = self.terminate();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        for left in ["open", "cut"] {
            let count = &ended.last["service_counters"][left];
            assert!(count.is_null() || count == 0, "{left}: {}", ended.last);
        }
        ended
    }

    /// What its open descriptors refer to.
    fn open(&self) -> Vec<String> {
        let directory = format!("/proc/{}/fd", self.child.id());
        let links = fs::read_dir(directory).expect("the server runs").flatten();
        let target = |link: fs::DirEntry| fs::read_link(link.path()).ok();
        links.filter_map(target).map(|target| target.to_string_lossy().into_owned()).collect()
    }

    /// Number of open descriptors.
    pub(crate) fn descriptors(&self) -> usize {
        self.open().len()
    }

    /// Number of open sockets, counted by the kernel.
    pub(crate) fn sockets(&self) -> usize {
        self.open().iter().filter(|target| target.starts_with("socket:")).count()
    }

    /// Memory of the receive buffers of its worker: which of them an arrival touches first is chance.
    pub(crate) fn pool_bytes(&self) -> u64 {
        let feature = |name: &str| self.ready["features"][name].as_u64().expect(name);
        feature("buffer_bytes") * feature("buffer_count")
    }

    /// Memory of the process that is in use: its resident anonymous pages.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.status("RssAnon:").trim_end_matches("kB").trim().parse::<u64>().expect("KiB") << 10
    }

    /// A field of /proc/PID/status.
    pub(crate) fn status(&self, field: &str) -> String {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        field_of(&status.expect("the server runs"), field)
    }

    /// /proc/PID/task/*/status: of its threads, and of those of the kernel for it. One may have ended since it was
    /// listed.
    pub(crate) fn threads(&self) -> Vec<String> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid())).expect("it runs");
        let status = |task: fs::DirEntry| fs::read_to_string(task.path().join("status"));
        tasks.flatten().flat_map(status).collect()
    }

    /// Waits until the server holds this many sockets.
    pub(crate) fn wait_for_sockets(&self, expected: usize) {
        let mut found = 0;
        let settled = waited(|| {
            found = self.sockets();
            found == expected
        });
        assert!(settled, "{found} sockets are open, expected {expected}");
    }
}

/// The value behind this name and a colon, in a text like /proc/PID/status.
pub(crate) fn field_of(status: &str, field: &str) -> String {
    let value = status.lines().find_map(|line| line.strip_prefix(field)).expect(field);
    value.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only when the process has ended and was waited for.
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}

/// The command under limits that the shell sets, hard and soft, such as `-n 64`.
pub(crate) fn limited(limits: &str) -> Command {
    program_limited(Path::new(TWINRING), limits)
}

/// The same with another program. Inherited descriptors, which would count, are closed.
pub(crate) fn program_limited(program: &Path, limits: &str) -> Command {
    let closed = "exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-";
    let script = format!("{closed}; ulimit {limits} && exec \"$0\" \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script]).arg(program);
    command
}

/// Sets a flag when dropped: a panic must end the threads beside it, which look at the flag.
pub(crate) struct AtTheEnd<'a>(pub(crate) &'a AtomicBool);

impl Drop for AtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs the command to its end: exit code, standard output, standard error.
pub(crate) fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    run_to_its_end(twinring().args(arguments))
}

/// As [`run`], for a command that was made otherwise.
pub(crate) fn run_to_its_end(command: &mut Command) -> (Option<i32>, String, String) {
    let output = command.stdin(Stdio::null()).output().expect("the command starts");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// A command that ends with this code, prints nothing, and says all of these words on standard error.
pub(crate) fn assert_ended(command: &mut Command, code: i32, words: &[&str]) {
    let (found, stdout, told) = run_to_its_end(command);
    assert_eq!((found, stdout.as_str()), (Some(code), ""), "{command:?}: {told}");
    for word in words {
        assert!(told.contains(word), "{command:?}: {word:?} is not in {told}");
    }
}

/// The same for the command with these arguments, split at spaces.
pub(crate) fn assert_ends(arguments: &str, code: i32, words: &[&str]) {
    assert_ended(twinring().args(arguments.split_whitespace()), code, words);
}

/// Asks again and again, within the patience of these tests.
pub(crate) fn waited(mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if condition() {
            return true;
        }
        thread::sleep(Duration::from_millis(5));
    }
    false
}

pub(crate) fn wait_until(what: &str, condition: impl FnMut() -> bool) {
    assert!(waited(condition), "waited in vain: {what}");
}

/// A client connection with a timeout for every call.
pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the server accepts");
    patient(stream)
}

/// The same, with a receive buffer of a few KiB.
pub(crate) fn connect_narrow(address: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).expect("a socket");
    socket.set_recv_buffer_size(8192).expect("SO_RCVBUF");
    socket.connect(&address.into()).expect("the server accepts");
    patient(socket.into())
}

/// A socket that will connect from `local`: with several local addresses, ports do not run out.
pub(crate) fn socket_from(local: Ipv4Addr) -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.set_reuse_address(true).expect("a socket");
    socket.bind(&SocketAddr::from((local, 0)).into()).expect("a free port");
    socket
}

pub(crate) fn patient(stream: TcpStream) -> TcpStream {
    stream.set_nodelay(true).expect("a TCP socket");
    stream.set_read_timeout(Some(PATIENCE)).expect("a TCP socket");
    stream.set_write_timeout(Some(PATIENCE)).expect("a TCP socket");
    stream
}

/// A connection on which these bytes were sent.
pub(crate) fn begin(address: SocketAddr, bytes: impl AsRef<[u8]>) -> TcpStream {
    let mut stream = connect(address);
    say(&mut stream, bytes);
    stream
}

/// Sends all of this.
pub(crate) fn say(stream: &mut impl Write, bytes: impl AsRef<[u8]>) {
    stream.write_all(bytes.as_ref()).expect("the server reads");
}

/// Closes with a reset instead of FIN.
pub(crate) fn reset(stream: TcpStream) {
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("a TCP socket");
}

/// `length` bytes that identify position and stream.
pub(crate) fn pattern(stream: u64, length: usize) -> Vec<u8> {
    let mut state = stream.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    // By words: tests make gigabytes of these.
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Sends `bytes` and reads them back.
pub(crate) fn ping(stream: &TcpStream, bytes: &[u8]) {
    try_ping(stream, bytes).expect("an echo");
}

pub(crate) fn try_ping(mut stream: &TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    stream.write_all(bytes)?;
    let mut back = vec![0; bytes.len()];
    stream.read_exact(&mut back)?;
    assert_eq!(back, bytes, "the echo differs");
    Ok(())
}

/// Writes without reading until the connection accepts no more; returns how much it accepted. For
/// longer than a server may be kept from the CPU: there must be no later writes, because a write to
/// a reset connection takes the error away from the reader.
pub(crate) fn write_until_stuck(stream: &TcpStream, bytes: &[u8]) -> usize {
    stream.set_nonblocking(true).unwrap();
    let mut written = 0;
    let mut stuck_for = 0;
    let mut writer = stream;
    while stuck_for < 120 && written < bytes.len() {
        match writer.write(&bytes[written..]) {
            Ok(more) => {
                written += more;
                stuck_for = 0;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                stuck_for += 1;
                thread::sleep(Duration::from_millis(10));
            }
            Err(error) => panic!("writing: {error}"),
        }
    }
    stream.set_nonblocking(false).unwrap();
    written
}

/// Everything until the end of the stream.
pub(crate) fn read_to_end(mut stream: &TcpStream) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Compares without printing megabytes.
pub(crate) fn assert_same(received: &[u8], sent: &[u8]) {
    if received == sent {
        return;
    }
    let differs = received.iter().zip(sent).position(|(a, b)| a != b);
    assert_eq!(differs, None, "first difference at this offset");
    assert_eq!(received.len(), sent.len(), "bytes are missing or too many");
}
