//! A datagram socket.

use super::datagrams::{Outbox, UdpSetup};
use super::epoll::EpollUdp;
use super::uring::UringUdp;
use crate::datagram::UdpStats;
use crate::task::WaitQueue;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// A datagram socket.
pub(crate) struct Udp {
    /// Empty once it was closed.
    pub(crate) socket: Option<OwnedFd>,
    pub(crate) setup: UdpSetup,
    pub(crate) stats: UdpStats,
    pub(crate) receive_waiters: WaitQueue,
    pub(crate) outbox: Outbox,
    /// What one engine has to remember; that of the other is not used.
    pub(crate) uring: UringUdp,
    pub(crate) epoll: EpollUdp,
}

impl Udp {
    pub(crate) fn new(
        socket: OwnedFd,
        setup: UdpSetup,
        uring: UringUdp,
        epoll: EpollUdp,
    ) -> Box<Udp> {
        Box::new(Udp {
            socket: Some(socket),
            stats: UdpStats::default(),
            receive_waiters: WaitQueue::default(),
            outbox: Outbox::new(setup.segmentation),
            setup,
            uring,
            epoll,
        })
    }

    pub(crate) fn fd(&self) -> Option<RawFd> {
        self.socket.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// True while a closed socket still has datagrams to send.
    pub(crate) fn must_linger(&self) -> bool {
        !self.outbox.is_settled()
    }
}
