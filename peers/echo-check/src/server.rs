//! Starts the server under test, finds its address, and ends it.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Outcome;

/// A server has this long to end after SIGTERM.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// A running server under test. It is killed when dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    /// Starts `command` with `--listen 127.0.0.1:0` added and waits for its ready line; with
    /// `descriptors`, it runs under that hard limit.
    pub fn start(command: &[&str], descriptors: Option<u64>) -> Result<Server, String> {
        let (program, arguments) = command.split_first().ok_or("no command")?;
        let mut child = match descriptors {
            None => Command::new(program),
            Some(limit) => with_limit(program, limit),
        };
        child.args(arguments).args(["--listen", "127.0.0.1:0"]).stdout(Stdio::piped());
        let mut child =
            child.spawn().map_err(|error| format!("cannot start {program}: {error}"))?;
        let mut line = String::new();
        let read = child.stdout.take().map(|stdout| BufReader::new(stdout).read_line(&mut line));
        let address = line.trim_end().rsplit_once(" listening on ").map(|(_, text)| text.parse());
        match address {
            Some(Ok(address)) => Ok(Server { child, address }),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                Err(format!("{program} said {line:?} instead of its ready line ({read:?})"))
            }
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// User and system time of the process so far, in ticks of 10 ms (fields 14 and 15 of
    /// proc_pid_stat(5)).
    pub fn cpu_ticks(&self) -> Result<u64, String> {
        let path = format!("/proc/{}/stat", self.child.id());
        let stat = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let ticks = |index: usize| {
            fields.split_whitespace().nth(index).and_then(|field| field.parse::<u64>().ok())
        };
        // The name in parentheses is field 2, so that the first one after it is field 3.
        ticks(11).zip(ticks(12)).map(|(user, system)| user + system).ok_or(format!("odd {path}"))
    }

    /// Sends SIGTERM and expects exit status 0 within five seconds.
    pub fn stop(mut self) -> Outcome {
        if let Some(status) = self.poll()? {
            return Err(format!("the server had ended by itself: {status}"));
        }
        let pid = i32::try_from(self.child.id()).map_err(|error| error.to_string())?;
        kill(Pid::from_raw(pid), Signal::SIGTERM).map_err(|error| error.to_string())?;
        let give_up = Instant::now() + END_PATIENCE;
        while Instant::now() < give_up {
            match self.poll()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(format!("SIGTERM ended the server with {status}")),
                None => thread::sleep(Duration::from_millis(5)),
            }
        }
        Err(format!("the server still runs {END_PATIENCE:?} after SIGTERM"))
    }

    fn poll(&mut self) -> Result<Option<ExitStatus>, String> {
        self.child.try_wait().map_err(|error| error.to_string())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command that runs `program` under a hard limit of descriptors. A shell sets it, so that no
/// code runs between fork and exec here.
fn with_limit(program: &str, descriptors: u64) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -n \"$0\" && exec \"$@\"", &descriptors.to_string(), program]);
    shell
}
