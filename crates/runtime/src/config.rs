//! The engine and its features: requested, and in use.

use serde::de::IntoDeserializer;
use serde::de::value::Error;
use serde::{Deserialize, Serialize};
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
    type Err = OptionError;

    fn from_str(text: &str) -> Result<EngineChoice, OptionError> {
        match text {
            "auto" => Ok(EngineChoice::Auto),
            "io_uring" => Ok(EngineChoice::IoUring),
            "epoll" => Ok(EngineChoice::Epoll),
            other => Err(OptionError::new("engine", other, "auto, io_uring or epoll")),
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

impl OptionError {
    fn new(key: &str, value: &str, expected: &str) -> OptionError {
        OptionError { key: key.into(), value: value.into(), expected: expected.into() }
    }
}

impl fmt::Display for OptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}: expected {}", self.key, self.value, self.expected)
    }
}

impl std::error::Error for OptionError {}

/// Where io_uring runs completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskRun {
    /// Only when the worker enters the kernel to wait: IORING_SETUP_DEFER_TASKRUN, Linux 6.1.
    Defer,
    /// At the next system call: IORING_SETUP_COOP_TASKRUN, Linux 5.19.
    Coop,
    /// By interrupting the worker, as kernels before 5.19 do.
    None,
}

/// How buffers to receive into are given to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Buffers {
    /// A ring of buffers, one for each receive: Linux 5.19.
    Ring,
    /// A ring of large buffers filled piece by piece: Linux 6.12.
    Incremental,
    /// IORING_OP_PROVIDE_BUFFERS for each returned buffer: Linux 5.7.
    Legacy,
}

/// When sends are submitted in an enter of their own before the wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// When the queued sends are large or hold much of the pool.
    Auto,
    /// Always.
    On,
    /// Never: submission and wait share one enter.
    Off,
}

/// How datagram sockets are read on io_uring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UdpReads {
    /// By a multishot receive; sockets with many datagrams at a time by recvmmsg(2).
    Auto,
    /// By a multishot receive.
    Ring,
    /// By recvmmsg(2), when a poll reports data.
    Calls,
}

/// Where operations on files that may have to wait for a disk are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileOperations {
    /// The ring: IORING_OP_OPENAT2, STATX and READ, Linux 5.6.
    Ring,
    /// A few threads, as on epoll.
    Threads,
}

macro_rules! options {
    (
        $(#[$doc:meta])*
        $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty, $expected:literal, $parse:expr;)* }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: Option<$type>,)*
        }

        impl FromStr for $name {
            type Err = OptionError;

            fn from_str(text: &str) -> Result<$name, OptionError> {
                let mut options = $name::default();
                for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
                    let (key, value) = part.split_once('=').unwrap_or((part, "on"));
                    match key {
                        $(stringify!($field) => {
                            let parse: fn(&str) -> Option<$type> = $parse;
                            let parsed = parse(value);
                            options.$field =
                                Some(parsed.ok_or_else(|| OptionError::new(key, value, $expected))?);
                        })*
                        _ => {
                            let known = [$(stringify!($field)),*].join(", ");
                            return Err(OptionError::new(key, value, &format!("one of: {known}")));
                        }
                    }
                }
                Ok(options)
            }
        }
    };
}

/// The same, and what a worker runs with: a row is an option, and a feature of the name that is in
/// use with the type behind `=>`. The features in braces of their own are no options.
macro_rules! options_and_features {
    (
        $(#[$doc:meta])*
        $name:ident {
            $($(#[$field_doc:meta])* $field:ident: $type:ty => $used:ty, $expected:literal, $parse:expr;)*
        }
        $(#[$features_doc:meta])*
        $features:ident { $($(#[$own_doc:meta])* $own:ident: $own_type:ty;)* }
    ) => {
        options! {
            $(#[$doc])*
            $name { $($(#[$field_doc])* $field: $type, $expected, $parse;)* }
        }

        $(#[$features_doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
        pub struct $features {
            $(
                #[doc = concat!("See [`", stringify!($name), "::", stringify!($field), "`].")]
                pub $field: $used,
            )*
            $($(#[$own_doc])* pub $own: $own_type,)*
        }
    };
}

/// A value by the name that it has in JSON.
fn named<T: for<'name> Deserialize<'name>>(text: &str) -> Option<T> {
    let text: serde::de::value::StrDeserializer<'_, Error> = text.into_deserializer();
    T::deserialize(text).ok()
}

fn switch(text: &str) -> Option<bool> {
    match text {
        "on" | "true" | "yes" => Some(true),
        "off" | "false" | "no" => Some(false),
        _ => None,
    }
}

fn number_between(text: &str, low: u32, high: u32) -> Option<u32> {
    text.parse().ok().filter(|number| (low..=high).contains(number))
}

fn power_of_two(text: &str, low: u32, high: u32) -> Option<u32> {
    number_between(text, low, high).filter(|number| number.is_power_of_two())
}

options_and_features! {
    /// Features of io_uring. `None` takes the best that the kernel allows; a feature named here
    /// and refused by the kernel is an error. Parses from `key=value,...`.
    UringOptions {
        /// Multishot accept, receive and poll: one submission, many completions.
        multishot: bool => bool, "on or off", switch;
        /// How buffers are given to the kernel.
        buffers: Buffers => Buffers, "ring, incremental or legacy", named;
        /// Size of one buffer in bytes.
        buffer_bytes: u32 => usize, "64 to 1048576", |text| number_between(text, 64, 1 << 20);
        /// Number of buffers, a power of two.
        buffer_count: u32 => u16, "a power of two from 4 to 32768", |text| power_of_two(text, 4, 1 << 15);
        /// Where completions run.
        taskrun: TaskRun => TaskRun, "defer, coop or none", named;
        /// Promise that one thread submits: IORING_SETUP_SINGLE_ISSUER, Linux 6.0.
        single_issuer: bool => bool, "on or off", switch;
        /// A kernel thread submits and spins this long (milliseconds) before it sleeps; 0 is off.
        sqpoll_idle_ms: u32 => u32, "0 (off) to 10000", |text| number_between(text, 0, 10_000);
        /// Name the ring by an index registered with the thread, Linux 5.18.
        registered_ring: bool => bool, "on or off", switch;
        /// Leave out the indirection of the submission queue, Linux 6.6.
        no_sqarray: bool => bool, "on or off", switch;
        /// Sends that succeed whole post no completion, Linux 5.17.
        skip_success: bool => bool, "on or off", switch;
        /// How many sends wait for the next enter; `off` submits each at once. Unless it is off, a
        /// wait that returns as many completions as the kernel runs at a time is followed by an
        /// enter that takes more, so that the answers leave in one burst.
        gather: u32 => u32, "on, off or 1 to 512 sends", gather;
        /// Submit sends before waiting instead of together with it.
        split: Split => Split, "auto, on or off", named;
        /// Wait at least this long for more completions (microseconds), Linux 6.12; 0 is off.
        min_wait_us: u32 => u32, "0 (off) to 100000", |text| number_between(text, 0, 100_000);
        /// Have waits count as idle time and not as waiting for a disk: IORING_ENTER_NO_IOWAIT, Linux 6.15.
        no_iowait: bool => bool, "on or off", switch;
        /// Pass wait timeouts to the enter itself, Linux 5.11; otherwise as a timeout operation.
        ext_arg: bool => bool, "on or off", switch;
        /// Register datagram sockets with the ring, Linux 5.19: one look-up less per operation.
        direct: bool => bool, "on or off", switch;
        /// How datagram sockets are read, where receives are multishot.
        udp: UdpReads => UdpReads, "auto, ring or calls", named;
        /// Where operations on files that may have to wait are executed.
        files: FileOperations => FileOperations, "ring or threads", named;
        /// Entries of the submission queue.
        sq_entries: u32 => u32, "a power of two from 8 to 32768", |text| power_of_two(text, 8, 1 << 15);
        /// Entries of the completion queue.
        cq_entries: u32 => u32, "a power of two from 16 to 65536", |text| power_of_two(text, 16, 1 << 16);
    }

    /// The features an io_uring worker runs with.
    UringFeatures {
        /// Submit the rest of a batch after an entry that fails: IORING_SETUP_SUBMIT_ALL, Linux 5.18.
        submit_all: bool;
    }
}

options! {
    /// Features of epoll. Parses from `key=value,...`.
    EpollOptions {
        /// Edge- or level-triggered.
        trigger: Trigger, "edge or level", named;
        /// Size of one receive buffer in bytes.
        buffer_bytes: u32, "64 to 1048576", |text| number_between(text, 64, 1 << 20);
        /// Number of receive buffers.
        buffer_count: u32, "4 to 32768", |text| number_between(text, 4, 1 << 15);
        /// How many sends wait until the current events have been handled; `off` sends each at
        /// once.
        gather: u32, "on, off or 1 to 512 sends", gather;
    }
}

/// Default size of a receive buffer: 64 KiB, and three cache lines more. A message of 64 KiB then
/// does not fill it, which would require another system call; and buffers do not all begin in the
/// same sets of the caches.
pub(crate) const RECV_BUFFER_BYTES: usize = 64 * 1024 + 192;

/// The maximum number of sends that wait on epoll. On io_uring this value means no bound but the
/// queue.
pub(crate) const GATHER_MAX: u32 = 512;

fn gather(text: &str) -> Option<u32> {
    match switch(text) {
        Some(true) => Some(GATHER_MAX),
        Some(false) => Some(0),
        None => number_between(text, 1, GATHER_MAX),
    }
}

/// When epoll reports a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trigger {
    /// Once for each change.
    Edge,
    /// As long as it is ready.
    Level,
}

/// The features an epoll worker runs with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EpollFeatures {
    /// See [`EpollOptions::trigger`].
    pub edge_triggered: bool,
    /// See [`EpollOptions::buffer_bytes`].
    pub buffer_bytes: usize,
    /// See [`EpollOptions::buffer_count`].
    pub buffer_count: u16,
    /// See [`EpollOptions::gather`]; 0 is off.
    pub gather: u32,
}

impl EpollOptions {
    /// Fills in the defaults: edge-triggered, sends gathered, 16 buffers of which one is normally in use, so that a receive takes all there is and the memory stays in the cache.
    pub fn resolve(&self) -> EpollFeatures {
        EpollFeatures {
            edge_triggered: self.trigger.unwrap_or(Trigger::Edge) == Trigger::Edge,
            buffer_bytes: self.buffer_bytes.map_or(RECV_BUFFER_BYTES, |bytes| bytes as usize),
            buffer_count: self.buffer_count.unwrap_or(16) as u16,
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
            "multishot=off, buffers=incremental,sqpoll_idle_ms=50".parse().unwrap();
        assert_eq!(options.multishot, Some(false));
        assert_eq!(options.buffers, Some(Buffers::Incremental));
        assert_eq!(options.split, None);
        let error = "buffer_count=100".parse::<UringOptions>().unwrap_err();
        assert_eq!(error.to_string(), "buffer_count=100: expected a power of two from 4 to 32768");
        let error = "trigger=both".parse::<EpollOptions>().unwrap_err();
        assert_eq!(error.to_string(), "trigger=both: expected edge or level");
        let error = "edge".parse::<EpollOptions>().unwrap_err().to_string();
        assert!(error.contains("one of: trigger, buffer_bytes, buffer_count"), "{error}");
    }
}
