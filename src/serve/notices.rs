//! Notices to the operator while a service runs.
//!
//! Standard error may be a pipe without a reader. A worker, the signal thread and the end of the
//! process must not block on it, so a separate thread writes the notices.

use crate::output::complain;
use std::collections::HashSet;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// Notices that wait to be printed; further ones are dropped. Each kind is sent once, once a minute, or
/// on a request of the operator.
const WAITING_MAX: usize = 64;

enum Message {
    Text(String),
    /// Reports that all notices before it are printed.
    Mark(SyncSender<()>),
}

/// Started by the first notice; most services send none.
static PRINTER: OnceLock<Option<SyncSender<Message>>> = OnceLock::new();

fn start() -> Option<SyncSender<Message>> {
    let (sender, messages) = sync_channel(WAITING_MAX);
    let printer = std::thread::Builder::new().name("notices".to_owned());
    printer.spawn(move || print_all(&messages)).ok()?;
    Some(sender)
}

fn print_all(messages: &Receiver<Message>) {
    for message in messages {
        match message {
            Message::Text(text) => complain(&text),
            // Fails if the receiver has stopped waiting.
            Message::Mark(printed) => drop(printed.try_send(())),
        }
    }
}

pub(super) fn tell(text: String) {
    match PRINTER.get_or_init(start) {
        Some(printer) => drop(printer.try_send(Message::Text(text))),
        None => complain(&text),
    }
}

/// Waits until all notices are printed, for `limit` at most.
pub(super) fn finish(limit: Duration) {
    if let Some(Some(printer)) = PRINTER.get() {
        let (printed, is_printed) = sync_channel(1);
        if printer.try_send(Message::Mark(printed)).is_ok() {
            let _late = is_printed.recv_timeout(limit);
        }
    }
}

/// Prints the first notice of each kind; every worker and listener sends its own.
pub(super) fn print_once() -> impl Fn(twinring::Event) + Send + Sync + 'static {
    let told = Mutex::new(HashSet::new());
    move |notice| {
        let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.insert(std::mem::discriminant(&notice)) {
            tell(format!("twinring: {notice}"));
        }
    }
}
