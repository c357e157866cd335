//! A closed loop of TCP echo on bare epoll: a second opinion on `twinring load tcp`.
//!
//! It shares no code with that one but the types of the lines that it prints. One thread waits for
//! answers with a level-triggered epoll, reads them, compares every byte, and sends the next request
//! of the same connection at once.

mod connection;
mod report;

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use nix::time::{ClockId, clock_gettime};
use peer_common::say;
use twinring_wire::load::{Mark, WINDOW_END, WINDOW_START};

use connection::{Connection, Loss, PATTERN_BYTES};
use report::Report;

/// Events taken by one `epoll_wait`.
const EVENTS_MAX: usize = 512;

/// How long answers are awaited after the window.
const DRAIN: Duration = Duration::from_secs(1);

/// TCP echo requests in a closed loop, on bare epoll.
#[derive(Parser)]
#[command(name = "plain-load", version)]
struct Options {
    /// Address of the server.
    address: SocketAddr,
    /// Connections that send.
    #[arg(short, long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    connections: u32,
    /// Bytes of a request and of its answer.
    #[arg(short, long, value_parser = clap::value_parser!(u32).range(1..=PATTERN_BYTES as i64 / 2))]
    size: u32,
    /// Requests in flight per connection.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    depth: u32,
    /// Length of the window, in milliseconds.
    #[arg(short, long, value_name = "MS", value_parser = milliseconds)]
    duration: Duration,
    /// Load before the window, in milliseconds.
    #[arg(long, value_name = "MS", value_parser = milliseconds, default_value = "1000ms")]
    warmup: Duration,
    /// CPU to run on.
    #[arg(long, value_name = "CPU")]
    pin: Option<usize>,
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    let number = text.strip_suffix("ms").unwrap_or(text).parse();
    number.map(Duration::from_millis).map_err(|error| error.to_string())
}

fn main() -> ExitCode {
    peer_common::finish_load("plain-load", run(&Options::parse()))
}

fn run(options: &Options) -> io::Result<u64> {
    peer_common::pin(options.pin)?;
    peer_common::raise_descriptor_limit();
    let mut load = Load::connect(options)?;
    load.measure()?;
    let line = serde_json::to_string(&load.report.result(options, &load.connections))?;
    say(&line)?;
    Ok(load.report.window.answered)
}

/// CLOCK_MONOTONIC in nanoseconds.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every Linux has CLOCK_MONOTONIC");
    now.num_nanoseconds() as u64
}

/// User and system CPU of this thread so far, in seconds.
fn cpu_s() -> [f64; 2] {
    let usage = getrusage(UsageWho::RUSAGE_THREAD).expect("getrusage(2) of the own thread");
    [usage.user_time(), usage.system_time()].map(|time| time.num_microseconds() as f64 / 1e6)
}

struct Load {
    epoll: Epoll,
    connections: Vec<Connection>,
    report: Report,
    warmup: Duration,
    duration: Duration,
}

impl Load {
    fn connect(options: &Options) -> io::Result<Load> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let mut connections = Vec::new();
        for number in 0..options.connections {
            let socket = TcpStream::connect(options.address)?;
            socket.set_nodelay(true)?;
            socket.set_nonblocking(true)?;
            epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, number.into()))?;
            let (size, depth) = (options.size as usize, options.depth as usize);
            connections.push(Connection::new(socket, number, size, depth));
        }
        let (report, warmup, duration) = (Report::new(), options.warmup, options.duration);
        Ok(Load { epoll, connections, report, warmup, duration })
    }

    /// Warm-up, window, and the wait for the last answers.
    fn measure(&mut self) -> io::Result<()> {
        let start_ns = now_ns() + self.warmup.as_nanos() as u64;
        let end_ns = start_ns + self.duration.as_nanos() as u64;
        for number in 0..self.connections.len() {
            self.send(number)?;
        }
        self.answer_until(start_ns)?;
        self.report.open(start_ns, &self.connections, cpu_s());
        mark(WINDOW_START, start_ns)?;
        self.answer_until(end_ns)?;
        self.report.close(end_ns, &self.connections, cpu_s());
        mark(WINDOW_END, end_ns)?;
        self.connections.iter_mut().for_each(Connection::stop);
        let deadline_ns = end_ns + DRAIN.as_nanos() as u64;
        while self.connections.iter().any(Connection::is_waiting) && now_ns() < deadline_ns {
            let wait_ns = deadline_ns.saturating_sub(now_ns()).min(10_000_000);
            self.answer_until(now_ns() + wait_ns)?;
        }
        self.report.oldest(&self.connections, now_ns());
        Ok(())
    }

    /// Works on answers until a moment.
    fn answer_until(&mut self, until_ns: u64) -> io::Result<()> {
        let mut events = vec![EpollEvent::empty(); EVENTS_MAX];
        loop {
            let left_ns = until_ns.saturating_sub(now_ns());
            if left_ns == 0 {
                return Ok(());
            }
            // Rounded down, so that the end is not missed; the last millisecond is polled.
            let timeout = EpollTimeout::try_from((left_ns / 1_000_000) as i32);
            let timeout = timeout.unwrap_or(EpollTimeout::ZERO);
            let count = match self.epoll.wait(&mut events, timeout) {
                Ok(count) => count,
                Err(nix::errno::Errno::EINTR) => continue,
                Err(errno) => return Err(errno.into()),
            };
            for event in &events[..count] {
                self.receive(event.data() as usize, until_ns)?;
            }
        }
    }

    fn receive(&mut self, number: usize, until_ns: u64) -> io::Result<()> {
        let connection = &mut self.connections[number];
        let (report, mut now) = (&mut self.report, 0);
        let received = connection.receive(|sent_ns| {
            now = if now == 0 { now_ns() } else { now };
            // What came after the mark belongs to what follows.
            report.answered(now.saturating_sub(sent_ns), now < until_ns);
        });
        match received {
            Ok(()) => self.send(number),
            Err(loss) => self.lose(number, loss),
        }
    }

    fn send(&mut self, number: usize) -> io::Result<()> {
        let connection = &mut self.connections[number];
        match connection.send(now_ns) {
            Ok(waits) if waits != connection.awaits_room => {
                connection.awaits_room = waits;
                let wanted = if waits { EpollFlags::EPOLLOUT } else { EpollFlags::empty() };
                let mut event = EpollEvent::new(EpollFlags::EPOLLIN | wanted, number as u64);
                let socket = connection.socket.as_ref().map(AsFd::as_fd);
                socket.map_or(Ok(()), |fd| self.epoll.modify(fd, &mut event)).map_err(Into::into)
            }
            Ok(_) => Ok(()),
            Err(loss) => self.lose(number, loss),
        }
    }

    fn lose(&mut self, number: usize, loss: Loss) -> io::Result<()> {
        self.report.lost(number, &loss, self.connections[number].give_up());
        Ok(())
    }
}

fn mark(event: &str, monotonic_ns: u64) -> io::Result<()> {
    say(&serde_json::to_string(&Mark { event: event.to_owned(), monotonic_ns })?)
}
