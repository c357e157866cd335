//! What this machine allows, and the features chosen from it.

use crate::config::{Buffers, Split, TaskRun, UringFeatures, UringOptions};
use io_uring::IoUring;
use std::fmt;
use std::io;

/// Why io_uring, or one of its features, cannot be used.
#[derive(Clone, Debug)]
pub struct Refusal {
    what: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

/// Chooses the features of io_uring: what was asked for, else the best there is.
///
/// # Errors
/// When io_uring as a whole, or a feature that was asked for by name, is refused.
pub fn select_uring(options: &UringOptions) -> Result<UringFeatures, Refusal> {
    let plain = IoUring::new(8)
        .map_err(|error: io::Error| Refusal { what: format!("io_uring_setup: {error}") })?;
    let ext_arg = plain.params().is_feature_ext_arg();
    let sqpoll = options.sqpoll_idle_ms.unwrap_or(0);
    let buffers = options.buffers.unwrap_or(Buffers::Ring);
    let (bytes, count) = match buffers {
        Buffers::Incremental => (64 * 1024, 16),
        _ => (2048, 512),
    };
    Ok(UringFeatures {
        multishot: options.multishot.unwrap_or(true),
        buffers,
        buffer_bytes: options.buffer_bytes.unwrap_or(bytes) as usize,
        buffer_count: options.buffer_count.unwrap_or(count) as u16,
        taskrun: options.taskrun.unwrap_or(if sqpoll > 0 { TaskRun::None } else { TaskRun::Defer }),
        single_issuer: options.single_issuer.unwrap_or(true),
        sqpoll_idle_ms: sqpoll,
        registered_ring: options.registered_ring.unwrap_or(true),
        no_sqarray: options.no_sqarray.unwrap_or(true),
        submit_all: true,
        skip_success: options.skip_success.unwrap_or(true),
        split: options.split.unwrap_or(Split::Auto),
        min_wait_us: options.min_wait_us.unwrap_or(0),
        ext_arg: options.ext_arg.unwrap_or(ext_arg),
        sq_entries: options.sq_entries.unwrap_or(4096),
        cq_entries: options.cq_entries.unwrap_or(16384),
    })
}
