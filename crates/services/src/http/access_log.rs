//! The access log: one line for each request, answered or not; and the lines about errors.
//!
//! A worker never waits for a log. It appends lines to a buffer of its own; one thread (`writer`) takes the buffers
//! of all workers when one is full or a tenth of a second after the first line. When the disk is too slow, and a
//! buffer has reached its bound, further lines are dropped and counted, and the thread reports it. `line` formats.

pub(super) mod fuzzing;
mod line;
mod writer;

pub(super) use line::{Client, LogLine, Outcome};

use super::Status;
use super::answer::Call;
use super::date::Clock;
use super::response::Reason;
use crate::server::Count;
use crate::signals::take_no_signals;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use writer::{Sink, Writer};

/// Bytes of a buffer that the thread takes without waiting for more.
const BATCH_BYTES: usize = 64 * 1024;

/// The format of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// The format that is called so, followed by the seconds that the request took and `+`, `-`
    /// or `X`: the connection stays, ends, or ended before the answer was handed over whole.
    #[default]
    Combined,
    /// The same behind the name of the requested host.
    VhostCombined,
    /// A JSON object.
    Json,
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<LogFormat, String> {
        match text {
            "combined" => Ok(LogFormat::Combined),
            "vhost-combined" => Ok(LogFormat::VhostCombined),
            "json" => Ok(LogFormat::Json),
            _ => Err("expected combined, vhost-combined or json".to_owned()),
        }
    }
}

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
        writer::open(path, &mut File::options())
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

/// How a log is kept.
#[derive(Clone, Debug)]
pub struct LogSettings {
    /// The destination.
    pub target: LogTarget,
    /// The format.
    pub format: LogFormat,
    /// Memory, in bytes for each worker, for lines that are not written yet; rounded up to 64 KiB.
    /// Lines beyond it are dropped.
    pub buffer_bytes: usize,
}

/// Lines of a log so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LogCounts {
    pub(super) written: u64,
    /// Not written: the buffer was full, or the file could not be written.
    pub(super) dropped: u64,
}

/// Lines of a worker that are not written yet.
#[derive(Debug, Default)]
struct Buffer {
    bytes: Vec<u8>,
    lines: u64,
    /// Bytes that the thread has taken, and is writing.
    taken: usize,
}

/// What the thread waits for.
#[derive(Clone, Copy, Debug, Default)]
struct Wanted {
    /// There are lines.
    lines: bool,
    /// A buffer holds a batch.
    soon: bool,
    reopen: bool,
    end: bool,
}

/// State shared by the workers and the writing thread.
#[derive(Debug)]
struct Shared {
    settings: LogSettings,
    buffers: Vec<Mutex<Buffer>>,
    wanted: Mutex<Wanted>,
    has_work: Condvar,
    written: Count,
    /// Lines that were lost because writing failed.
    failed: Count,
    /// Lines that found no room, of each worker.
    no_room: Vec<Count>,
}

impl Shared {
    fn no_room(&self) -> u64 {
        self.no_room.iter().map(Count::get).sum()
    }

    fn want(&self, change: impl FnOnce(&mut Wanted)) {
        change(&mut lock(&self.wanted));
        self.has_work.notify_one();
    }
}

/// An open log and the thread that writes it. Clones are of the same log.
#[derive(Clone)]
pub struct AccessLog {
    shared: Arc<Shared>,
    ended: Arc<Mutex<Receiver<()>>>,
}

impl fmt::Debug for AccessLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = &self.shared.settings;
        f.debug_struct("AccessLog").field("settings", settings).finish_non_exhaustive()
    }
}

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
        let sink = Sink::open(&settings.target)?;
        let buffer_bytes = settings.buffer_bytes.next_multiple_of(BATCH_BYTES).max(BATCH_BYTES);
        let shared = Arc::new(Shared {
            settings: LogSettings { buffer_bytes, ..settings },
            buffers: (0..workers).map(|_| Mutex::default()).collect(),
            wanted: Mutex::default(),
            has_work: Condvar::new(),
            written: Count::default(),
            failed: Count::default(),
            no_room: (0..workers).map(|_| Count::default()).collect(),
        });
        let writer = Writer::new(sink, Arc::clone(&shared), notice);
        let (end, ended) = sync_channel(1);
        std::thread::Builder::new().name("access-log".to_owned()).spawn(move || {
            take_no_signals();
            writer.run();
            drop(end);
        })?;
        Ok(AccessLog { shared, ended: Arc::new(Mutex::new(ended)) })
    }

    /// Reopens the file, after it was renamed, before the next line is written. If that fails, the
    /// old file stays open. Standard output is not affected.
    pub fn reopen(&self) {
        self.shared.want(|wanted| wanted.reopen = true);
    }

    /// The destination.
    pub fn target(&self) -> &LogTarget {
        &self.shared.settings.target
    }

    /// Waits, after all workers have ended, until all lines are written; false if that takes longer
    /// than `limit`.
    pub fn finish(&self, limit: Duration) -> bool {
        self.shared.want(|wanted| wanted.end = true);
        lock(&self.ended).recv_timeout(limit) != Err(RecvTimeoutError::Timeout)
    }

    pub(super) fn counts(&self) -> LogCounts {
        LogCounts {
            written: self.shared.written.get(),
            dropped: self.shared.failed.get() + self.shared.no_room(),
        }
    }

    /// The end of a worker.
    pub(super) fn of_worker(&self, worker: usize) -> WorkerLog {
        WorkerLog { shared: Arc::clone(&self.shared), worker }
    }
}

/// The end of a log at which a worker adds lines.
#[derive(Debug)]
pub(super) struct WorkerLog {
    shared: Arc<Shared>,
    worker: usize,
}

impl WorkerLog {
    /// Adds a line, its LF included.
    fn add(&self, write: impl FnOnce(&mut Vec<u8>)) {
        let mut buffer = lock(&self.shared.buffers[self.worker]);
        if buffer.bytes.len() + buffer.taken >= self.shared.settings.buffer_bytes {
            return self.shared.no_room[self.worker].add(1);
        }
        let before = buffer.bytes.len();
        write(&mut buffer.bytes);
        buffer.lines += 1;
        let after = buffer.bytes.len();
        drop(buffer);
        let soon = before < BATCH_BYTES && after >= BATCH_BYTES;
        if before == 0 || soon {
            self.shared.want(|wanted| {
                wanted.lines = true;
                wanted.soon |= soon;
            });
        }
    }

    fn format(&self) -> LogFormat {
        self.shared.settings.format
    }
}

/// Takes lines that say why an answer is no success.
#[derive(Clone)]
pub(super) struct ErrorLog(pub(super) Arc<dyn Fn(String) + Send + Sync>);

impl fmt::Debug for ErrorLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ErrorLog")
    }
}

impl ErrorLog {
    pub(super) fn add(&self, clock: &Clock, status: Status, reason: Reason, call: &Call<'_, '_>) {
        (self.0)(line::error_line(clock, status, reason, call));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
