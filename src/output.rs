//! Output of the command. The output may be full or closed, which must not end the command: `print!`
//! and `eprintln!` would panic.

use std::io::{self, Write};

/// Prints a result to standard output.
///
/// # Errors
/// When it could not be written, unless its reader has left, as in `| head`.
pub(crate) fn print(text: &str) -> Result<(), String> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("cannot write to standard output: {error}"))
        }
        _ => Ok(()),
    }
}

/// Prints a message to standard error. If even that fails, the message is lost.
pub(crate) fn complain(text: &str) {
    let _reader_is_gone = writeln!(io::stderr().lock(), "{text}");
}

/// Prints a line to standard output at once. A reader that went away does not end the service.
pub(crate) fn print_line(text: &str) {
    let mut out = io::stdout().lock();
    let _reader_is_gone = writeln!(out, "{text}").and_then(|()| out.flush());
}
