//! io_uring on this machine: what the engine requires (Linux 6.1), and what it can use beside that.

use super::environment::Environment;
use super::known_faults;
use super::layers::{self, Layer, Refusal};
use crate::sys::probe as trial;
use io_uring::{Probe, opcode};
use rustix::io_uring::IoringSetupFlags;
use serde::Serialize;
use std::io;

/// The operations that the engine submits.
const OPERATIONS: [(&str, u8); 11] = [
    ("POLL_ADD", opcode::PollAdd::CODE),
    ("TIMEOUT", opcode::Timeout::CODE),
    ("ACCEPT", opcode::Accept::CODE),
    ("CONNECT", opcode::Connect::CODE),
    ("ASYNC_CANCEL", opcode::AsyncCancel::CODE),
    ("SEND", opcode::Send::CODE),
    ("SENDMSG", opcode::SendMsg::CODE),
    ("RECV", opcode::Recv::CODE),
    ("RECVMSG", opcode::RecvMsg::CODE),
    ("CLOSE", opcode::Close::CODE),
    ("READ", opcode::Read::CODE),
];

/// Bits of `io_uring_params.features`.
const FEAT_RW_ATTR: u32 = 1 << 16;
const FEAT_NO_IOWAIT: u32 = 1 << 17;

const DEFER_TASKRUN: &str = "IORING_SETUP_DEFER_TASKRUN";
const PBUF_RING: &str = "IORING_REGISTER_PBUF_RING";
pub(super) const NO_IOWAIT: &str = "IORING_ENTER_NO_IOWAIT";
pub(super) const SQPOLL: &str = "IORING_SETUP_SQPOLL";

/// A feature and whether it can be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FeatureReport {
    /// Its name in the kernel's interface.
    pub kernel_name: &'static str,
    /// The Linux release that brought it; distributions may have it earlier.
    pub since: &'static str,
    /// The option that needs it, as in `--uring OPTION`; `None`: the engine takes it where it can.
    pub option: Option<&'static str>,
    /// Why not; `None` if it can be used.
    pub refusal: Option<Refusal>,
}

/// The capabilities of io_uring on this machine, on which the engine can run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UringReport {
    /// What the engine uses, in fixed order.
    pub features: Vec<FeatureReport>,
    /// Rings of processes without CAP_IPC_LOCK count against RLIMIT_MEMLOCK.
    pub memlock_charged: bool,
}

impl UringReport {
    /// Tries a ring, its registrations and what it can do; about a millisecond. Fails when the
    /// engine cannot run on it.
    pub(super) fn detect(env: &Environment) -> Result<UringReport, Refusal> {
        let blocked: Vec<_> = trial::blocked_calls().collect();
        let (_ring, bits) = trial::setup(IoringSetupFlags::empty())
            .map_err(|error| layers::setup_refused(&error, env, &blocked))?;
        if !blocked.is_empty() {
            return Err(layers::calls_blocked(&blocked, env));
        }
        if let Some(refusal) = known_faults::of_kernel(env) {
            return Err(refusal);
        }
        let refused = |name: &str, since: &str, error: &io::Error| {
            layers::feature_refused(name, since, error, env)
        };
        let ring = trial::trial_ring().map_err(|error| refused(DEFER_TASKRUN, "6.1", &error))?;
        trial::register_buffers(&ring).map_err(|error| refused(PBUF_RING, "5.19", &error))?;
        let mut features = [(DEFER_TASKRUN, "6.1"), (PBUF_RING, "5.19")]
            .map(|(kernel_name, since)| FeatureReport {
                kernel_name,
                since,
                option: None,
                refusal: None,
            })
            .to_vec();
        let mut probe = Probe::new();
        ring.submitter()
            .register_probe(&mut probe)
            .map_err(|error| refused("IORING_REGISTER_PROBE", "5.6", &error))?;
        let missing = OPERATIONS.iter().find(|(_, code)| !probe.is_supported(*code));
        if let Some((name, _)) = missing {
            return Err(refused(&format!("IORING_OP_{name}"), "6.1", &unsupported()));
        }
        let no_iowait = if bits & FEAT_NO_IOWAIT == 0 { Err(unsupported()) } else { Ok(()) };
        let sqpoll = trial::setup(IoringSetupFlags::SQPOLL).map(drop);
        for (kernel_name, since, option, tried) in
            [(NO_IOWAIT, "6.15", None, no_iowait), (SQPOLL, "5.13", Some("sqpoll_idle_ms"), sqpoll)]
        {
            let refusal = tried.err().map(|error| refused(kernel_name, since, &error));
            let refusal = match refusal {
                Some(refusal) if refusal.layer == Layer::Resources => return Err(refusal),
                other => other,
            };
            features.push(FeatureReport { kernel_name, since, option, refusal });
        }
        Ok(UringReport {
            features,
            // Charged again since the release that brought RW_ATTR, 6.14.
            memlock_charged: bits & FEAT_RW_ATTR != 0,
        })
    }

    pub(super) fn refusal_of(&self, kernel_name: &str) -> Option<&Refusal> {
        self.features.iter().find(|it| it.kernel_name == kernel_name)?.refusal.as_ref()
    }
}

fn unsupported() -> io::Error {
    io::Error::from_raw_os_error(libc::EINVAL)
}
