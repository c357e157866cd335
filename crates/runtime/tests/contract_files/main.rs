//! The driver contract for files: every rule, on every engine configuration that has to do with them.
//!
//! The configurations, the watchdog and the macro are those of the contract suite for streams.
//! Most rules run for files of a disk, of memory and of "elsewhere", with the ring and with
//! threads for what has to wait, and in tick mode: see `tree::in_all_ways`.

/// Hands the list of configurations to the macro `$callback`: those whose options have to do with
/// files and with what is sent. How it is received is the matter of the suite for streams.
macro_rules! configurations {
    ($callback:ident $($argument:tt)*) => {
        $callback! {
            $($argument)*
            [epoll_edge Epoll "trigger=edge"]
            [epoll_level Epoll "trigger=level" ignore]
            [io_uring IoUring ""]
            [no_skip_success IoUring "skip_success=off" ignore]
            [plain_taskrun IoUring "taskrun=none,single_issuer=off" ignore]
            [sqpoll IoUring "sqpoll_idle_ms=50,taskrun=none" ignore]
            [split_on IoUring "split=on" ignore]
            [no_ext_arg IoUring "ext_arg=off" ignore]
            [tiny_pool IoUring "buffer_count=4,buffer_bytes=64" ignore]
            [tiny_rings IoUring "sq_entries=8,cq_entries=16" ignore]
            [direct IoUring "direct=on"]
        }
    };
}

#[macro_use]
#[path = "../contract/support.rs"]
#[allow(dead_code, reason = "shared with the suite for streams, which uses the rest")]
mod support;

mod breaking;
mod cold;
mod dropping;
mod opening;
mod reading;
mod sending;
mod sharing;
mod strategies;
mod tree;
mod writing;
