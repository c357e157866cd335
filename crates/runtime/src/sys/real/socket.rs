//! Making sockets, their names and their options: as the `socket2` crate offers them.

pub(crate) use socket2::{
    Domain, Protocol, SockAddr, SockFilter, SockRef, Socket, TcpKeepalive, Type,
};
