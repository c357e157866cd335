//! The kinds of operations, as encoded in the user data of a completion.

use crate::slots::Key;

/// The kind of an operation; with the key of its slot it forms the user data.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Op(pub(super) u64);

impl Op {
    pub(super) const RECEIVE: Op = Op(1);
    pub(super) const ACCEPT: Op = Op(2);
    /// Its key names a [`super::RecvOp`].
    pub(super) const RECEIVE_DATAGRAM: Op = Op(3);
    // Those before this are arrivals.
    pub(super) const WAKE: Op = Op(4);
    pub(super) const SEND: Op = Op(5);
    pub(super) const CONNECT: Op = Op(6);
    pub(super) const CANCEL: Op = Op(7);
    pub(super) const CLOSE: Op = Op(8);
    pub(super) const SEND_DATAGRAM: Op = Op(9);
    /// An operation on a file; its key names a [`super::PendingRead`].
    pub(super) const FILE: Op = Op(10);
    /// A poll that ends when a stream accepts more.
    pub(super) const WRITABLE: Op = Op(11);
    /// The timer of [`super::LostEvents`].
    pub(super) const LOST_EVENTS: Op = Op(12);

    /// True for the user data of events that peers cause, and not the program.
    #[inline]
    pub(super) fn is_arrival(user_data: u64) -> bool {
        Op::of(user_data).0.wrapping_sub(1) < Op::WAKE.0 - 1
    }

    pub(super) fn tag(self, key: Key) -> u64 {
        key.to_bits() | self.0 << Key::BITS
    }

    /// The user data of an operation that belongs to no slot.
    pub(super) fn alone(self) -> u64 {
        self.0 << Key::BITS
    }

    #[inline]
    pub(super) fn of(user_data: u64) -> Op {
        Op(user_data >> Key::BITS)
    }
}
