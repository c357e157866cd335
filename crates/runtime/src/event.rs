//! What the runtime tells the operator.

use std::fmt;

/// A notice for the operator, sent once; the runtime itself continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Accepting waits for a free descriptor; the text is the kernel's reason.
    AcceptStalled(String),
    /// Accepting waits for memory: the text names the limit.
    MemoryShort(String),
    /// At the end of the runtime this many threads are blocked in a filesystem that does not
    /// answer. They are abandoned, and end with their operation or with the process.
    FilesystemStuck(usize),
    /// At the end of the runtime this many threads are still busy with work of
    /// [`spawn_blocking`](crate::spawn_blocking). They are abandoned, and end with their work or with the process.
    BlockingStuck(usize),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::AcceptStalled(reason) => write!(
                f,
                "accepting is paused ({reason}); connected peers are served, and accepting goes \
                 on when descriptors are free (raise `ulimit -n`, or lower --max-connections)"
            ),
            Event::MemoryShort(reason) => write!(
                f,
                "accepting is paused ({reason}); connected peers are served, and accepting goes \
                 on when some of them have left (allow more memory, or lower --max-connections)"
            ),
            Event::BlockingStuck(threads) => write!(
                f,
                "blocking work has not ended (threads: {threads}); it ends with the process"
            ),
            Event::FilesystemStuck(threads) => write!(
                f,
                "a filesystem does not answer (is its server or disk gone? waiting threads: \
                 {threads}); the waits end with the process"
            ),
        }
    }
}
