//! How the agent gets to another host and is started there: by a command that opens a pipe to a
//! program there, such as `ssh HOST`, `kubectl exec -i HOST --` or `ip netns exec HOST`.

use std::fs::File;
use std::io::BufReader;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::sys::utsname::uname;
use nix::unistd::Pid;
use serde_json::Value;

use super::options::{AGENT, HostOptions, NODE};
use super::protocol::{self, FromAgent, Hello, PROTOCOL};
use crate::error::LabError;
use crate::machine::{PROGRAM_BYTES_MAX, sha256_of};
use crate::process::keep_tail;
use crate::progress::say;

/// Options that follow the user's own, so that theirs win: ssh takes the first value it is given.
/// Nothing can be asked on a terminal, nothing is forwarded, and a dead connection is noticed.
const SSH_OPTIONS: &[&str] = &[
    "BatchMode=yes",
    "ConnectTimeout=10",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "ClearAllForwardings=yes",
    "ForwardAgent=no",
    "ForwardX11=no",
    "RemoteCommand=none",
    "RequestTTY=no",
];

/// How long it may take until an agent says hello: connecting, logging in, and hashing itself.
const HELLO_PATIENCE: Duration = Duration::from_secs(60);

/// How long the program may take to be copied.
const COPY_PATIENCE: Duration = Duration::from_secs(600);

/// How long the command may take to end after its output has.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// Lines that a login shell may print before ours.
const MAX_FOREIGN_LINES: usize = 1000;

/// First words of the line that our command prints on the host.
const FOUND: &str = "twinring-agent found";
const MISSING: &str = "twinring-agent missing";

/// A pipe with an agent at its other end.
pub(crate) struct Session {
    pub(crate) pipe: Pipe,
    pub(crate) input: ChildStdin,
    pub(crate) output: BufReader<ChildStdout>,
    pub(crate) hello: Hello,
}

/// Starts the agent on `host`, after copying this program if it is missing there.
///
/// # Errors
/// [`LabError::Host`]: what the command or the host said, and what to do.
pub(crate) fn connect(
    options: &HostOptions,
    host: &str,
    binary: &Path,
    helper: &[String],
) -> Result<Box<Session>, LabError> {
    let failed = |why: String| LabError::Host { host: host.to_owned(), why };
    let way = Way { options, host, helper };
    let Some(path) = &options.remote_binary else {
        let own =
            sha256_of(binary, PROGRAM_BYTES_MAX).map_err(|error| LabError::read(binary, error))?;
        let path = format!("${{XDG_CACHE_HOME:-$HOME/.cache}}/twinring/{own}");
        let session = match way.start(&path).map_err(failed)? {
            Start::Session(session) => session,
            Start::Missing(machine) => {
                way.is_our_machine(&machine).map_err(failed)?;
                way.copy(binary, &path).map_err(failed)?;
                match way.start(&path).map_err(failed)? {
                    Start::Session(session) => session,
                    Start::Missing(_) => {
                        return Err(failed("the copied program is not there".to_owned()));
                    }
                }
            }
        };
        let Hello { binary, sha256, .. } = &session.hello;
        if *sha256 != own {
            return Err(failed(format!(
                "{binary} is not the program of this lab: its SHA-256 is {sha256}, not {own}; \
                 remove it there, and it is copied again"
            )));
        }
        return Ok(session);
    };
    match way.start_at(path).map_err(failed)? {
        Start::Session(session) => Ok(session),
        Start::Missing(_) => {
            Err(failed(format!("there is no program {}; see --remote-binary", path.display())))
        }
    }
}

/// How a host is reached.
struct Way<'a> {
    options: &'a HostOptions,
    host: &'a str,
    helper: &'a [String],
}

enum Start {
    Session(Box<Session>),
    /// There is no such program; the machine by `uname -sm`.
    Missing(String),
}

impl Way<'_> {
    /// Starts the program in a directory that is written for a shell.
    fn start(&self, directory: &str) -> Result<Start, String> {
        self.start_program(&format!("\"{directory}/twinring\""))
    }

    fn start_at(&self, program: &Path) -> Result<Start, String> {
        let program = program.display().to_string();
        self.start_program(&quoted(&program)?)
    }

    /// `program` is written for a shell.
    fn start_program(&self, program: &str) -> Result<Start, String> {
        let words: Result<Vec<String>, String> =
            self.helper.iter().map(String::as_str).chain([AGENT]).map(quoted).collect();
        let words = words?.join(" ");
        let script = format!(
            "if [ -x {program} ]; then echo {FOUND}; exec {program} {words}; \
             else echo \"{MISSING} $(uname -sm)\"; fi"
        );
        let mut pipe = Pipe::open(self.options, self.host, &script, Stdio::piped())?;
        let (Some(input), Some(output)) = (pipe.child.stdin.take(), pipe.child.stdout.take())
        else {
            return Err("the command has no pipes".to_owned());
        };
        let first = first_words(output);
        match first.recv_timeout(HELLO_PATIENCE) {
            Ok(First::Hello(hello, output)) => {
                Ok(Start::Session(Box::new(Session { pipe, input, output, hello: *hello })))
            }
            Ok(First::Stranger(protocol)) => Err(format!(
                "the agent there speaks {protocol}, this lab speaks {PROTOCOL}; use the same \
                 version on both hosts"
            )),
            Ok(First::Missing(machine)) => Ok(Start::Missing(machine)),
            Ok(First::Nothing { found }) => {
                let what = match found {
                    true => {
                        "the agent did not start; if the program cannot run there, build it \
                             there and give its path with --remote-binary"
                    }
                    false => "there is no way to it",
                };
                Err(pipe.why(what))
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                let patience = HELLO_PATIENCE.as_secs();
                Err(pipe.why(&format!("no agent after {patience} s")))
            }
        }
    }

    /// Whether a program of this machine can be meant to run on that one.
    fn is_our_machine(&self, theirs: &str) -> Result<(), String> {
        let ours = uname().map_err(|errno| format!("uname: {errno}"))?;
        let ours = [ours.sysname(), ours.machine()].map(|part| part.to_string_lossy().into_owned());
        if ours.join(" ") == theirs {
            return Ok(());
        }
        Err(format!(
            "it is {theirs} and this program is for {}; build twinring there and give its path \
             with --remote-binary",
            ours.join(" ")
        ))
    }

    /// Copies the program.
    fn copy(&self, binary: &Path, directory: &str) -> Result<(), String> {
        say(&format!("copying {} to {}", binary.display(), self.host));
        let script = copy_script(directory);
        let file = File::open(binary).map_err(|error| format!("{}: {error}", binary.display()))?;
        let mut pipe = Pipe::open(self.options, self.host, &script, Stdio::from(file))?;
        if pipe.ends_within(COPY_PATIENCE) && pipe.child.wait().is_ok_and(|status| status.success())
        {
            return Ok(());
        }
        Err(pipe.why("the program could not be copied"))
    }
}

/// A shell script that stores its input as the program in `directory`, which is written for a shell.
///
/// At no moment is there a part of it under its name. Several hosts may have one home directory (NFS) and are given the
/// program at the same time: the first stays, because an agent that runs already finds its own file by that name. Where
/// there are no hard links the last one stays.
fn copy_script(directory: &str) -> String {
    format!(
        "umask 077; d=\"{directory}\"; n=\"$d/new.$(uname -n).$$\"; p=\"$d/twinring\"
        mkdir -p \"$d\" && cat > \"$n\" && chmod 700 \"$n\" && \
            {{ ln \"$n\" \"$p\" 2>/dev/null || [ -x \"$p\" ] || mv -f \"$n\" \"$p\"; }}
        s=$?; rm -f \"$n\"; exit $s"
    )
}

/// What came first on standard output.
enum First {
    Hello(Box<Hello>, BufReader<ChildStdout>),
    /// An agent of another version, by its protocol.
    Stranger(String),
    Missing(String),
    /// It ended, or said too much that is not ours.
    Nothing {
        /// The program was there.
        found: bool,
    },
}

/// Reads in a thread of its own, so that the caller can stop waiting.
fn first_words(output: ChildStdout) -> Receiver<First> {
    let (sender, first) = channel();
    thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut found = false;
        for _ in 0..MAX_FOREIGN_LINES {
            let Ok(Some(line)) = protocol::read_line(&mut output) else { break };
            if let Some(machine) = line.strip_prefix(MISSING) {
                let _ = sender.send(First::Missing(machine.trim().to_owned()));
                return;
            }
            found |= line == FOUND;
            // Another version may say more or less than the protocol.
            let protocol = serde_json::from_str::<Value>(&line)
                .ok()
                .and_then(|said| Some(said.get("hello")?.get("protocol")?.as_str()?.to_owned()));
            let first = match (protocol, serde_json::from_str(&line)) {
                (Some(protocol), _) if protocol != PROTOCOL => First::Stranger(protocol),
                (_, Ok(FromAgent::Hello(hello))) => First::Hello(hello, output),
                _ => continue,
            };
            let _ = sender.send(first);
            return;
        }
        let _ = sender.send(First::Nothing { found });
    });
    first
}

fn quoted(word: &str) -> Result<String, String> {
    let quoted = shlex::try_quote(word).map_err(|error| format!("`{word}`: {error}"))?;
    Ok(quoted.into_owned())
}

/// The words of the command by which `host` runs `script` in a POSIX shell.
///
/// ssh joins its arguments and hands them to the login shell there, which can be any, so the shell
/// and its script are one quoted argument. Other commands start the program that they are given.
fn command_line(template: &[String], host: &str, script: &str) -> Result<Vec<String>, String> {
    let place = template.iter().rposition(|word| word.contains(NODE));
    let place = place.ok_or_else(|| format!("the command has no {NODE}"))?;
    let mut words: Vec<String> = template.iter().map(|word| word.replace(NODE, host)).collect();
    let program = Path::new(&words[0]).file_name();
    if program.is_some_and(|name| name == "ssh") {
        let options = SSH_OPTIONS.iter().flat_map(|option| ["-o", option]).chain(["--"]);
        words.splice(place..place, options.map(str::to_owned));
        words.push(format!("sh -c {}", quoted(script)?));
    } else {
        words.extend(["sh", "-c", script].map(str::to_owned));
    }
    Ok(words)
}

/// A running command that leads to a host. Dropping it kills it and what it started (such as a proxy
/// command).
pub(crate) struct Pipe {
    child: Child,
    stderr_tail: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
    reaped: bool,
}

impl Pipe {
    /// Has `script` run by a POSIX shell on `host`.
    fn open(options: &HostOptions, host: &str, script: &str, input: Stdio) -> Result<Pipe, String> {
        let words = command_line(&options.connect, host, script)?;
        let mut child = Command::new(&words[0])
            .args(&words[1..])
            .stdin(input)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A Ctrl-C on the terminal reaches the lab only, which ends things in order.
            .process_group(0)
            .spawn()
            .map_err(|error| {
                format!("`{}` cannot be started: {error}; install it, or see --connect", words[0])
            })?;
        let stderr_tail = Arc::new(Mutex::new(Vec::new()));
        let tail = stderr_tail.clone();
        let reader =
            child.stderr.take().map(|stderr| thread::spawn(move || keep_tail(stderr, &tail)));
        Ok(Pipe { child, stderr_tail, reader, reaped: false })
    }

    pub(crate) fn ends_within(&mut self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        loop {
            self.reaped = self.reaped || !matches!(self.child.try_wait(), Ok(None));
            if self.reaped || Instant::now() >= deadline {
                return self.reaped;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn kill(&mut self) {
        if !self.ends_within(Duration::ZERO) {
            // Not reaped yet, so the group's id cannot have been given to anybody else.
            let _ = killpg(Pid::from_raw(self.child.id() as i32), Signal::SIGKILL);
            let _ = self.child.wait();
            self.reaped = true;
        }
    }

    /// What happened, and what the command or the host said about it.
    pub(crate) fn why(&mut self, what: &str) -> String {
        let ended = self.ends_within(END_PATIENCE);
        let deadline = Instant::now() + END_PATIENCE;
        while ended
            && self.reader.as_ref().is_some_and(|reader| !reader.is_finished())
            && Instant::now() < deadline
        {
            thread::sleep(Duration::from_millis(5));
        }
        let tail = self.stderr_tail.lock().unwrap_or_else(PoisonError::into_inner);
        match String::from_utf8_lossy(&tail).trim() {
            "" => what.to_owned(),
            said => format!("{what}; it said: {said}"),
        }
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    fn words(template: &str) -> Vec<String> {
        let template = shlex::split(template).unwrap();
        command_line(&template, "n1", "echo 'a b'").unwrap()
    }

    #[test]
    fn ssh_gets_one_quoted_argument_and_our_options_behind_the_users() {
        let words = words("/usr/bin/ssh -F mine -l me {node}");
        assert_eq!(words[..5], ["/usr/bin/ssh", "-F", "mine", "-l", "me"]);
        assert_eq!(words[5..7], ["-o", "BatchMode=yes"]);
        let [.., dashes, node, command] = &words[..] else { panic!("{words:?}") };
        assert_eq!([&**dashes, node], ["--", "n1"]);
        assert_eq!(shlex::split(command).unwrap(), ["sh", "-c", "echo 'a b'"]);
    }

    /// Two hosts with one home directory: the second copy took the program from under the first agent, whose hash of
    /// its own file then failed.
    #[test]
    fn a_program_that_is_there_already_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let script = copy_script(&directory.path().join("new home").display().to_string());
        for content in ["first", "second"] {
            let mut shell =
                Command::new("sh").args(["-c", &script]).stdin(Stdio::piped()).spawn().unwrap();
            shell.stdin.take().unwrap().write_all(content.as_bytes()).unwrap();
            assert!(shell.wait().unwrap().success());
            let names = std::fs::read_dir(directory.path().join("new home")).unwrap();
            assert_eq!(names.map(|it| it.unwrap().file_name()).collect::<Vec<_>>(), ["twinring"]);
            let program = directory.path().join("new home/twinring");
            assert_eq!(std::fs::read_to_string(&program).unwrap(), "first");
            assert_eq!(std::fs::metadata(program).unwrap().permissions().mode() & 0o777, 0o700);
        }
    }

    #[test]
    fn other_commands_get_the_program_and_its_arguments() {
        let shell = ["sh", "-c", "echo 'a b'"];
        for (template, before) in [
            ("kubectl exec -i {node} --", &["kubectl", "exec", "-i", "n1", "--"][..]),
            ("srun --nodelist={node} -N1", &["srun", "--nodelist=n1", "-N1"]),
            ("ip netns exec {node}", &["ip", "netns", "exec", "n1"]),
        ] {
            assert_eq!(words(template), [before, &shell].concat());
        }
        assert!(command_line(&["ssh".to_owned()], "n1", "").is_err());
    }
}
