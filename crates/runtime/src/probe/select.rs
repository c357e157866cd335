//! Whether the io_uring engine can run with the requested options, or a clear refusal.

use super::environment::Environment;
use super::layers::{self, Layer, Refusal};
use super::uring::{NO_IOWAIT, SQPOLL, UringReport};
use crate::config::UringOptions;
use std::sync::OnceLock;

const PAGE_BYTES: u64 = 4096;
/// Upper bound of the memory charged for the probe's rings. The kernel returns it some milliseconds
/// after they are closed, so it may still count when the first worker creates its ring.
const PROBE_BYTES: u64 = 64 * 1024;

/// The features of io_uring for `workers` rings of the same kind, created when `later` holds. The
/// kernel is probed at the first call that succeeds (about a millisecond). Fails when io_uring as a
/// whole, or a feature that was requested by name, is refused, or resources ran out.
pub(crate) fn select_uring(
    options: &UringOptions,
    workers: usize,
    later: Option<&Environment>,
) -> Result<UringOptions, Refusal> {
    static DETECTED: OnceLock<UringReport> = OnceLock::new();
    let mut options = options.clone();
    options.cq_entries = options.cq_entries.max(options.sq_entries);
    let env = Environment::read();
    let later = later.unwrap_or(&env);
    // Now the kernel would still answer otherwise.
    if later.sysctl_refuses() && !env.sysctl_refuses() {
        return Err(layers::sysctl(later));
    }
    let uncharged = later.cap_ipc_lock;
    let uring = match DETECTED.get() {
        Some(uring) => uring,
        None => {
            // On a kernel that charges rings the first of the probe fails already.
            let found = UringReport::detect(&env).map_err(|refusal| match refusal.layer {
                Layer::Resources if !uncharged => {
                    check_memlock(&options, workers, &env).err().unwrap_or(refusal)
                }
                _ => refusal,
            })?;
            DETECTED.get_or_init(|| found)
        }
    };
    options.no_iowait &= uring.refusal_of(NO_IOWAIT).is_none();
    if let Some(refusal) = uring.refusal_of(SQPOLL).filter(|_| options.sqpoll_idle_ms > 0) {
        let what = format!("sqpoll_idle_ms was requested: {}", refusal.what);
        return Err(Refusal::new(Layer::Options, what, &*refusal.fix));
    }
    if uring.memlock_charged && !uncharged {
        check_memlock(&options, workers, &env)?;
    }
    Ok(options)
}

/// Compares what the rings of all workers are charged with the limit. An upper bound: other
/// processes of the same user share the limit, and the memory that they hold cannot be seen.
fn check_memlock(options: &UringOptions, workers: usize, env: &Environment) -> Result<(), Refusal> {
    let Some(limit) = env.memlock_bytes.soft else { return Ok(()) };
    let pages =
        |entries: u32, bytes: u64| (u64::from(entries) * bytes).next_multiple_of(PAGE_BYTES);
    // 64 bytes a submission, 4 for its index, 16 a completion behind a page of heads and tails, 16 a
    // buffer.
    let ring = pages(options.sq_entries, 64)
        + pages(options.sq_entries, 4)
        + PAGE_BYTES
        + pages(options.cq_entries, 16)
        + pages(options.buffer_count, 16);
    let needed = ring.saturating_mul(workers as u64).saturating_add(PROBE_BYTES);
    if needed > limit {
        return Err(layers::memlock_too_low(needed, limit, env.cap_ipc_lock));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> UringOptions {
        text.parse().unwrap()
    }

    #[test]
    fn memlock_is_compared_with_the_needs_of_all_rings() {
        let mut env = Environment::read();
        env.cap_ipc_lock = false;
        env.memlock_bytes.soft = Some(64 * 1024);
        let default = UringOptions::default();
        let refusal = check_memlock(&default, 1, &env).unwrap_err();
        assert_eq!(refusal.layer, Layer::Memlock);
        assert!(refusal.allows_fallback());
        assert!(refusal.fix.starts_with("`ulimit -l 236`"), "{refusal}");
        check_memlock(&parse("sq_entries=256,cq_entries=1024"), 1, &env).unwrap_err();
        env.memlock_bytes.soft = Some(128 * 1024);
        check_memlock(&parse("sq_entries=256,cq_entries=1024"), 1, &env).unwrap();
        env.memlock_bytes.soft = Some(256 * 1024);
        check_memlock(&default, 1, &env).unwrap();
        let refusal = check_memlock(&default, 2, &env).unwrap_err();
        assert!(refusal.fix.contains("or CAP_IPC_LOCK"), "{refusal}");
        // A process that has it, and drops it before the rings are created, is not advised to
        // obtain it.
        env.cap_ipc_lock = true;
        let refusal = check_memlock(&default, 2, &env).unwrap_err();
        assert!(refusal.fix.contains("keep CAP_IPC_LOCK"), "{refusal}");
        env.memlock_bytes.soft = None;
        check_memlock(&default, 1000, &env).unwrap();
    }
}
