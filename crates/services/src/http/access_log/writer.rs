//! The thread that writes the log.

use super::{LogTarget, Shared, Wanted, lock};
use memchr::memchr_iter;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// The shortest time between two complaints of the same kind.
const COMPLAINT_PERIOD: Duration = Duration::from_secs(60);

/// How long a line waits for others before it is written.
const BATCH_AGE: Duration = Duration::from_millis(100);

/// The output.
#[derive(Debug)]
pub(super) enum Sink {
    /// A copy of the descriptor, without a buffer in between, so that it is known how much was
    /// written.
    Stdout(File),
    File(File),
}

impl Sink {
    pub(super) fn open(target: &LogTarget) -> io::Result<Sink> {
        match target {
            LogTarget::Stdout => {
                Ok(Sink::Stdout(File::from(io::stdout().as_fd().try_clone_to_owned()?)))
            }
            LogTarget::File(path) => {
                open(path, File::options().create(true).mode(0o640)).map(Sink::File)
            }
        }
    }

    /// Writes until all is written or an error occurs; returns how much was written before.
    fn write(&self, bytes: &[u8]) -> (usize, io::Result<()>) {
        // The command's own output must not come between two halves of a line.
        let (mut file, _stdout) = match self {
            Sink::Stdout(file) => (file, Some(io::stdout().lock())),
            Sink::File(file) => (file, None),
        };
        let mut written = 0;
        while written < bytes.len() {
            match file.write(&bytes[written..]) {
                Ok(0) => return (written, Err(io::ErrorKind::WriteZero.into())),
                Ok(more) => written += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Standard output may be shared with a program that made it non-blocking: node, bun, ssh.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let writable = PollFd::new(file.as_fd(), PollFlags::POLLOUT);
                    match poll(&mut [writable], PollTimeout::NONE) {
                        Ok(_) | Err(Errno::EINTR) => {}
                        Err(error) => return (written, Err(error.into())),
                    }
                }
                Err(error) => return (written, Err(error)),
            }
        }
        (written, Ok(()))
    }
}

/// Opens a file, a character device or a pipe to be appended to.
pub(super) fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    // A FIFO without a reader is refused (ENXIO) instead of blocking.
    let file = options.append(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    if file.metadata()?.file_type().is_block_device() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "is a block device"));
    }
    fcntl(&file, FcntlArg::F_SETFL(OFlag::O_APPEND))?;
    Ok(file)
}

/// See the module.
pub(super) struct Writer<N> {
    sink: Sink,
    shared: Arc<Shared>,
    notice: N,
    /// The last write ended within a line.
    torn: bool,
    /// Lines lost since writing began to fail; `None` while it works.
    failing: Option<u64>,
    /// The current failure was reported.
    told: bool,
    /// When each kind of failure was last reported.
    complained: [Option<Instant>; 2],
    /// Dropped lines that were reported.
    no_room_told: u64,
}

/// Kinds of complaints.
const FAILING: usize = 0;
const NO_ROOM: usize = 1;

impl<N: Fn(&str)> Writer<N> {
    pub(super) fn new(sink: Sink, shared: Arc<Shared>, notice: N) -> Writer<N> {
        Writer {
            sink,
            shared,
            notice,
            torn: false,
            failing: None,
            told: false,
            complained: [None; 2],
            no_room_told: 0,
        }
    }

    /// Writes the lines of all workers until the log ends.
    pub(super) fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let mut spare = Vec::new();
        loop {
            let Wanted { reopen, end, .. } = wait(&shared);
            if reopen {
                self.reopen();
            }
            for buffer in &shared.buffers {
                let mut filled = lock(buffer);
                let bytes = std::mem::replace(&mut filled.bytes, std::mem::take(&mut spare));
                let lines = std::mem::take(&mut filled.lines);
                filled.taken = bytes.len();
                drop(filled);
                if lines > 0 {
                    self.write(&bytes, lines);
                }
                lock(buffer).taken = 0;
                spare = bytes;
                spare.clear();
            }
            self.tell_of_dropped_lines();
            if end {
                return;
            }
        }
    }

    fn reopen(&mut self) {
        match Sink::open(&self.shared.settings.target) {
            Ok(sink) => {
                self.sink = sink;
                self.torn = false;
            }
            Err(error) => (self.notice)(&format!(
                "access log {}: cannot be reopened: {error}; the old file stays open",
                self.shared.settings.target
            )),
        }
    }

    fn write(&mut self, bytes: &[u8], lines: u64) {
        if self.torn
            && let (_, Err(error)) = self.sink.write(b"\n")
        {
            return self.fail(&error, lines);
        }
        self.torn = false;
        let (length, outcome) = self.sink.write(bytes);
        match outcome {
            Ok(()) => {
                self.told = false;
                if let Some(lost) = self.failing.take() {
                    (self.notice)(&format!(
                        "access log {}: written again; {lost} lines were lost",
                        self.shared.settings.target
                    ));
                }
                self.shared.written.add(lines);
            }
            Err(error) => {
                let whole = memchr_iter(b'\n', &bytes[..length]).count() as u64;
                self.torn = bytes[..length].last().is_some_and(|last| *last != b'\n');
                self.shared.written.add(whole);
                self.fail(&error, lines - whole);
            }
        }
    }

    fn fail(&mut self, error: &io::Error, lost: u64) {
        self.shared.failed.add(lost);
        *self.failing.get_or_insert(0) += lost;
        // A failure that begins too soon after another one is reported later, if it continues.
        if !self.told && self.may_complain(FAILING) {
            self.told = true;
            (self.notice)(&format!(
                "access log {}: {error}; lines are dropped, and counted, until it can be written \
                 again",
                self.shared.settings.target
            ));
        }
    }

    /// Dropping is never silent, but the thread that has time reports it.
    fn tell_of_dropped_lines(&mut self) {
        let dropped = self.shared.no_room();
        if dropped > self.no_room_told && self.may_complain(NO_ROOM) {
            let lines = dropped - std::mem::replace(&mut self.no_room_told, dropped);
            (self.notice)(&format!(
                "access log {}: writing falls behind; {lines} lines were dropped (a larger \
                 access-log-buffer bridges longer pauses of the disk)",
                self.shared.settings.target
            ));
        }
    }

    fn may_complain(&mut self, kind: usize) -> bool {
        let due = self.complained[kind].is_none_or(|last| last.elapsed() >= COMPLAINT_PERIOD);
        if due {
            self.complained[kind] = Some(Instant::now());
        }
        due
    }
}

/// Waits until there is something to do; a moment longer for few lines, which others may join.
fn wait(shared: &Shared) -> Wanted {
    let is_idle = |wanted: &mut Wanted| !(wanted.lines || wanted.reopen || wanted.end);
    let waited = shared.has_work.wait_while(lock(&shared.wanted), is_idle);
    let wanted = waited.unwrap_or_else(PoisonError::into_inner);
    let may_wait = |wanted: &mut Wanted| !(wanted.soon || wanted.reopen || wanted.end);
    let waited = shared.has_work.wait_timeout_while(wanted, BATCH_AGE, may_wait);
    let (mut wanted, _) = waited.unwrap_or_else(PoisonError::into_inner);
    std::mem::take(&mut *wanted)
}
