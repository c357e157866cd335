//! The driver contract as observable behaviour: every rule, on every engine configuration.
//!
//! Each rule is a function that gets a [`Configuration`](support::Configuration) and talks, through
//! the public API, to peers of the standard library on loopback. `contract!` makes one test of
//! each pair, so that a failure names both: `closing::fin_follows_a_dropped_stream::io_uring`.
//! What each engine does by default is tested always, with the configurations that differ most from that;
//! the others are ignored tests, for `-- --include-ignored` (`.ci/long`).
//! A configuration that the kernel refuses fails, unless TWINRING_TEST_MAY_SKIP says `io_uring`. With the
//! feature `faults` and TWINRING_FAULTS=SEED in the environment, the same rules run with seeded faults
//! between the kernel and the engines (`src/sys/faulty`). Each test then has its own, and prints them when
//! it fails.

/// Hands the list of configurations to the macro `$callback`.
macro_rules! configurations {
    ($callback:ident $($argument:tt)*) => {
        $callback! {
            $($argument)*
            [epoll_edge Epoll "trigger=edge"]
            [epoll_level Epoll "trigger=level"]
            [epoll_ungathered Epoll "gather=off" ignore]
            [epoll_tiny_pool Epoll "buffer_count=4,buffer_bytes=64,gather=2" ignore]
            [io_uring IoUring ""]
            [no_multishot IoUring "multishot=off" ignore]
            [legacy_buffers IoUring "buffers=legacy" ignore]
            [single_shot_legacy_buffers IoUring "multishot=off,buffers=legacy"]
            [incremental_buffers IoUring "buffers=incremental" ignore]
            [no_skip_success IoUring "skip_success=off" ignore]
            [coop_taskrun IoUring "taskrun=coop" ignore]
            [plain_taskrun IoUring "taskrun=none,single_issuer=off" ignore]
            [no_registered_ring IoUring "registered_ring=off" ignore]
            [sqarray IoUring "no_sqarray=off" ignore]
            [sqpoll IoUring "sqpoll_idle_ms=50,taskrun=none" ignore]
            [split_on IoUring "split=on" ignore]
            [split_off IoUring "split=off,gather=off" ignore]
            [no_ext_arg IoUring "ext_arg=off" ignore]
            [tiny_pool IoUring "buffer_count=4,buffer_bytes=64"]
            [tiny_rings IoUring "sq_entries=8,cq_entries=16" ignore]
            [min_wait IoUring "min_wait_us=50" ignore]
            [direct IoUring "direct=on" ignore]
        }
    };
}

#[macro_use]
mod support;

mod backpressure;
mod cancelling;
mod closing;
mod connecting;
mod descriptors;
mod dropping;
mod exhaustion;
mod fairness;
mod foreign;
mod gathering;
mod idle;
mod ordering;
mod receiving;
mod releasing;
mod slots;
mod tasks;
mod teardown;
mod timers;
mod transcripts;
mod unix;
mod vectored;
mod waiting;
mod waking;
mod workers;
