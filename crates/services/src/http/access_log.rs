//! The access log: one line for each request, answered or not.
//!
//! A worker never waits for the log. It appends lines to a queue; one thread writes them when there is a batch or a
//! tenth of a second after the first line. When the disk is too slow, and the queue has reached its bound, further lines
//! are dropped and counted, and the thread reports it. `line` formats.

mod line;

pub(super) use line::{Ended, LogLine, error_line};
pub use line::{LogFormat, log_line};

use super::text::optional;
use crate::server::Count;
use crate::{lock, take_no_signals, write_whole};
use memchr::memchr_iter;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::geteuid;
use serde::Deserialize;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use twinring_input::quantity::Size;

const BATCH_BYTES: usize = 64 * 1024;

/// How long a line waits for others before it is written.
const BATCH_AGE: Duration = Duration::from_millis(100);

/// The shortest time between two complaints.
const COMPLAINT_PERIOD: Duration = Duration::from_secs(60);

/// The destination of the lines.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "PathBuf")]
pub enum LogTarget {
    /// Standard output.
    Stdout,
    /// Appends to this file, which is created if it does not exist, with mode 0640.
    File(PathBuf),
}

impl LogTarget {
    /// Opens it as the log does. Without `create`, a file must exist.
    pub fn open(&self, create: bool) -> io::Result<File> {
        let LogTarget::File(path) = self else {
            // A copy of the descriptor, without a buffer in between, so that it is known how much was written.
            return Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?));
        };
        let mut options = File::options();
        // A FIFO without a reader is refused (ENXIO) instead of blocking. For root a link may lead to no file: it could
        // be any, if the directory is another user's.
        static OF_ROOT: LazyLock<bool> = LazyLock::new(|| geteuid().is_root());
        let link = if *OF_ROOT { OFlag::O_NOFOLLOW } else { OFlag::empty() };
        let flags = (OFlag::O_NONBLOCK | link).bits();
        let file = options.append(true).create(create).mode(0o640).custom_flags(flags).open(path);
        let (file, is_linked) = match file {
            Err(error) if error.raw_os_error() == Some(Errno::ELOOP as i32) => {
                (options.create(false).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?, true)
            }
            file => (file?, false),
        };
        let why = match file.metadata()?.file_type() {
            kind if kind.is_block_device() => Some("is a block device"),
            kind if kind.is_file() && is_linked => {
                Some("is a link, which root does not follow: name the file")
            }
            _ => None,
        };
        if let Some(why) = why {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        fcntl(&file, FcntlArg::F_SETFL(OFlag::O_APPEND))?;
        Ok(file)
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

impl From<PathBuf> for LogTarget {
    fn from(path: PathBuf) -> LogTarget {
        if path.as_os_str() == "-" { LogTarget::Stdout } else { LogTarget::File(path) }
    }
}

/// How a log is kept: keys of `[server]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LogSettings {
    /// The destination.
    pub access_log: Option<LogTarget>,
    /// The format.
    pub access_log_format: LogFormat,
    /// Memory, in bytes for each worker, for lines that are not written yet. Lines beyond it are dropped.
    #[serde(deserialize_with = "optional")]
    pub access_log_buffer: Option<Size<65_536, { 1 << 30 }>>,
}

/// The memory for lines unless it is said.
const BUFFER_BYTES: usize = 4 << 20;

/// Lines that are not written yet, and what else the thread has to do.
#[derive(Debug, Default)]
struct Queue {
    bytes: Vec<u8>,
    taken: usize,
    no_room: u64,
    reopen: bool,
    end: bool,
    has_ended: bool,
}

/// An open log, which a thread writes.
#[derive(Debug)]
pub struct AccessLog {
    /// The destination.
    pub target: LogTarget,
    pub(super) format: LogFormat,
    bytes_max: usize,
    queue: Mutex<Queue>,
    changed: Condvar,
    written: Count,
    /// Lines that were lost because writing failed.
    failed: Count,
}

impl AccessLog {
    /// Opens the log for `workers` workers and starts its thread. `notice` is called, on that
    /// thread, with messages for the operator: the log cannot be written or reopened, or the disk
    /// is too slow.
    pub fn open(
        target: LogTarget,
        settings: &LogSettings,
        workers: usize,
        notice: impl Fn(&str) + Send + 'static,
    ) -> io::Result<Arc<AccessLog>> {
        let file = target.open(true)?;
        let bytes = settings.access_log_buffer.map_or(BUFFER_BYTES, |bytes| bytes.get() as usize);
        let log = Arc::new(AccessLog {
            target,
            format: settings.access_log_format,
            bytes_max: bytes.saturating_mul(workers),
            queue: Mutex::default(),
            changed: Condvar::new(),
            written: Count::default(),
            failed: Count::default(),
        });
        let mut writer = Writer {
            file,
            log: Arc::clone(&log),
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
        Ok(log)
    }

    /// Reopens the file, after it was renamed, before the next line is written. If that fails, the
    /// old file stays open. Standard output is not affected.
    pub fn reopen(&self) {
        lock(&self.queue).reopen = true;
        self.changed.notify_all();
    }

    /// Waits, after all workers have ended, until all lines are written; false if that takes longer
    /// than `limit`.
    pub fn finish(&self, limit: Duration) -> bool {
        let mut queue = lock(&self.queue);
        queue.end = true;
        self.changed.notify_all();
        let waited = self.changed.wait_timeout_while(queue, limit, |queue| !queue.has_ended);
        waited.unwrap_or_else(PoisonError::into_inner).0.has_ended
    }

    /// Lines that were written, and lines that were not: the queue was full, or the file could not be written.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.written.get(), self.failed.get() + lock(&self.queue).no_room)
    }

    pub(super) fn add(&self, line: &[u8]) {
        let mut queue = lock(&self.queue);
        if queue.bytes.len() + queue.taken >= self.bytes_max {
            queue.no_room += 1;
            return;
        }
        let before = queue.bytes.len();
        queue.bytes.extend_from_slice(line);
        let is_batch = before < BATCH_BYTES && queue.bytes.len() >= BATCH_BYTES;
        drop(queue);
        if before == 0 || is_batch {
            self.changed.notify_all();
        }
    }
}

struct Writer<N> {
    file: File,
    log: Arc<AccessLog>,
    notice: N,
    /// The last write ended within a line.
    torn: bool,
    /// Lines lost since writing began to fail; `None` while it works.
    failing: Option<u64>,
    complained: Option<Instant>,
    no_room_told: u64,
}

impl<N: Fn(&str)> Writer<N> {
    fn run(&mut self) {
        let log = Arc::clone(&self.log);
        let mut bytes = Vec::new();
        loop {
            let mut queue = wait(&log);
            std::mem::swap(&mut queue.bytes, &mut bytes);
            queue.taken = bytes.len();
            let (reopen, end, no_room) =
                (std::mem::take(&mut queue.reopen), queue.end, queue.no_room);
            drop(queue);
            if reopen {
                self.reopen();
            }
            if !bytes.is_empty() {
                self.write_lines(&bytes);
            }
            // Dropping is never silent, but the thread that has time reports it.
            if no_room > self.no_room_told && self.may_complain() {
                let lines = no_room - std::mem::replace(&mut self.no_room_told, no_room);
                self.tell(&format!(
                    "writing falls behind; {lines} lines were dropped (a larger access-log-buffer bridges longer \
                     pauses of the disk)"
                ));
            }
            bytes.clear();
            let mut queue = lock(&log.queue);
            queue.taken = 0;
            if end {
                queue.has_ended = true;
                return log.changed.notify_all();
            }
        }
    }

    fn tell(&self, what: &str) {
        (self.notice)(&format!("access log {}: {what}", self.log.target));
    }

    fn reopen(&mut self) {
        match self.log.target.open(true) {
            Ok(file) => (self.file, self.torn) = (file, false),
            Err(error) => {
                self.tell(&format!("cannot be reopened: {error}; the old file stays open"))
            }
        }
    }

    fn write_lines(&mut self, bytes: &[u8]) {
        let (mut length, mut outcome) = (0, Ok(()));
        if self.torn {
            outcome = self.write(b"\n").1;
        }
        if outcome.is_ok() {
            (length, outcome) = self.write(bytes);
            self.torn = bytes[..length].last().is_some_and(|last| *last != b'\n');
        }
        let whole = memchr_iter(b'\n', &bytes[..length]).count() as u64;
        self.log.written.add(whole);
        match outcome {
            Ok(()) => {
                if let Some(lost) = self.failing.take() {
                    self.tell(&format!("written again; {lost} lines were lost"));
                }
            }
            Err(error) => {
                let lost = memchr_iter(b'\n', bytes).count() as u64 - whole;
                self.log.failed.add(lost);
                *self.failing.get_or_insert(0) += lost;
                if self.may_complain() {
                    self.tell(&format!(
                        "{error}; lines are dropped, and counted, until it can be written again"
                    ));
                }
            }
        }
    }

    fn write(&self, bytes: &[u8]) -> (usize, io::Result<()>) {
        // The command's own output must not come between two halves of a line.
        let is_stdout = self.log.target == LogTarget::Stdout;
        let _stdout = is_stdout.then(|| io::stdout().lock());
        write_whole(self.file.as_fd(), bytes)
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
fn wait(log: &AccessLog) -> MutexGuard<'_, Queue> {
    let is_idle = |queue: &mut Queue| queue.bytes.is_empty() && !queue.reopen && !queue.end;
    let waited = log.changed.wait_while(lock(&log.queue), is_idle);
    let queue = waited.unwrap_or_else(PoisonError::into_inner);
    let may_wait =
        |queue: &mut Queue| queue.bytes.len() < BATCH_BYTES && !queue.reopen && !queue.end;
    let waited = log.changed.wait_timeout_while(queue, BATCH_AGE, may_wait);
    waited.unwrap_or_else(PoisonError::into_inner).0
}
