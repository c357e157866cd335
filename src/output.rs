//! What the command prints. Where it prints to may be full or gone, which must not end it: `print!`
//! and `eprintln!` would panic.

use std::io::{self, Write};

/// Prints a result to standard output.
///
/// # Errors
/// When it could not be written, unless that is because its reader has left: `| head` has seen what
/// it wanted.
pub(crate) fn print(text: &str) -> Result<(), String> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("cannot write to standard output: {error}"))
        }
        _ => Ok(()),
    }
}

/// Says something on standard error. If even that cannot be written, there is nobody to tell.
pub(crate) fn complain(text: &str) {
    let _reader_is_gone = writeln!(io::stderr().lock(), "{text}");
}
