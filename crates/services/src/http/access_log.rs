//! The access log: one line for each request, answered or not.
//!
//! A worker never waits for it. It formats lines into its own buffer (`feed`) and passes that, when
//! it is full or a tenth of a second old, to one writing thread (`writer`). When the disk is too
//! slow and all buffers are in use, further lines are dropped and counted, and the thread reports
//! it. `line` formats the text.

mod feed;
pub(super) mod fuzzing;
mod line;
mod writer;

pub(super) use feed::{ConnectionLog, WorkerLog};

use crate::server::Count;
use crate::signals::take_no_signals;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use writer::{Message, Sink, Writer};

/// Bytes after which a worker passes its buffer on. A buffer may exceed this by one line.
const BATCH_BYTES: usize = 64 * 1024;

/// The format of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// The format that is called so, followed by the seconds that the request took and `+`, `-`
    /// or `X`: the connection stays, ends, or ended before the answer was handed over whole.
    #[default]
    Combined,
    /// A JSON object.
    Json,
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<LogFormat, String> {
        match text {
            "combined" => Ok(LogFormat::Combined),
            "json" => Ok(LogFormat::Json),
            _ => Err("expected combined or json".to_owned()),
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

/// How an access log is kept.
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

/// Lines of an access log so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LogCounts {
    pub(super) written: u64,
    /// Not written: the buffer was full, or the file could not be written.
    pub(super) dropped: u64,
}

/// State shared with the writing thread.
#[derive(Debug)]
struct Shared {
    /// Reopen the file before the next line.
    reopen: AtomicBool,
    written: Count,
    /// Lines that were lost because writing failed.
    failed: Count,
    /// Lines dropped by a full buffer, of each worker.
    no_room: Vec<Count>,
    /// Batches that are handed over and not written yet, of each worker.
    under_way: Vec<AtomicUsize>,
    /// As many as that may be.
    batches_max: usize,
}

impl Shared {
    fn no_room(&self) -> u64 {
        self.no_room.iter().map(Count::get).sum()
    }
}

/// An open access log and the thread that writes it. Clones are of the same log.
#[derive(Clone)]
pub struct AccessLog(Arc<Inner>);

struct Inner {
    settings: LogSettings,
    shared: Arc<Shared>,
    /// Removed at the end, so that the thread knows that no more messages follow.
    messages: Mutex<Option<SyncSender<Message>>>,
    ended: Mutex<Receiver<()>>,
    /// For each worker, until it takes it, the channel by which its buffers return.
    returned: Mutex<Vec<Option<Returned>>>,
}

type Returned = Receiver<Vec<u8>>;

impl fmt::Debug for AccessLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessLog").field("settings", &self.0.settings).finish_non_exhaustive()
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
        let batches_max = settings.buffer_bytes.div_ceil(BATCH_BYTES).max(1);
        let shared = Arc::new(Shared {
            reopen: AtomicBool::new(false),
            written: Count::default(),
            failed: Count::default(),
            no_room: (0..workers).map(|_| Count::default()).collect(),
            under_way: (0..workers).map(|_| AtomicUsize::new(0)).collect(),
            batches_max,
        });
        // One more, for a wake-up.
        let (messages, received) = sync_channel(batches_max * workers + 1);
        let (returns, returned): (Vec<_>, Vec<_>) = (0..workers).map(|_| sync_channel(1)).unzip();
        let writer =
            Writer::new(sink, settings.target.clone(), Arc::clone(&shared), returns, notice);
        let (end, ended) = sync_channel(1);
        std::thread::Builder::new().name("access-log".to_owned()).spawn(move || {
            take_no_signals();
            writer.run(&received);
            drop(end);
        })?;
        Ok(AccessLog(Arc::new(Inner {
            settings,
            shared,
            messages: Mutex::new(Some(messages)),
            ended: Mutex::new(ended),
            returned: Mutex::new(returned.into_iter().map(Some).collect()),
        })))
    }

    /// Reopens the file, after it was renamed, before the next line is written. If that fails, the
    /// old file stays open. Standard output is not affected.
    pub fn reopen(&self) {
        self.0.shared.reopen.store(true, Ordering::Release);
        if let Some(messages) = lock(&self.0.messages).as_ref() {
            // If the channel is full, the thread checks before the messages in it.
            let _full = messages.try_send(Message::Look);
        }
    }

    /// The destination.
    pub fn target(&self) -> &LogTarget {
        &self.0.settings.target
    }

    /// Waits, after all workers have ended, until all lines are written; false if that takes longer
    /// than `limit`.
    pub fn finish(&self, limit: Duration) -> bool {
        drop(lock(&self.0.messages).take());
        lock(&self.0.ended).recv_timeout(limit) != Err(RecvTimeoutError::Timeout)
    }

    pub(super) fn counts(&self) -> LogCounts {
        LogCounts {
            written: self.0.shared.written.get(),
            dropped: self.0.shared.failed.get() + self.0.shared.no_room(),
        }
    }

    /// The end of a worker; `None` if it was taken before.
    pub(super) fn of_worker(&self, number: usize) -> Option<WorkerLog> {
        let returned = lock(&self.0.returned).get_mut(number)?.take()?;
        let messages = lock(&self.0.messages).clone()?;
        let shared = Arc::clone(&self.0.shared);
        Some(WorkerLog::new(self.0.settings.format, number, messages, returned, shared))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
