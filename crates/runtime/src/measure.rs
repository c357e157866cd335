//! Counters, clocks, and the durations of system calls.

pub use crate::calls::{CallTime, call_times, restart_call_times};
pub use crate::counters::CounterSnapshot;
pub use crate::sys::{keep_freed_memory, monotonic_ns, thread_cpu_clock_ns, thread_cpu_time_ns};
