//! The access log: one line for each request that was answered, or should have been.
//!
//! A worker never waits for it. It formats lines into a buffer of its own (`feed`) and hands that
//! over, when it is full or a tenth of a second old, to one thread that writes (`writer`). When the
//! disk is behind and all buffers are under way, further lines are dropped and counted, and the
//! thread says so. `line` makes the text.

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

/// Bytes after which a worker hands its buffer over. A buffer may exceed this by one line.
const BATCH_BYTES: usize = 64 * 1024;

/// What a line looks like.
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

/// Where the lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTarget {
    /// Standard output.
    Stdout,
    /// The end of this file, which is made if it is not there, with mode 0640.
    File(PathBuf),
}

impl LogTarget {
    /// Opens the file of a log as the log would, but does not make it.
    ///
    /// # Errors
    /// Why a log could not be written there; `NotFound` if the file would have to be made.
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
    /// Where it goes.
    pub target: LogTarget,
    /// What its lines look like.
    pub format: LogFormat,
    /// Memory, in bytes for each worker, for lines that are not written yet; rounded up to 64 KiB.
    /// What does not fit is dropped.
    pub buffer_bytes: usize,
}

/// Lines of an access log so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LogCounts {
    pub(super) written: u64,
    /// Not written: there was no room, or the file could not be written.
    pub(super) dropped: u64,
}

/// What the writing thread shares with everybody.
#[derive(Debug)]
struct Shared {
    /// To be opened anew before the next line.
    reopen: AtomicBool,
    written: Count,
    /// Lines that were lost because writing failed.
    failed: Count,
    /// Lines that there was no room for, of each worker.
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
    /// Taken out at the end, so that the thread learns that nothing more comes.
    messages: Mutex<Option<SyncSender<Message>>>,
    ended: Mutex<Receiver<()>>,
    /// For each worker, until it takes it, the way by which its buffers come back.
    returned: Mutex<Vec<Option<Returned>>>,
}

type Returned = Receiver<Vec<u8>>;

impl fmt::Debug for AccessLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessLog").field("settings", &self.0.settings).finish_non_exhaustive()
    }
}

impl AccessLog {
    /// Opens the log for so many workers and starts its thread. `notice` is called, on that thread,
    /// with what an operator should hear: that the log cannot be written, opened anew, or kept up.
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
        // One more, for a look.
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

    /// Has the file opened anew, after it was renamed, before the next line is written. If it
    /// cannot be, the old one is kept. Standard output stays what it is.
    pub fn reopen(&self) {
        self.0.shared.reopen.store(true, Ordering::Release);
        if let Some(messages) = lock(&self.0.messages).as_ref() {
            // If there is no room for it, there are messages before which the thread looks.
            let _full = messages.try_send(Message::Look);
        }
    }

    /// Where it goes.
    pub fn target(&self) -> &LogTarget {
        &self.0.settings.target
    }

    /// Waits, when all workers have ended, until everything is written; false if it is not within
    /// `limit`.
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

    /// The end of a worker; `None` if it was taken already.
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
