//! The access log: one line for each request, answered or not.
//!
//! A worker never waits for the log. It appends lines to a queue; one thread writes them when there is a batch or a
//! tenth of a second after the first line. When the disk is too slow, and the queue has reached its bound, further lines
//! are dropped and counted, and the thread reports it. `line` formats.

mod line;

pub(super) use line::{Client, Ended, LogLine, Outcome, error_line};
pub use line::{LogFormat, log_line};

use crate::process::take_no_signals;
use crate::server::Count;
use memchr::memchr_iter;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const BATCH_BYTES: usize = 64 * 1024;

/// How long a line waits for others before it is written.
const BATCH_AGE: Duration = Duration::from_millis(100);

/// The shortest time between two complaints.
const COMPLAINT_PERIOD: Duration = Duration::from_secs(60);

/// The destination of the lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTarget {
    /// Standard output.
    Stdout,
    /// Appends to this file, which is created if it does not exist, with mode 0640.
    File(PathBuf),
}

impl LogTarget {
    /// Opens the file of a log as the log would, but does not create it.
    ///
    /// # Errors
    /// Why a log could not be written there; `NotFound` if the file would have to be created.
    pub fn open_existing(path: &Path) -> io::Result<File> {
        open(path, &mut File::options())
    }

    fn open(&self) -> io::Result<File> {
        match self {
            // A copy of the descriptor, without a buffer in between, so that it is known how much was written.
            LogTarget::Stdout => Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?)),
            LogTarget::File(path) => open(path, File::options().create(true).mode(0o640)),
        }
    }
}

impl fmt::Display for LogTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogTarget::Stdout => f.write_str("standard output"),
            LogTarget::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Opens a file, a character device or a pipe to be appended to.
fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    // A FIFO without a reader is refused (ENXIO) instead of blocking.
    let file = options.append(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    if file.metadata()?.file_type().is_block_device() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "is a block device"));
    }
    fcntl(&file, FcntlArg::F_SETFL(OFlag::O_APPEND))?;
    Ok(file)
}

/// How a log is kept.
#[derive(Clone, Debug)]
pub struct LogSettings {
    /// The destination.
    pub target: LogTarget,
    /// The format.
    pub format: LogFormat,
    /// Memory, in bytes for each worker, for lines that are not written yet; at least 64 KiB. Lines beyond it are
    /// dropped.
    pub buffer_bytes: usize,
}

/// Lines that are not written yet, and what else the thread has to do.
#[derive(Debug, Default)]
struct Queue {
    bytes: Vec<u8>,
    lines: u64,
    /// Bytes that the thread is writing.
    taken: usize,
    /// Lines that found no room.
    no_room: u64,
    reopen: bool,
    end: bool,
    has_ended: bool,
}

#[derive(Debug)]
struct Shared {
    settings: LogSettings,
    bytes_max: usize,
    queue: Mutex<Queue>,
    changed: Condvar,
    written: Count,
    /// Lines that were lost because writing failed.
    failed: Count,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An open log and the thread that writes it. Clones are of the same log.
#[derive(Clone, Debug)]
pub struct AccessLog(Arc<Shared>);

impl AccessLog {
    /// Opens the log for `workers` workers and starts its thread. `notice` is called, on that
    /// thread, with messages for the operator: the log cannot be written or reopened, or the disk
    /// is too slow.
    ///
    /// # Errors
    /// When the file cannot be opened or the thread not be started.
    pub fn open(
        settings: LogSettings,
        workers: usize,
        notice: impl Fn(&str) + Send + 'static,
    ) -> io::Result<AccessLog> {
        let file = settings.target.open()?;
        let shared = Arc::new(Shared {
            bytes_max: settings.buffer_bytes.max(BATCH_BYTES).saturating_mul(workers),
            settings,
            queue: Mutex::default(),
            changed: Condvar::new(),
            written: Count::default(),
            failed: Count::default(),
        });
        let mut writer = Writer {
            file,
            shared: Arc::clone(&shared),
            notice,
            torn: false,
            failing: None,
            complained: None,
            no_room_told: 0,
        };
        std::thread::Builder::new().name("access-log".to_owned()).spawn(move || {
            take_no_signals();
            writer.run();
        })?;
        Ok(AccessLog(shared))
    }

    /// Reopens the file, after it was renamed, before the next line is written. If that fails, the
    /// old file stays open. Standard output is not affected.
    pub fn reopen(&self) {
        self.0.queue().reopen = true;
        self.0.changed.notify_all();
    }

    /// The destination.
    pub fn target(&self) -> &LogTarget {
        &self.0.settings.target
    }

    /// Waits, after all workers have ended, until all lines are written; false if that takes longer
    /// than `limit`.
    pub fn finish(&self, limit: Duration) -> bool {
        let mut queue = self.0.queue();
        queue.end = true;
        self.0.changed.notify_all();
        let waited = self.0.changed.wait_timeout_while(queue, limit, |queue| !queue.has_ended);
        waited.unwrap_or_else(PoisonError::into_inner).0.has_ended
    }

    /// Lines that were written, and lines that were not: the queue was full, or the file could not be written.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.0.written.get(), self.0.failed.get() + self.0.queue().no_room)
    }

    pub(super) fn format(&self) -> LogFormat {
        self.0.settings.format
    }

    /// Adds a line, its LF included.
    fn add(&self, line: &[u8]) {
        let mut queue = self.0.queue();
        if queue.bytes.len() + queue.taken >= self.0.bytes_max {
            queue.no_room += 1;
            return;
        }
        let before = queue.bytes.len();
        queue.bytes.extend_from_slice(line);
        queue.lines += 1;
        let is_batch = before < BATCH_BYTES && queue.bytes.len() >= BATCH_BYTES;
        drop(queue);
        if before == 0 || is_batch {
            self.0.changed.notify_all();
        }
    }
}

/// The thread that writes the log.
struct Writer<N> {
    file: File,
    shared: Arc<Shared>,
    notice: N,
    /// The last write ended within a line.
    torn: bool,
    /// Lines lost since writing began to fail; `None` while it works.
    failing: Option<u64>,
    /// When a failure was last reported.
    complained: Option<Instant>,
    /// Dropped lines that were reported.
    no_room_told: u64,
}

impl<N: Fn(&str)> Writer<N> {
    /// Writes lines until the log ends.
    fn run(&mut self) {
        let shared = Arc::clone(&self.shared);
        let mut spare = Vec::new();
        loop {
            let mut queue = wait(&shared);
            let bytes = std::mem::replace(&mut queue.bytes, std::mem::take(&mut spare));
            let lines = std::mem::take(&mut queue.lines);
            queue.taken = bytes.len();
            let (reopen, end, no_room) =
                (std::mem::take(&mut queue.reopen), queue.end, queue.no_room);
            drop(queue);
            if reopen {
                self.reopen();
            }
            if lines > 0 {
                self.write_lines(&bytes, lines);
            }
            // Dropping is never silent, but the thread that has time reports it.
            if no_room > self.no_room_told && self.may_complain() {
                let lines = no_room - std::mem::replace(&mut self.no_room_told, no_room);
                self.tell(&format!(
                    "writing falls behind; {lines} lines were dropped (a larger access-log-buffer bridges longer \
                     pauses of the disk)"
                ));
            }
            spare = bytes;
            spare.clear();
            let mut queue = shared.queue();
            queue.taken = 0;
            if end {
                queue.has_ended = true;
                return shared.changed.notify_all();
            }
        }
    }

    fn tell(&self, what: &str) {
        (self.notice)(&format!("access log {}: {what}", self.shared.settings.target));
    }

    fn reopen(&mut self) {
        match self.shared.settings.target.open() {
            Ok(file) => (self.file, self.torn) = (file, false),
            Err(error) => {
                self.tell(&format!("cannot be reopened: {error}; the old file stays open"))
            }
        }
    }

    fn write_lines(&mut self, bytes: &[u8], lines: u64) {
        if self.torn
            && let (_, Err(error)) = self.write(b"\n")
        {
            return self.fail(&error, lines);
        }
        self.torn = false;
        let (length, outcome) = self.write(bytes);
        match outcome {
            Ok(()) => {
                self.shared.written.add(lines);
                if let Some(lost) = self.failing.take() {
                    self.tell(&format!("written again; {lost} lines were lost"));
                }
            }
            Err(error) => {
                let whole = memchr_iter(b'\n', &bytes[..length]).count() as u64;
                self.torn = bytes[..length].last().is_some_and(|last| *last != b'\n');
                self.shared.written.add(whole);
                self.fail(&error, lines - whole);
            }
        }
    }

    /// Writes until all is written or an error occurs; returns how much was written before.
    fn write(&self, bytes: &[u8]) -> (usize, io::Result<()>) {
        // The command's own output must not come between two halves of a line.
        let is_stdout = self.shared.settings.target == LogTarget::Stdout;
        let _stdout = is_stdout.then(|| io::stdout().lock());
        let mut written = 0;
        while written < bytes.len() {
            match (&self.file).write(&bytes[written..]) {
                Ok(0) => return (written, Err(io::ErrorKind::WriteZero.into())),
                Ok(more) => written += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Standard output may be shared with a program that made it non-blocking: node, bun, ssh.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let writable = PollFd::new(self.file.as_fd(), PollFlags::POLLOUT);
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

    fn fail(&mut self, error: &io::Error, lost: u64) {
        self.shared.failed.add(lost);
        *self.failing.get_or_insert(0) += lost;
        if self.may_complain() {
            self.tell(&format!(
                "{error}; lines are dropped, and counted, until it can be written again"
            ));
        }
    }

    fn may_complain(&mut self) -> bool {
        let due = self.complained.is_none_or(|last| last.elapsed() >= COMPLAINT_PERIOD);
        if due {
            self.complained = Some(Instant::now());
        }
        due
    }
}

/// Waits until there is something to do; a moment longer for few lines, which others may join.
fn wait(shared: &Shared) -> MutexGuard<'_, Queue> {
    let is_idle = |queue: &mut Queue| queue.bytes.is_empty() && !queue.reopen && !queue.end;
    let waited = shared.changed.wait_while(shared.queue(), is_idle);
    let queue = waited.unwrap_or_else(PoisonError::into_inner);
    let may_wait =
        |queue: &mut Queue| queue.bytes.len() < BATCH_BYTES && !queue.reopen && !queue.end;
    let waited = shared.changed.wait_timeout_while(queue, BATCH_AGE, may_wait);
    waited.unwrap_or_else(PoisonError::into_inner).0
}
