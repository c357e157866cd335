//! Output of the command: the one place that prints. The output may be full, closed or non-blocking, which must
//! not end the command: `print!` and `eprintln!` would panic.

use clap::error::ErrorKind;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::stat::{FileStat, fstat, makedev};
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd};
use twinring_services::write_whole;

/// Prints a result to standard output. A reader that has left, as in `| head`, is no error.
pub(crate) fn print(text: &str) -> Result<(), String> {
    let told = |error: io::Error| format!("cannot write to standard output: {error}");
    if was_closed() {
        return Err(told(io::Error::from(Errno::EBADF)));
    }
    let out = io::stdout().lock();
    match write_whole(out.as_fd(), text.as_bytes()).1 {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(told(error)),
        _ => Ok(()),
    }
}

/// Prints a result, and returns its exit code, or 1 if it could not be printed.
pub(crate) fn show(result: &str, code: u8) -> u8 {
    match print(result) {
        Ok(()) => code,
        Err(problem) => {
            complain(&format!("twinring: {problem}"));
            1
        }
    }
}

/// Prints a message to standard error. If even that fails, the message is lost.
pub(crate) fn complain(text: &str) {
    let _reader_is_gone = write_whole(io::stderr().lock().as_fd(), format!("{text}\n").as_bytes());
}

/// Prints an error, on a terminal in lines of 80 columns. Not in a sandbox, which refuses to look for a terminal.
pub(crate) fn refuse(error: &str) {
    match io::stderr().is_terminal() {
        true => complain(&twinring_lab::lines_of(error)),
        false => complain(error),
    }
}

/// Raises the limit of open descriptors as far as this process may.
pub(crate) fn raise_descriptor_limit() {
    if let Err(error) = twinring_services::raise_descriptor_limit() {
        complain(&format!("twinring: cannot raise the limit of open descriptors: {error}"));
    }
}

/// Prints a line to standard output at once. A reader that went away does not end the service.
pub(crate) fn print_line(text: &str) {
    let _reader_is_gone = write_whole(io::stdout().lock().as_fd(), format!("{text}\n").as_bytes());
}

/// Prints a help text or an error of clap, which would lose it on a full output; returns the exit code.
pub(crate) fn usage(error: &clap::Error) -> u8 {
    let is_error = error.use_stderr();
    let is_terminal =
        if is_error { io::stderr().is_terminal() } else { io::stdout().is_terminal() };
    let text = match is_terminal && std::env::var_os("NO_COLOR").is_none() {
        true => error.render().ansi().to_string(),
        false => error.render().to_string(),
    };
    if !is_error {
        return show(&text, 0);
    }
    refuse(text.trim_end());
    2
}

/// Ends the program if the arguments make no sense.
pub(crate) fn or_usage<T>(checked: Result<T, String>) -> T {
    checked.unwrap_or_else(|wrong| {
        let error = clap::Error::raw(ErrorKind::ValueValidation, format!("{wrong}\n"));
        std::process::exit(usage(&error).into())
    })
}

/// Of /dev/null (null(4)).
const NULL_DEVICE: (libc::mode_t, libc::dev_t) = (libc::S_IFCHR, makedev(1, 3));

/// True if standard output was closed when the process started. The standard library then opens /dev/null in its
/// place, for reading and writing. So does daemon(3), but for standard error as well.
fn was_closed() -> bool {
    let is_replaced = |file: BorrowedFd<'_>| {
        let is_null = |it: FileStat| (it.st_mode & libc::S_IFMT, it.st_rdev) == NULL_DEVICE;
        let flags = fcntl(file, FcntlArg::F_GETFL).unwrap_or(0);
        fstat(file).is_ok_and(is_null) && flags & libc::O_ACCMODE == libc::O_RDWR
    };
    is_replaced(io::stdout().as_fd()) && !is_replaced(io::stderr().as_fd())
}
