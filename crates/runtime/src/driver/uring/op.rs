//! The kinds of operations, as encoded in the user data of a completion.

use crate::slots::Key;

/// The kind of an operation; with the key of its slot it forms the user data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Op {
    Receive = 1,
    Accept,
    /// A multishot receive of datagrams.
    ReceiveDatagrams,
    /// A single-shot receive of a datagram; its key names a [`super::RecvOp`].
    ReceiveDatagram,
    // Those before this are arrivals.
    Wake,
    Send,
    Connect,
    Cancel,
    Close,
    SendDatagram,
    /// An operation on a file; its key names a slot of [`super::Files`].
    File,
    /// A poll that ends when a stream accepts more.
    Writable,
    /// The timer of [`super::LostEvents`].
    LostEvents,
}

impl Op {
    const ALL: [Op; 13] = [
        Op::Receive,
        Op::Accept,
        Op::ReceiveDatagrams,
        Op::ReceiveDatagram,
        Op::Wake,
        Op::Send,
        Op::Connect,
        Op::Cancel,
        Op::Close,
        Op::SendDatagram,
        Op::File,
        Op::Writable,
        Op::LostEvents,
    ];

    /// True for the user data of events that peers cause, and not the program.
    #[inline]
    pub(super) fn is_arrival(user_data: u64) -> bool {
        (user_data >> Key::BITS).wrapping_sub(1) < Op::Wake as u64 - 1
    }

    pub(super) fn tag(self, key: Key) -> u64 {
        key.to_bits() | (self as u64) << Key::BITS
    }

    pub(super) fn of(user_data: u64) -> Option<Op> {
        let code = (user_data >> Key::BITS) as usize;
        code.checked_sub(1).and_then(|index| Op::ALL.get(index)).copied()
    }
}
