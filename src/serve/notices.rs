//! What the operator is told while a service runs.
//!
//! Standard error may be a pipe that nobody reads. A worker, the thread of the signals and the end of
//! the process must not wait there, so a thread of its own does.

use super::report::complain;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// Notices that wait to be printed; what comes beyond them is dropped. All of them are told once, or
/// once a minute, or when somebody asks for something.
const WAITING_MAX: usize = 64;

enum Message {
    Text(String),
    /// Says when all before it is printed.
    Mark(SyncSender<()>),
}

/// Started by the first notice; most services have none to tell.
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
            // Fails if nobody waits any more.
            Message::Mark(printed) => drop(printed.try_send(())),
        }
    }
}

/// Tells the operator, without waiting for it.
pub(super) fn tell(text: String) {
    match PRINTER.get_or_init(start) {
        Some(printer) => drop(printer.try_send(Message::Text(text))),
        None => complain(&text),
    }
}

/// Waits until all that was told is printed, for `limit` at most.
pub(super) fn finish(limit: Duration) {
    if let Some(Some(printer)) = PRINTER.get() {
        let (printed, is_printed) = sync_channel(1);
        if printer.try_send(Message::Mark(printed)).is_ok() {
            let _late = is_printed.recv_timeout(limit);
        }
    }
}
