//! The selection of features: those requested by name, or a clear refusal; otherwise the best
//! available.

use super::environment::{Environment, Rights};
use super::layers::{self, Layer, Refusal};
use super::uring::{Feature, Uring};
use crate::config::{
    Buffers, FileOperations, GATHER_MAX, RECV_BUFFER_BYTES, Split, TaskRun, UdpReads,
    UringFeatures, UringOptions,
};
use std::sync::OnceLock;

/// Default entries of the submission queue. The kernel and the driver go through all of it in turn,
/// 64 bytes each, so it is small enough to stay in the cache; further entries wait in a list and
/// cost another enter.
const SQ_ENTRIES: u32 = 512;
/// Default entries of the completion queue: multishot receives post at any time. Further
/// completions wait in the kernel.
const CQ_ENTRIES: u32 = 8192;
/// Default size in bytes and number of buffers that hold one receive each: large enough that a
/// message is seldom split, and so many that small ones of many sockets fit in one turn, while those of
/// the turn before are still being sent. Untouched parts cost address space only.
const BUFFERS: (usize, u16) = (RECV_BUFFER_BYTES, 256);
/// The same for buffers that are filled incrementally: small messages are packed. A large one is
/// split where a buffer ends.
const INCREMENTAL_BUFFERS: (usize, u16) = (64 * 1024, 16);

const PAGE_BYTES: u64 = 4096;
/// Upper bound of the memory charged for the probe's rings. The kernel returns it some milliseconds
/// after they are closed, so it may still count when the first worker creates its ring.
const PROBE_BYTES: u64 = 64 * 1024;

/// Selects the features of io_uring for one worker: the requested ones, otherwise the best
/// available.
///
/// # Errors
/// As [`select_uring_for`].
pub fn select_uring(options: &UringOptions) -> Result<UringFeatures, Refusal> {
    select_uring_for(options, 1)
}

/// Selects the features of io_uring for `workers` rings of the same kind. The kernel's features are
/// probed at the first call that succeeds (about a millisecond) and cached.
///
/// # Errors
/// When options contradict each other; when io_uring as a whole, or a feature that was requested by
/// name, is refused; or when resources ran out.
pub fn select_uring_for(options: &UringOptions, workers: usize) -> Result<UringFeatures, Refusal> {
    select_uring_with(options, workers, &Rights::default())
}

/// Like [`select_uring_for`], for rings that are created with other rights than the current ones.
pub(crate) fn select_uring_with(
    options: &UringOptions,
    workers: usize,
    rights: &Rights,
) -> Result<UringFeatures, Refusal> {
    static DETECTED: OnceLock<Uring> = OnceLock::new();
    check_contradictions(options)?;
    let env = Environment::read();
    let later = env.clone().with(rights);
    // Now the kernel would still answer otherwise.
    if later.sysctl_refuses() && !env.sysctl_refuses() {
        return Err(layers::sysctl(&later));
    }
    let uncharged = later.cap_ipc_lock;
    let uring = match DETECTED.get() {
        Some(uring) => uring,
        None => {
            // On a kernel that charges rings the first of the probe fails already.
            let found = Uring::detect(&env).map_err(|refusal| match refusal.layer {
                Layer::Resources if !uncharged => {
                    check_memlock(options, workers, &env).err().unwrap_or(refusal)
                }
                _ => refusal,
            })?;
            DETECTED.get_or_init(|| found)
        }
    };
    let features = choose(options, uring)?;
    if uring.memlock_charged && !uncharged {
        check_memlock(options, workers, &env)?;
    }
    Ok(features)
}

/// Two options that exclude each other.
fn check_contradictions(options: &UringOptions) -> Result<(), Refusal> {
    let sqpoll = options.sqpoll_idle_ms.is_some_and(|idle| idle > 0);
    let min_wait = options.min_wait_us.is_some_and(|wait| wait > 0);
    let cq_below_sq =
        options.cq_entries.is_some_and(|cq| options.sq_entries.is_some_and(|sq| cq < sq));
    let rules = [
        (
            sqpoll && options.taskrun == Some(TaskRun::Defer),
            "sqpoll_idle_ms and taskrun=defer",
            "completions run in the thread that submits",
        ),
        (
            sqpoll && options.taskrun == Some(TaskRun::Coop),
            "sqpoll_idle_ms and taskrun=coop",
            "completions run in the thread that submits",
        ),
        (
            sqpoll && options.skip_success == Some(true),
            "sqpoll_idle_ms and skip_success=on",
            "when a silent send ended would not be known",
        ),
        (
            options.single_issuer == Some(false) && options.taskrun == Some(TaskRun::Defer),
            "taskrun=defer and single_issuer=off",
            "the kernel defers only for a single issuer",
        ),
        (
            options.udp == Some(UdpReads::Calls) && options.multishot == Some(false),
            "udp=calls and multishot=off",
            "the poll that goes with the calls is multishot",
        ),
        (
            min_wait && options.ext_arg == Some(false),
            "min_wait_us and ext_arg=off",
            "the shortest wait is passed in the extended argument",
        ),
        (
            cq_below_sq,
            "cq_entries and a larger sq_entries",
            "the completion queue is never the smaller one",
        ),
    ];
    match rules.into_iter().find(|(broken, ..)| *broken) {
        Some((_, both, because)) => Err(Refusal::new(
            Layer::Options,
            format!("{both} contradict each other: {because}"),
            "drop one of the two",
        )),
        None => Ok(()),
    }
}

fn choose(options: &UringOptions, uring: &Uring) -> Result<UringFeatures, Refusal> {
    let wants = Wants { uring };
    let sqpoll_idle_ms = options.sqpoll_idle_ms.unwrap_or(0);
    let sqpoll = sqpoll_idle_ms > 0;
    if sqpoll {
        wants.named("sqpoll_idle_ms", &[])?;
    }
    let min_wait_us = options.min_wait_us.unwrap_or(0);
    if min_wait_us > 0 {
        wants.named("min_wait_us", &[Feature::WaitTimeout])?;
    }
    if options.udp == Some(UdpReads::Calls) {
        let multishot: Vec<Feature> = Uring::behind("multishot").collect();
        wants.named("udp=calls", &multishot)?;
    }
    let single_issuer = wants.switch(options.single_issuer, "single_issuer")?;
    let buffers = choose_buffers(options.buffers, &wants)?;
    let (buffer_bytes, buffer_count) = match buffers {
        Buffers::Incremental => INCREMENTAL_BUFFERS,
        Buffers::Ring | Buffers::Legacy => BUFFERS,
    };
    let (sq_entries, cq_entries) = queue_entries(options);
    Ok(UringFeatures {
        multishot: wants.switch(options.multishot, "multishot")?,
        buffers,
        buffer_bytes: options.buffer_bytes.map_or(buffer_bytes, |bytes| bytes as usize),
        buffer_count: options.buffer_count.map_or(buffer_count, |count| count as u16),
        taskrun: choose_taskrun(options.taskrun, single_issuer, sqpoll, &wants)?,
        single_issuer,
        sqpoll_idle_ms,
        registered_ring: wants.switch(options.registered_ring, "registered_ring")?,
        no_sqarray: wants.switch(options.no_sqarray, "no_sqarray")?,
        submit_all: uring.allows(Feature::SubmitAll),
        skip_success: !sqpoll && wants.switch(options.skip_success, "skip_success")?,
        gather: options.gather.unwrap_or(GATHER_MAX),
        split: options.split.unwrap_or(Split::Auto),
        min_wait_us,
        no_iowait: wants.switch(options.no_iowait, "no_iowait")?,
        ext_arg: wants.switch(options.ext_arg, "ext_arg")?,
        direct: match options.direct {
            Some(true) => wants.switch(options.direct, "direct")?,
            _ => false,
        },
        udp: options.udp.unwrap_or(UdpReads::Auto),
        files: choose_files(options.files, &wants)?,
        sq_entries,
        cq_entries,
    })
}

fn queue_entries(options: &UringOptions) -> (u32, u32) {
    let cq = options.cq_entries;
    // A small requested completion queue also limits the submission queue.
    let sq = options.sq_entries.unwrap_or(cq.map_or(SQ_ENTRIES, |cq| cq.min(SQ_ENTRIES)));
    (sq, cq.unwrap_or(CQ_ENTRIES).max(sq))
}

fn choose_files(
    asked: Option<FileOperations>,
    wants: &Wants<'_>,
) -> Result<FileOperations, Refusal> {
    let switch = asked.map(|asked| asked == FileOperations::Ring);
    let ring = wants.switch(switch, "files=ring")?;
    Ok(if ring { FileOperations::Ring } else { FileOperations::Threads })
}

fn choose_buffers(asked: Option<Buffers>, wants: &Wants<'_>) -> Result<Buffers, Refusal> {
    match asked {
        Some(Buffers::Ring) => wants.named("buffers=ring", &[])?,
        Some(Buffers::Incremental) => wants.named("buffers=incremental", &[Feature::BufferRing])?,
        Some(Buffers::Legacy) => {}
        // Not incremental buffers, which split large messages at their ends and are no cheaper with
        // small ones: a buffer whose second half stays untouched costs only address space.
        None if wants.uring.allows(Feature::BufferRing) => return Ok(Buffers::Ring),
        None => {}
    }
    Ok(asked.unwrap_or(Buffers::Legacy))
}

fn choose_taskrun(
    asked: Option<TaskRun>,
    single_issuer: bool,
    sqpoll: bool,
    wants: &Wants<'_>,
) -> Result<TaskRun, Refusal> {
    match asked {
        Some(TaskRun::Defer) => wants.named("taskrun=defer", &[Feature::SingleIssuer])?,
        Some(TaskRun::Coop) => wants.named("taskrun=coop", &[])?,
        Some(TaskRun::None) => {}
        None if sqpoll => return Ok(TaskRun::None),
        None if single_issuer && wants.uring.allows(Feature::DeferTaskrun) => {
            return Ok(TaskRun::Defer);
        }
        None if wants.uring.allows(Feature::CoopTaskrun) => return Ok(TaskRun::Coop),
        None => {}
    }
    Ok(asked.unwrap_or(TaskRun::None))
}

struct Wants<'a> {
    uring: &'a Uring,
}

impl Wants<'_> {
    /// The features behind an option that was given by name, and those `beside` it.
    fn named(&self, option: &str, beside: &[Feature]) -> Result<(), Refusal> {
        let mut needed = beside.iter().copied().chain(Uring::behind(option));
        needed
            .try_for_each(|feature| self.uring.require(feature))
            .map_err(|refusal| refusal.of_option(option))
    }

    /// An option that is on if all features behind it are available.
    fn switch(&self, asked: Option<bool>, option: &str) -> Result<bool, Refusal> {
        match asked {
            Some(false) => Ok(false),
            Some(true) => self.named(option, &[]).map(|()| true),
            None => Ok(Uring::behind(option).all(|feature| self.uring.allows(feature))),
        }
    }
}

/// The best set, for tests.
#[cfg(test)]
pub(crate) fn best() -> UringFeatures {
    choose(&UringOptions::default(), &Uring::without(&[])).expect("nothing is refused")
}

/// Compares what the rings of all workers are charged with the limit. An upper bound: other
/// processes of the same user share the limit, and the memory that they hold cannot be seen.
fn check_memlock(options: &UringOptions, workers: usize, env: &Environment) -> Result<(), Refusal> {
    let Some(limit) = env.memlock_bytes.soft else { return Ok(()) };
    let (sq, cq) = queue_entries(options);
    let pages =
        |entries: u32, bytes: u64| (u64::from(entries) * bytes).next_multiple_of(PAGE_BYTES);
    let buffers = options.buffer_count.unwrap_or(u32::from(BUFFERS.1));
    // 64 bytes a submission, 16 a completion behind a page of heads and tails, 16 a buffer.
    let ring = pages(sq, 64) + PAGE_BYTES + pages(cq, 16) + pages(buffers, 16);
    let needed = ring.saturating_mul(workers as u64).saturating_add(PROBE_BYTES);
    match needed > limit {
        true => Err(layers::memlock_too_low(needed, limit, env.cap_ipc_lock)),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> UringOptions {
        text.parse().unwrap()
    }

    #[test]
    fn a_full_kernel_gives_the_best_set() {
        let features = best();
        let expected = UringFeatures {
            multishot: true,
            buffers: Buffers::Ring,
            buffer_bytes: RECV_BUFFER_BYTES,
            buffer_count: 256,
            taskrun: TaskRun::Defer,
            single_issuer: true,
            sqpoll_idle_ms: 0,
            registered_ring: true,
            no_sqarray: true,
            submit_all: true,
            skip_success: true,
            split: Split::Auto,
            gather: GATHER_MAX,
            min_wait_us: 0,
            no_iowait: true,
            ext_arg: true,
            direct: false,
            udp: UdpReads::Auto,
            files: FileOperations::Ring,
            sq_entries: 512,
            cq_entries: 8192,
        };
        assert_eq!(features, expected);
    }

    #[test]
    fn older_kernels_degrade_step_by_step() {
        use Feature as F;
        let mut lacking = Vec::new();
        let mut without = |features: &[Feature]| {
            lacking.extend_from_slice(features);
            choose(&UringOptions::default(), &Uring::without(&lacking)).unwrap()
        };
        assert!(!without(&[F::NoSqarray]).no_sqarray);
        assert!(!without(&[F::NoIowait]).no_iowait);
        assert_eq!(without(&[F::IncrementalBuffers]).buffers, Buffers::Ring);
        assert_eq!(without(&[F::DeferTaskrun]).taskrun, TaskRun::Coop);
        assert!(!without(&[F::SingleIssuer, F::MultishotRecv]).multishot);
        let linux_5_18 = without(&[F::CoopTaskrun, F::BufferRing, F::MultishotAccept]);
        assert_eq!(linux_5_18.taskrun, TaskRun::None);
        assert_eq!(linux_5_18.buffers, Buffers::Legacy);
        assert!(linux_5_18.registered_ring && linux_5_18.submit_all && linux_5_18.skip_success);
        let linux_5_7 = without(&[F::RegisteredRing, F::SubmitAll, F::SkipSuccess, F::WaitTimeout]);
        assert!(!linux_5_7.registered_ring && !linux_5_7.submit_all);
        assert!(!linux_5_7.skip_success && !linux_5_7.ext_arg);
    }

    #[test]
    fn features_requested_by_name_work_or_are_refused_by_name() {
        use Feature as F;
        for (options, lacking, feature) in [
            ("multishot=on", F::MultishotRecv, "IORING_RECV_MULTISHOT"),
            ("buffers=incremental", F::IncrementalBuffers, "IOU_PBUF_RING_INC"),
            ("buffers=ring", F::BufferRing, "IORING_REGISTER_PBUF_RING"),
            ("taskrun=defer", F::DeferTaskrun, "IORING_SETUP_DEFER_TASKRUN"),
            ("taskrun=coop", F::CoopTaskrun, "IORING_SETUP_COOP_TASKRUN"),
            ("single_issuer=on", F::SingleIssuer, "IORING_SETUP_SINGLE_ISSUER"),
            ("sqpoll_idle_ms=5", F::Sqpoll, "IORING_SETUP_SQPOLL"),
            ("registered_ring=on", F::RegisteredRing, "IORING_REGISTER_RING_FDS"),
            ("no_sqarray=on", F::NoSqarray, "IORING_SETUP_NO_SQARRAY"),
            ("skip_success=on", F::SkipSuccess, "IOSQE_CQE_SKIP_SUCCESS"),
            ("min_wait_us=50", F::MinWait, "IORING_FEAT_MIN_TIMEOUT"),
            ("no_iowait=on", F::NoIowait, "IORING_ENTER_NO_IOWAIT"),
            ("ext_arg=on", F::WaitTimeout, "IORING_ENTER_EXT_ARG"),
            ("direct=on", F::DirectDescriptors, "IORING_RSRC_REGISTER_SPARSE"),
            ("udp=calls", F::MultishotRecv, "IORING_RECV_MULTISHOT"),
            ("files=ring", F::FileOperations, "IORING_OP_OPENAT2"),
        ] {
            let refusal = choose(&parse(options), &Uring::without(&[lacking])).unwrap_err();
            let text = refusal.to_string();
            let option = options.split('=').next().unwrap();
            assert!(text.starts_with(option) && text.contains(feature), "{text}");
            assert!(text.contains("fix: run Linux"), "{text}");
            assert!(!refusal.allows_fallback());
            choose(&parse(options), &Uring::without(&[])).unwrap();
        }
    }

    #[test]
    fn contradictions_name_both_options() {
        for (options, both) in [
            ("sqpoll_idle_ms=5,taskrun=defer", "sqpoll_idle_ms and taskrun=defer"),
            ("sqpoll_idle_ms=5,taskrun=coop", "sqpoll_idle_ms and taskrun=coop"),
            ("sqpoll_idle_ms=5,skip_success=on", "sqpoll_idle_ms and skip_success=on"),
            ("taskrun=defer,single_issuer=off", "taskrun=defer and single_issuer=off"),
            ("udp=calls,multishot=off", "udp=calls and multishot=off"),
            ("min_wait_us=50,ext_arg=off", "min_wait_us and ext_arg=off"),
            ("sq_entries=4096,cq_entries=1024", "cq_entries and a larger sq_entries"),
        ] {
            let refusal = select_uring(&parse(options)).unwrap_err();
            assert!(refusal.what.starts_with(both), "{refusal}");
            assert_eq!(refusal.layer, Layer::Options);
            assert!(!refusal.allows_fallback());
        }
    }

    #[test]
    fn options_that_imply_others_do_so_silently() {
        let full = Uring::without(&[]);
        let choose = |text: &str| choose(&parse(text), &full).unwrap();
        assert_eq!(choose("single_issuer=off").taskrun, TaskRun::Coop);
        let sqpoll = choose("sqpoll_idle_ms=5");
        assert_eq!((sqpoll.taskrun, sqpoll.skip_success), (TaskRun::None, false));
        let small = choose("cq_entries=128");
        assert_eq!((small.sq_entries, small.cq_entries), (128, 128));
        let large = choose("sq_entries=32768");
        assert_eq!((large.sq_entries, large.cq_entries), (32768, 32768));
        assert_eq!(choose("buffers=incremental").buffer_count, 16);
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
        assert!(refusal.fix.starts_with("`ulimit -l 232`"), "{refusal}");
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
