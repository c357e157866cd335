//! The perf command: whether it can be used, and one running instance of it.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};

/// How long perf may take to obey, and to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Pause between two looks at it.
const TICK: Duration = Duration::from_millis(1);

/// How often it is started at most. It lists the threads of a process and then opens each, and gives up
/// (ESRCH) when one has ended in between.
const STARTS_MAX: usize = 4;

/// How much of its standard error is kept, from the end.
const MOST_WORDS: usize = 400;

/// Which perf there is.
///
/// # Errors
/// Why it cannot be used, and what to do.
pub(super) fn version() -> Result<String, String> {
    let output = Command::new("perf").arg("--version").stdin(Stdio::null()).output();
    let missing =
        |why: String| format!("perf is not there ({why}): install linux-perf, linux-tools or perf");
    let output = output.map_err(|error| missing(error.to_string()))?;
    if !output.status.success() {
        return Err(missing(output.status.to_string()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A running perf that counts or samples while enabled. Dropping it ends it.
pub(super) struct Perf {
    child: Child,
    control: File,
    answers: File,
    errors: PathBuf,
    ended: bool,
}

impl Perf {
    /// Starts `perf` with these arguments, which have to be of `record` or `stat`, in the state in
    /// which it does nothing yet. `helper` leads to [`crate::helper()`]. Its pipes and what it complains about go to `directory`, under
    /// the name of the command.
    ///
    /// # Errors
    /// What perf or the kernel said, and what to do.
    pub(super) fn start(
        helper: &[OsString],
        directory: &Path,
        command: &str,
        arguments: &[String],
    ) -> Result<Perf, String> {
        let start = || Perf::start_once(helper, directory, command, arguments);
        let mut started = start();
        for _ in 1..STARTS_MAX {
            match &started {
                Err(why) if why.contains(Errno::ESRCH.desc()) => started = start(),
                _ => break,
            }
        }
        started
    }

    fn start_once(
        helper: &[OsString],
        directory: &Path,
        command: &str,
        arguments: &[String],
    ) -> Result<Perf, String> {
        let path = |suffix: &str| directory.join(format!("{command}.{suffix}"));
        let [control, answers, errors] = ["control", "answers", "errors"].map(path);
        let io = |what: &Path, error: io::Error| format!("{}: {error}", what.display());
        for pipe in [&control, &answers] {
            match mkfifo(pipe, Mode::S_IRUSR | Mode::S_IWUSR) {
                // Of an earlier start; what was in it went with its last user.
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(error) => return Err(io(pipe, error.into())),
            }
        }
        let complaints = File::create(&errors).map_err(|e| io(&errors, e))?;
        // Through the helper, so that it ends with the lab.
        let (program, first) = helper.split_first().ok_or("the lab has no helper")?;
        let child = Command::new(program)
            .args(first)
            .args(["exec", "any", &std::process::id().to_string(), "perf", command])
            // Since Linux 5.10: disabled at first, then as the pipe says.
            .args(["--delay=-1".to_owned(), fifos(&control, &answers)])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(complaints)
            .process_group(0)
            .spawn();
        let child = child.map_err(|error| format!("perf cannot be started: {error}"))?;
        // For reading and writing, so that opening does not wait for the other end (fifo(7)).
        let open = |path: &Path| {
            let nonblocking = OFlag::O_NONBLOCK.bits();
            let mut options = OpenOptions::new();
            let file = options.read(true).write(true).custom_flags(nonblocking).open(path);
            file.map_err(|e| io(path, e))
        };
        let (control, answers) = (open(&control), open(&answers));
        let mut perf = match (control, answers) {
            (Ok(control), Ok(answers)) => Perf { child, control, answers, errors, ended: false },
            (Err(why), _) | (_, Err(why)) => {
                let mut child = child;
                // It may have ended already.
                let _ = child.kill();
                let _ = child.wait();
                return Err(why);
            }
        };
        // An order that changes nothing shows that it is there.
        perf.order("disable")?;
        Ok(perf)
    }

    /// Counts or samples from now on.
    ///
    /// # Errors
    /// See [`Perf::start`].
    pub(super) fn enable(&mut self) -> Result<(), String> {
        self.order("enable")
    }

    /// Counts and samples nothing from now on.
    ///
    /// # Errors
    /// See [`Perf::start`].
    pub(super) fn disable(&mut self) -> Result<(), String> {
        self.order("disable")
    }

    /// Sends an order and waits until perf has carried it out.
    fn order(&mut self, order: &str) -> Result<(), String> {
        let sent = self.control.write_all(format!("{order}\n").as_bytes());
        sent.map_err(|error| format!("perf cannot be controlled: {error}"))?;
        let deadline = Instant::now() + PATIENCE;
        let mut answer = [0; 16];
        loop {
            match self.answers.read(&mut answer) {
                Ok(1..) => return Ok(()),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                    return Err(format!("perf does not answer: {error}"));
                }
                _ => {}
            }
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                self.ended = true;
                return Err(self.complaint());
            }
            if Instant::now() > deadline {
                return Err(format!("perf did not obey within {} s", PATIENCE.as_secs()));
            }
            thread::sleep(TICK);
        }
    }

    /// Ends it and waits until everything is written.
    ///
    /// # Errors
    /// When it does not end.
    pub(super) fn finish(mut self) -> Result<(), String> {
        self.interrupt();
        let deadline = Instant::now() + PATIENCE;
        while !matches!(self.child.try_wait(), Ok(Some(_))) {
            if Instant::now() > deadline {
                return Err(format!("perf did not end within {} s", PATIENCE.as_secs()));
            }
            thread::sleep(TICK);
        }
        self.ended = true;
        Ok(())
    }

    fn interrupt(&self) {
        // Not reaped yet, so the id is still its own.
        let _ = kill(Pid::from_raw(self.child.id() as i32), Signal::SIGINT);
    }

    /// What it said before it ended, and what that means.
    fn complaint(&self) -> String {
        let said = std::fs::read_to_string(&self.errors).unwrap_or_default();
        explained(&said)
    }
}

impl Drop for Perf {
    fn drop(&mut self) {
        if !self.ended {
            // Its result is no longer needed. What it started is in its group, and the
            // group's id is its own until it is reaped.
            let _ = killpg(Pid::from_raw(self.child.id() as i32), Signal::SIGKILL);
            let _ = self.child.wait();
        }
    }
}

fn fifos(control: &Path, answers: &Path) -> String {
    format!("--control=fifo:{},{}", control.display(), answers.display())
}

/// What perf said, with what to do about it.
fn explained(said: &str) -> String {
    let mut words: String = said.split_whitespace().collect::<Vec<_>>().join(" ");
    words.truncate(words.trim_end_matches('.').len());
    if let Some((at, _)) = words.char_indices().rev().nth(MOST_WORDS) {
        words.replace_range(..at, "…");
    }
    let paranoid = crate::procfs::text("/proc/sys/kernel/perf_event_paranoid");
    let level = paranoid.map_or(String::new(), |level| format!(" (it is {level})"));
    format!(
        "perf failed: {words}. It needs the rights of root or CAP_PERFMON, also inside a \
         container, or kernel.perf_event_paranoid = -1{level}; and perf 5.10 or later"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_perf_says_is_cut_and_explained() {
        let text =
            explained(&format!("{} Access to\n  performance is limited.\n", "é".repeat(900)));
        assert!(text.contains("performance is limited. It needs the rights of root"), "{text}");
        assert!(text.chars().count() < MOST_WORDS + 250);
        assert!(text.contains("perf_event_paranoid = -1"));
    }

    #[test]
    fn a_perf_that_cannot_do_it_says_why() {
        if let Err(why) = version() {
            eprintln!("skipped: {why}");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let arguments = ["-e", "no_such_event", "-p", "1"].map(str::to_owned);
        // As the helper: a shell that passes over the words that are for it.
        let helper = ["sh", "-c", "shift 3; exec \"$@\"", "helper"].map(OsString::from);
        let started = Perf::start(&helper, directory.path(), "stat", &arguments);
        let why = started.err().unwrap();
        assert!(why.contains("no_such_event"), "{why}");
    }
}
