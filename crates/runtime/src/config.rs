//! The engine and its features: requested, and in use.

use serde::Serialize;
use std::fmt;
use std::str::FromStr;

/// The requested engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineChoice {
    /// io_uring where this kernel and container allow it, else epoll.
    #[default]
    Auto,
    /// io_uring, or an error that names the layer that refuses it.
    IoUring,
    /// epoll.
    Epoll,
}

impl FromStr for EngineChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<EngineChoice, String> {
        match text {
            "auto" => Ok(EngineChoice::Auto),
            "io_uring" => Ok(EngineChoice::IoUring),
            "epoll" => Ok(EngineChoice::Epoll),
            other => Err(wrong("engine", other, "auto, io_uring or epoll")),
        }
    }
}

/// The engine in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// io_uring(7).
    IoUring,
    /// epoll(7).
    Epoll,
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Engine::IoUring => "io_uring",
            Engine::Epoll => "epoll",
        })
    }
}

fn wrong(key: &str, value: &str, expected: impl fmt::Display) -> String {
    format!("{key}={value}: expected {expected}")
}

/// Default size of a receive buffer: a message of 64 KiB does not fill it, which would require another
/// system call, and buffers do not all begin in the same sets of the caches.
const RECV_BUFFER_BYTES: u32 = 64 * 1024 + 192;

/// Default number of receive buffers on io_uring: so many that small messages of many sockets fit in
/// one turn, while those of the turn before are still being sent.
const URING_BUFFERS: u32 = 256;

/// The same on epoll, where one is normally in use, and stays in the cache.
const EPOLL_BUFFERS: u32 = 16;

/// Default entries of the submission queue, small enough to stay in the cache; further entries wait in a
/// list and cost another enter.
const SQ_ENTRIES: u32 = 512;

/// Default entries of the completion queue: multishot receives post at any time. Further
/// completions wait in the kernel.
const CQ_ENTRIES: u32 = 8192;

/// The maximum number of sends that wait on epoll.
const GATHER_MAX: u32 = 512;

enum Values {
    /// Off or on, which is this number; smaller ones are between.
    Switch(u32),
    Range(u32, u32),
    PowerOfTwo(u32, u32),
}

impl Values {
    fn read(&self, text: &str) -> Option<u32> {
        let number = |least, most| text.parse().ok().filter(|it| (least..=most).contains(it));
        match (self, text) {
            (Values::Switch(most), "on" | "true" | "yes") => Some(*most),
            (Values::Switch(_), "off" | "false" | "no") => Some(0),
            (Values::Switch(1), _) => None,
            (Values::Switch(most), _) => number(1, *most),
            (Values::Range(least, most), _) => number(*least, *most),
            (Values::PowerOfTwo(least, most), _) => {
                number(*least, *most).filter(|number| number.is_power_of_two())
            }
        }
    }
}

impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Values::Switch(1) => f.write_str("on or off"),
            Values::Switch(most) => write!(f, "on, off or 1 to {most}"),
            Values::Range(least, most) => write!(f, "{least} to {most}"),
            Values::PowerOfTwo(least, most) => write!(f, "a power of two from {least} to {most}"),
        }
    }
}

/// Reads `key=value,...` into these options; a key alone is switched on.
fn read(text: &str, options: &mut [(&str, Values, &mut u32)]) -> Result<(), String> {
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (key, value) = part.split_once('=').unwrap_or((part, "on"));
        let Some(at) = options.iter().position(|(name, ..)| *name == key) else {
            let known: Vec<_> = options.iter().map(|(name, ..)| *name).collect();
            let known = format!("one of: {}", known.join(", "));
            return Err(wrong(key, value, known));
        };
        let (_, values, option) = &mut options[at];
        **option = values.read(value).ok_or_else(|| wrong(key, value, values))?;
    }
    Ok(())
}

const BUFFER_BYTES: Values = Values::Range(64, 1 << 20);

/// Options of io_uring, which its workers run with. Parses from `key=value,...`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UringOptions {
    /// Multishot accept, receive and poll: one submission, many completions. Without it each is
    /// submitted again after its completion. On by default.
    pub multishot: bool,
    /// Size of one receive buffer in bytes, 64 to 1048576.
    pub buffer_bytes: u32,
    /// Number of receive buffers, a power of two from 4 to 32768.
    pub buffer_count: u32,
    /// A kernel thread submits and spins this long (milliseconds) before it sleeps; 0 is off, the
    /// default.
    pub sqpoll_idle_ms: u32,
    /// Entries of the submission queue, a power of two from 8 to 32768.
    pub sq_entries: u32,
    /// Entries of the completion queue, a power of two from 16 to 65536; not fewer than
    /// `sq_entries` in any case.
    pub cq_entries: u32,
    /// Waits count as idle time and not as waiting for a disk: IORING_ENTER_NO_IOWAIT. On where the
    /// kernel has it (Linux 6.15).
    pub no_iowait: bool,
}

impl Default for UringOptions {
    fn default() -> UringOptions {
        UringOptions {
            multishot: true,
            buffer_bytes: RECV_BUFFER_BYTES,
            buffer_count: URING_BUFFERS,
            sqpoll_idle_ms: 0,
            sq_entries: SQ_ENTRIES,
            cq_entries: CQ_ENTRIES,
            no_iowait: true,
        }
    }
}

impl FromStr for UringOptions {
    type Err = String;

    fn from_str(text: &str) -> Result<UringOptions, String> {
        let (mut options, mut multishot) = (UringOptions::default(), 1);
        let table = &mut [
            ("multishot", Values::Switch(1), &mut multishot),
            ("buffer_bytes", BUFFER_BYTES, &mut options.buffer_bytes),
            ("buffer_count", Values::PowerOfTwo(4, 1 << 15), &mut options.buffer_count),
            ("sqpoll_idle_ms", Values::Range(0, 10_000), &mut options.sqpoll_idle_ms),
            ("sq_entries", Values::PowerOfTwo(8, 1 << 15), &mut options.sq_entries),
            ("cq_entries", Values::PowerOfTwo(16, 1 << 16), &mut options.cq_entries),
        ];
        read(text, table)?;
        Ok(UringOptions { multishot: multishot > 0, ..options })
    }
}

/// Options of epoll, which its workers run with. Parses from `key=value,...`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EpollOptions {
    /// Size of one receive buffer in bytes, 64 to 1048576.
    pub buffer_bytes: u32,
    /// Number of receive buffers, 4 to 32768.
    pub buffer_count: u32,
    /// How many sends wait until the current events have been handled; 0 sends each at once.
    pub gather: u32,
}

impl Default for EpollOptions {
    fn default() -> EpollOptions {
        let (buffer_bytes, buffer_count) = (RECV_BUFFER_BYTES, EPOLL_BUFFERS);
        EpollOptions { buffer_bytes, buffer_count, gather: GATHER_MAX }
    }
}

impl FromStr for EpollOptions {
    type Err = String;

    fn from_str(text: &str) -> Result<EpollOptions, String> {
        let mut options = EpollOptions::default();
        let table = &mut [
            ("buffer_bytes", BUFFER_BYTES, &mut options.buffer_bytes),
            ("buffer_count", Values::Range(4, 1 << 15), &mut options.buffer_count),
            ("gather", Values::Switch(GATHER_MAX), &mut options.gather),
        ];
        read(text, table)?;
        Ok(options)
    }
}

/// The engine of a runtime with its features.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Features {
    /// io_uring with these features.
    IoUring(UringOptions),
    /// epoll with these features.
    Epoll(EpollOptions),
}

impl Features {
    /// The engine they belong to.
    pub fn engine(&self) -> Engine {
        match self {
            Features::IoUring(_) => Engine::IoUring,
            Features::Epoll(_) => Engine::Epoll,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_parse_and_name_what_is_wrong() {
        let options: UringOptions =
            "multishot=off, sqpoll_idle_ms=50,cq_entries=128".parse().unwrap();
        assert!(!options.multishot);
        assert_eq!((options.sqpoll_idle_ms, options.cq_entries), (50, 128));
        assert_eq!("gather=7".parse::<EpollOptions>().unwrap().gather, 7);
        let error = "buffer_count=100".parse::<UringOptions>().unwrap_err();
        assert_eq!(error.to_string(), "buffer_count=100: expected a power of two from 4 to 32768");
        let error = "buffers=legacy".parse::<UringOptions>().unwrap_err().to_string();
        assert!(error.contains("one of: multishot, buffer_bytes"), "{error}");
        let error = "gather=-1".parse::<EpollOptions>().unwrap_err();
        assert_eq!(error.to_string(), "gather=-1: expected on, off or 1 to 512");
        let error = "edge".parse::<EpollOptions>().unwrap_err().to_string();
        assert!(error.contains("one of: buffer_bytes, buffer_count, gather"), "{error}");
    }
}
