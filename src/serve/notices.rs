//! What a server prints while it runs, and what it tells the service manager.
//!
//! Standard output and standard error may be pipes without a reader. A worker, the signal thread and the end of the
//! process must not block on them, so each has a thread that writes.
//!
//! The manager is told by sd_notify(3), for `Type=notify-reload` of systemd. Not by the crate sd-notify: it opens a
//! socket for each message, which the sandbox refuses. This one is connected before the sandbox is entered.

use crate::output::{complain, print_line};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// Lines that wait to be printed; further ones are dropped. Each kind of notice is sent once, once a minute, or
/// on a request of the operator; errors of clients have a queue of their own.
const WAITING_MAX: usize = 64;

/// How long the end of the process waits for each queue. With a drain of 10 s it ends well before the 15 s
/// after which the units in deploy/ have it killed.
const LAST_WORDS_MAX: Duration = Duration::from_secs(1);

enum Message {
    Text(String),
    /// Reports that all before it is printed.
    Mark(SyncSender<()>),
}

/// A stream. Its thread is started by the first line.
pub(super) struct Printer {
    thread: &'static str,
    print: fn(&str),
    sender: OnceLock<Option<SyncSender<Message>>>,
}

static NOTICES: Printer = Printer { thread: "notices", print: complain, sender: OnceLock::new() };
/// Standard error as well: what clients cause must not push out notices.
pub(super) static ERRORS: Printer =
    Printer { thread: "errors", print: complain, sender: OnceLock::new() };
/// Standard output.
pub(super) static REPORTS: Printer =
    Printer { thread: "reports", print: print_line, sender: OnceLock::new() };

impl Printer {
    fn start(&self) -> Option<SyncSender<Message>> {
        let (sender, messages) = sync_channel(WAITING_MAX);
        let print = self.print;
        let print = move |message| match message {
            Message::Text(text) => print(&text),
            // Fails if the receiver has stopped waiting.
            Message::Mark(printed) => drop(printed.try_send(())),
        };
        let thread = std::thread::Builder::new().name(self.thread.to_owned());
        thread.spawn(move || messages.into_iter().for_each(print)).ok()?;
        Some(sender)
    }

    pub(super) fn print(&self, text: String) {
        match self.sender.get_or_init(|| self.start()) {
            Some(sender) => drop(sender.try_send(Message::Text(text))),
            None => (self.print)(&text),
        }
    }

    /// Waits until all is printed, for a bounded time; false if that is over.
    fn finish(&self) -> bool {
        let Some(Some(sender)) = self.sender.get() else { return true };
        let (printed, is_printed) = sync_channel(1);
        sender.try_send(Message::Mark(printed)).is_ok()
            && is_printed.recv_timeout(LAST_WORDS_MAX).is_ok()
    }
}

/// Prints a notice to standard error.
pub(super) fn tell(text: String) {
    NOTICES.print(text);
}

/// Waits until all is printed, for a bounded time.
pub(super) fn finish() {
    if !REPORTS.finish() {
        tell("twinring: the final line was not printed: standard output is not read".to_owned());
    }
    // Standard error may not be read either.
    let _is_read = NOTICES.finish() && ERRORS.finish();
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

static MANAGER: OnceLock<UnixDatagram> = OnceLock::new();

/// Connects to the service manager, if there is one. Call it before the sandbox is entered.
pub(super) fn connect_manager() {
    let connect = |name: &[u8]| -> io::Result<UnixDatagram> {
        // A path, or an abstract name behind `@`.
        let address = match name.strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(OsStr::from_bytes(name))?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        // A manager that does not read delays no server.
        socket.set_nonblocking(true).map(|()| socket)
    };
    let name = std::env::var_os("NOTIFY_SOCKET");
    if let Some(Ok(socket)) = name.map(|name| connect(name.as_bytes())) {
        let _was_connected = MANAGER.set(socket);
    }
}

/// Tells the service manager: assignments, one a line.
pub(super) fn tell_manager(state: &str) {
    let _nobody_reads = MANAGER.get().map(|manager| manager.send(state.as_bytes()));
}
