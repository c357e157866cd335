//! The engine and its features: requested, and in use.

use serde::Serialize;
use std::fmt;
use std::ops::RangeInclusive;
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
    type Err = OptionError;

    fn from_str(text: &str) -> Result<EngineChoice, OptionError> {
        match text {
            "auto" => Ok(EngineChoice::Auto),
            "io_uring" => Ok(EngineChoice::IoUring),
            "epoll" => Ok(EngineChoice::Epoll),
            other => Err(expected("engine", other, "auto, io_uring or epoll")),
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

/// A `key=value` option that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionError {
    key: String,
    value: String,
    expected: String,
}

impl fmt::Display for OptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}: expected {}", self.key, self.value, self.expected)
    }
}

impl std::error::Error for OptionError {}

/// Default size of a receive buffer: 64 KiB, and three cache lines more. A message of 64 KiB then
/// does not fill it, which would require another system call; and buffers do not all begin in the
/// same sets of the caches.
const RECV_BUFFER_BYTES: u32 = 64 * 1024 + 192;

/// Default number of receive buffers on io_uring: so many that small messages of many sockets fit in
/// one turn, while those of the turn before are still being sent. Untouched parts cost address space
/// only.
const URING_BUFFERS: u32 = 256;

/// The same on epoll, where one is normally in use, and stays in the cache.
const EPOLL_BUFFERS: u32 = 16;

/// Default entries of the submission queue. The kernel and the engine go through all of it in turn,
/// 64 bytes each, so it is small enough to stay in the cache; further entries wait in a list and
/// cost another enter.
const SQ_ENTRIES: u32 = 512;

/// Default entries of the completion queue: multishot receives post at any time. Further
/// completions wait in the kernel.
const CQ_ENTRIES: u32 = 8192;

/// The maximum number of sends that wait on epoll. On io_uring this value means no bound but the
/// queue.
pub(crate) const GATHER_MAX: u32 = 512;

fn expected(key: &str, value: &str, expected: impl Into<String>) -> OptionError {
    OptionError { key: key.into(), value: value.into(), expected: expected.into() }
}

/// The options of `key=value,...`; a key alone is switched on.
fn pairs(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts.map(|part| part.split_once('=').unwrap_or((part, "on")))
}

fn switch(text: &str) -> Option<bool> {
    match text {
        "on" | "true" | "yes" => Some(true),
        "off" | "false" | "no" => Some(false),
        _ => None,
    }
}

fn number(key: &str, value: &str, range: RangeInclusive<u32>) -> Result<Option<u32>, OptionError> {
    match value.parse() {
        Ok(number) if range.contains(&number) => Ok(Some(number)),
        _ => Err(expected(key, value, format!("{} to {}", range.start(), range.end()))),
    }
}

fn power_of_two(
    key: &str,
    value: &str,
    range: RangeInclusive<u32>,
) -> Result<Option<u32>, OptionError> {
    match value.parse::<u32>() {
        Ok(number) if range.contains(&number) && number.is_power_of_two() => Ok(Some(number)),
        _ => {
            let range = format!("a power of two from {} to {}", range.start(), range.end());
            Err(expected(key, value, range))
        }
    }
}

fn gather(key: &str, value: &str) -> Result<Option<u32>, OptionError> {
    match switch(value) {
        Some(true) => Ok(Some(GATHER_MAX)),
        Some(false) => Ok(Some(0)),
        None => number(key, value, 1..=GATHER_MAX)
            .map_err(|_| expected(key, value, "on, off or 1 to 512 sends")),
    }
}

const BUFFER_BYTES: RangeInclusive<u32> = 64..=1 << 20;

/// Options of io_uring; `None` is the default. Parses from `key=value,...`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UringOptions {
    /// Multishot accept, receive and poll: one submission, many completions. Without it each is
    /// submitted again after its completion. On by default.
    pub multishot: Option<bool>,
    /// Size of one receive buffer in bytes, 64 to 1048576.
    pub buffer_bytes: Option<u32>,
    /// Number of receive buffers, a power of two from 4 to 32768.
    pub buffer_count: Option<u32>,
    /// A kernel thread submits and spins this long (milliseconds) before it sleeps; 0 is off.
    pub sqpoll_idle_ms: Option<u32>,
    /// How many sends wait for the next enter; 0 submits each at once. Unless it is 0, a wait that
    /// returns as many completions as the kernel runs at a time is followed by an enter that takes
    /// more, so that the answers leave in one burst.
    pub gather: Option<u32>,
    /// Entries of the submission queue, a power of two from 8 to 32768.
    pub sq_entries: Option<u32>,
    /// Entries of the completion queue, a power of two from 16 to 65536.
    pub cq_entries: Option<u32>,
}

impl FromStr for UringOptions {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<UringOptions, OptionError> {
        let mut options = UringOptions::default();
        for (key, value) in pairs(text) {
            match key {
                "multishot" => {
                    let on = switch(value).ok_or_else(|| expected(key, value, "on or off"))?;
                    options.multishot = Some(on);
                }
                "buffer_bytes" => options.buffer_bytes = number(key, value, BUFFER_BYTES)?,
                "buffer_count" => options.buffer_count = power_of_two(key, value, 4..=1 << 15)?,
                "sqpoll_idle_ms" => options.sqpoll_idle_ms = number(key, value, 0..=10_000)?,
                "gather" => options.gather = gather(key, value)?,
                "sq_entries" => options.sq_entries = power_of_two(key, value, 8..=1 << 15)?,
                "cq_entries" => options.cq_entries = power_of_two(key, value, 16..=1 << 16)?,
                _ => {
                    let known = "one of: multishot, buffer_bytes, buffer_count, sqpoll_idle_ms, \
                                 gather, sq_entries, cq_entries";
                    return Err(expected(key, value, known));
                }
            }
        }
        Ok(options)
    }
}

/// What an io_uring worker runs with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UringFeatures {
    /// See [`UringOptions::multishot`].
    pub multishot: bool,
    /// See [`UringOptions::buffer_bytes`].
    pub buffer_bytes: usize,
    /// See [`UringOptions::buffer_count`].
    pub buffer_count: u16,
    /// See [`UringOptions::sqpoll_idle_ms`].
    pub sqpoll_idle_ms: u32,
    /// See [`UringOptions::gather`].
    pub gather: u32,
    /// See [`UringOptions::sq_entries`].
    pub sq_entries: u32,
    /// See [`UringOptions::cq_entries`].
    pub cq_entries: u32,
    /// Waits count as idle time and not as waiting for a disk: IORING_ENTER_NO_IOWAIT, Linux 6.15.
    pub no_iowait: bool,
}

impl UringOptions {
    /// Fills in the defaults. A small completion queue limits the submission queue, too.
    pub(crate) fn resolve(&self, no_iowait: bool) -> UringFeatures {
        let limit = self.cq_entries.map_or(SQ_ENTRIES, |cq| cq.min(SQ_ENTRIES));
        let sq_entries = self.sq_entries.unwrap_or(limit);
        UringFeatures {
            multishot: self.multishot.unwrap_or(true),
            buffer_bytes: self.buffer_bytes.unwrap_or(RECV_BUFFER_BYTES) as usize,
            buffer_count: self.buffer_count.unwrap_or(URING_BUFFERS) as u16,
            sqpoll_idle_ms: self.sqpoll_idle_ms.unwrap_or(0),
            gather: self.gather.unwrap_or(GATHER_MAX),
            sq_entries,
            cq_entries: self.cq_entries.unwrap_or(CQ_ENTRIES).max(sq_entries),
            no_iowait,
        }
    }
}

/// Options of epoll; `None` is the default. Parses from `key=value,...`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EpollOptions {
    /// Size of one receive buffer in bytes, 64 to 1048576.
    pub buffer_bytes: Option<u32>,
    /// Number of receive buffers, 4 to 32768.
    pub buffer_count: Option<u32>,
    /// How many sends wait until the current events have been handled; 0 sends each at once.
    pub gather: Option<u32>,
}

impl FromStr for EpollOptions {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<EpollOptions, OptionError> {
        let mut options = EpollOptions::default();
        for (key, value) in pairs(text) {
            match key {
                "buffer_bytes" => options.buffer_bytes = number(key, value, BUFFER_BYTES)?,
                "buffer_count" => options.buffer_count = number(key, value, 4..=1 << 15)?,
                "gather" => options.gather = gather(key, value)?,
                _ => {
                    let known = "one of: buffer_bytes, buffer_count, gather";
                    return Err(expected(key, value, known));
                }
            }
        }
        Ok(options)
    }
}

/// What an epoll worker runs with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EpollFeatures {
    /// See [`EpollOptions::buffer_bytes`].
    pub buffer_bytes: usize,
    /// See [`EpollOptions::buffer_count`].
    pub buffer_count: u16,
    /// See [`EpollOptions::gather`]; 0 is off.
    pub gather: u32,
}

impl EpollOptions {
    /// Fills in the defaults.
    pub fn resolve(&self) -> EpollFeatures {
        EpollFeatures {
            buffer_bytes: self.buffer_bytes.unwrap_or(RECV_BUFFER_BYTES) as usize,
            buffer_count: self.buffer_count.unwrap_or(EPOLL_BUFFERS) as u16,
            gather: self.gather.unwrap_or(GATHER_MAX),
        }
    }
}

/// The engine of a runtime with its features.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Features {
    /// io_uring with these features.
    IoUring(UringFeatures),
    /// epoll with these features.
    Epoll(EpollFeatures),
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
            "multishot=off, gather=7,sqpoll_idle_ms=50,cq_entries=128".parse().unwrap();
        let features = options.resolve(false);
        assert!(!features.multishot);
        assert_eq!((features.gather, features.sqpoll_idle_ms), (7, 50));
        assert_eq!((features.sq_entries, features.cq_entries), (128, 128));
        let large = "sq_entries=32768".parse::<UringOptions>().unwrap().resolve(false);
        assert_eq!((large.sq_entries, large.cq_entries), (32768, 32768));
        let error = "buffer_count=100".parse::<UringOptions>().unwrap_err();
        assert_eq!(error.to_string(), "buffer_count=100: expected a power of two from 4 to 32768");
        let error = "buffers=legacy".parse::<UringOptions>().unwrap_err().to_string();
        assert!(error.contains("one of: multishot, buffer_bytes"), "{error}");
        let error = "gather=-1".parse::<EpollOptions>().unwrap_err();
        assert_eq!(error.to_string(), "gather=-1: expected on, off or 1 to 512 sends");
        let error = "edge".parse::<EpollOptions>().unwrap_err().to_string();
        assert!(error.contains("one of: buffer_bytes, buffer_count, gather"), "{error}");
    }
}
