//! The driver contract for datagrams: every rule, on every engine configuration that has to do with
//! them.
//!
//! The configurations, the watchdog and the macro are those of the contract suite for streams.
//! Most rules run for several sets of socket options too, so that the slower ways of receiving
//! and sending (single-shot receives, one call per datagram) and tick mode keep the same promises.

/// Hands the list of configurations to the macro `$callback`: those whose options have to do with
/// datagrams. How the ring is set up and entered is the matter of the suite for streams.
macro_rules! configurations {
    ($callback:ident $($argument:tt)*) => {
        $callback! {
            $($argument)*
            [epoll_edge Epoll "trigger=edge"]
            [epoll_level Epoll "trigger=level" ignore]
            [epoll_tiny_pool Epoll "buffer_count=4,buffer_bytes=64" ignore]
            [io_uring IoUring ""]
            [no_multishot IoUring "multishot=off" ignore]
            [legacy_buffers IoUring "buffers=legacy" ignore]
            [single_shot_legacy_buffers IoUring "multishot=off,buffers=legacy"]
            [incremental_buffers IoUring "buffers=incremental" ignore]
            [no_skip_success IoUring "skip_success=off" ignore]
            [plain_taskrun IoUring "taskrun=none,single_issuer=off" ignore]
            [sqpoll IoUring "sqpoll_idle_ms=50,taskrun=none" ignore]
            [split_on IoUring "split=on" ignore]
            [no_ext_arg IoUring "ext_arg=off" ignore]
            [tiny_pool IoUring "buffer_count=4,buffer_bytes=64" ignore]
            [tiny_rings IoUring "sq_entries=8,cq_entries=16" ignore]
            [direct IoUring "direct=on" ignore]
            [udp_calls IoUring "udp=calls"]
        }
    };
}

#[macro_use]
#[path = "../contract/support.rs"]
#[allow(dead_code, reason = "shared with the suite for streams, which uses the rest")]
mod support;

mod ancillary;
mod dropping;
mod errors;
mod exhaustion;
mod foreign;
mod modes;
mod peers;
mod reflecting;
mod releasing;
mod segmentation;
mod unix;
