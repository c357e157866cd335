//! The handler of SIGSYS: system calls that a seccomp filter traps fail, and are reported once
//! each.
//!
//! With SECCOMP_RET_TRAP the handler sets the result of the call (seccomp(2)): the content of its
//! register when the handler returns. A call that is trapped while SIGSYS is blocked ends the
//! process; our threads do not block it, and the C library only while it creates threads and
//! processes.

use std::io;
use std::os::raw::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The names of system calls, by their numbers; empty ones are unknown.
type Names = &'static [&'static str];

/// System calls that are distinguished; the kernel has less than 500. All others count as the last.
const NUMBERS: usize = 1024;

static NAMES: OnceLock<Names> = OnceLock::new();
static TOLD: [AtomicU64; NUMBERS / 64] = [const { AtomicU64::new(0) }; NUMBERS / 64];

/// The `si_code` of a call that a filter trapped (include/uapi/asm-generic/siginfo.h).
const SYS_SECCOMP: c_int = 1;

/// The fields of siginfo_t for SIGSYS, as in sigaction(2).
#[repr(C)]
struct Refusal {
    signal: c_int,
    errno: c_int,
    code: c_int,
    _padding: c_int,
    call_address: *mut c_void,
    number: c_int,
    architecture: u32,
}

/// Installs the handler.
pub(crate) fn install(names: Names) -> io::Result<()> {
    if !cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        return Err(io::Error::from(io::ErrorKind::Unsupported));
    }
    let _the_first_stays = NAMES.set(names);
    // SAFETY: an all-zero sigaction is a valid value: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_refusal;
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: `action` is live; with SA_SIGINFO the handler has the right signature. It only does
    // what is safe in a signal handler: atomics, write(2), and its own stack.
    let returned =
        unsafe { libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()) };
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn place(number: i64) -> (usize, u64) {
    let number = usize::try_from(number).unwrap_or(NUMBERS).min(NUMBERS - 1);
    (number / 64, 1 << (number % 64))
}

extern "C" fn on_refusal(_: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a siginfo_t, whose fields for SIGSYS are those of `Refusal`; it is
    // larger than that and aligned for pointers.
    let refusal = unsafe { &*info.cast::<Refusal>() };
    // Sent with kill(2): the interrupted code may be anything.
    if refusal.code != SYS_SECCOMP {
        return;
    }
    // SAFETY: the kernel passes the ucontext_t of the interrupted call, which is ours to change.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let number = i64::from(refusal.number);
    let (word, bit) = place(number);
    if TOLD[word].fetch_or(bit, Ordering::Relaxed) & bit == 0 {
        tell(number);
    }
    // brk(2) has no error: it answers where the heap ends, and a number above that would be taken for
    // memory.
    let refused = if number == libc::SYS_brk { 0 } else { -i64::from(libc::EPERM) };
    set_result(context, refused);
}

/// Writes the line, without the heap and the locks of std.
fn tell(number: i64) {
    let mut line = Line { bytes: [0; 160], length: 0 };
    line.push(b"twinring: the sandbox refused the system call ");
    let name = NAMES.get().and_then(|names| names.get(usize::try_from(number).ok()?));
    line.push(name.filter(|name| !name.is_empty()).unwrap_or(&"without a name").as_bytes());
    line.push(b" (number ");
    line.push_number(number);
    line.push(b") with EPERM; further ones of this kind are not reported\n");
    // SAFETY: pointer and length describe the initialised part of a live array. The result does not
    // matter: the reader may have left.
    unsafe { libc::write(libc::STDERR_FILENO, line.bytes.as_ptr().cast(), line.length) };
}

struct Line {
    bytes: [u8; 160],
    length: usize,
}

impl Line {
    fn push(&mut self, text: &[u8]) {
        let room = self.bytes.len() - self.length;
        let text = &text[..text.len().min(room)];
        self.bytes[self.length..self.length + text.len()].copy_from_slice(text);
        self.length += text.len();
    }

    fn push_number(&mut self, number: i64) {
        let mut digits = [0; 20];
        let mut at = digits.len();
        let mut rest = number.unsigned_abs();
        loop {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if number < 0 {
            self.push(b"-");
        }
        self.push(&digits[at..]);
    }
}

#[cfg(target_arch = "x86_64")]
fn set_result(context: &mut libc::ucontext_t, result: i64) {
    context.uc_mcontext.gregs[libc::REG_RAX as usize] = result;
}

#[cfg(target_arch = "aarch64")]
fn set_result(context: &mut libc::ucontext_t, result: i64) {
    context.uc_mcontext.regs[0] = result as u64;
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn set_result(_: &mut libc::ucontext_t, _: i64) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_handler_name_the_call_and_have_a_bound() {
        let mut line = Line { bytes: [0; 160], length: 0 };
        line.push(b"call ");
        line.push_number(435);
        line.push_number(-7);
        line.push_number(0);
        assert_eq!(&line.bytes[..line.length], b"call 435-70");
        (0..20).for_each(|_| line.push(b"0123456789"));
        assert_eq!(line.length, 160);
        assert_eq!(place(0), (0, 1));
        assert_eq!(place(-1), place(i64::MAX));
    }
}
