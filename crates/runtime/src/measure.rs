//! Counters and clocks.

pub use crate::counters::CounterSnapshot;
pub use crate::sys::{keep_freed_memory, monotonic_ns, thread_cpu_clock_ns, thread_cpu_time_ns};
