//! Output of the command: the one place that prints. The output may be full, closed or non-blocking, which must
//! not end the command: `print!` and `eprintln!` would panic.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;

/// Prints a result to standard output. A reader that has left, as in `| head`, is no error.
pub(crate) fn print(text: &str) -> Result<(), String> {
    let told = |error: io::Error| format!("cannot write to standard output: {error}");
    if was_closed() {
        return Err(told(io::Error::from(Errno::EBADF)));
    }
    let out = io::stdout().lock();
    match write_whole(out.as_fd(), text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(told(error)),
        _ => Ok(()),
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
    let text = error.render();
    let plain = |is_terminal: bool| !is_terminal || std::env::var_os("NO_COLOR").is_some();
    let text_for = |is_terminal| match plain(is_terminal) {
        true => text.to_string(),
        false => text.ansi().to_string(),
    };
    if error.use_stderr() {
        refuse(text_for(io::stderr().is_terminal()).trim_end());
        return 2;
    }
    match print(&text_for(io::stdout().is_terminal())) {
        Ok(()) => 0,
        Err(problem) => {
            complain(&format!("twinring: {problem}"));
            1
        }
    }
}

/// Writes all of it. A non-blocking descriptor, which this process may have inherited from node, bun or ssh, is
/// waited for like a blocking one.
fn write_whole(to: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match nix::unistd::write(to, bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => {
                let writable = PollFd::new(to, PollFlags::POLLOUT);
                match poll(&mut [writable], PollTimeout::NONE) {
                    Ok(_) | Err(Errno::EINTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// True if standard output was closed when the process started. The standard library then opens /dev/null in its
/// place, for reading and writing. So does daemon(3), but for standard error as well.
fn was_closed() -> bool {
    let is_replaced = |file: BorrowedFd<'_>| {
        let Ok(file) = file.try_clone_to_owned().map(std::fs::File::from) else { return false };
        let same = |null: std::fs::Metadata| {
            use std::os::unix::fs::MetadataExt;
            let is = file.metadata().ok();
            null.file_type().is_char_device() && is.is_some_and(|is| is.rdev() == null.rdev())
        };
        let flags = nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_GETFL).unwrap_or(0);
        flags & libc::O_ACCMODE == libc::O_RDWR && std::fs::metadata("/dev/null").is_ok_and(same)
    };
    is_replaced(io::stdout().as_fd()) && !is_replaced(io::stderr().as_fd())
}
