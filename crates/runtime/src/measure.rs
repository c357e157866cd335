//! Counters, clocks, and the durations of system calls.

pub use crate::calls::{CallTime, call_times, restart_call_times};
pub use crate::counters::CounterSnapshot;

use crate::sys;

/// CLOCK_MONOTONIC in nanoseconds: the clock that all processes of one machine share, for time
/// stamps that another process compares with its own.
pub fn monotonic_ns() -> u64 {
    sys::monotonic_ns()
}

/// Lets the C library keep up to 64 MiB of freed memory at the end of each heap for reuse. Call it
/// once, at the start of a program, before it has further threads.
///
/// Buffers that io_uring sends are freed by the hundred, after the system call that sends them.
/// glibc then returned them to the system and allocated them again, page fault by page fault: 20
/// for a file of 100 KB over TLS. Has no effect with other C libraries.
pub fn keep_freed_memory() {
    sys::keep_freed_memory();
}

/// CPU time that the calling thread has used, in nanoseconds, exact to the moment.
pub fn thread_cpu_clock_ns() -> u64 {
    sys::thread_cpu_clock_ns()
}

/// CPU time that the calling thread has used: user and system, in nanoseconds.
pub fn thread_cpu_time_ns() -> (u64, u64) {
    sys::thread_cpu_time_ns()
}
