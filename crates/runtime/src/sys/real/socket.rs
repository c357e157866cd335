//! Making sockets, their names and their options: as the `socket2` crate offers them, and one that it
//! lacks.

pub(crate) use socket2::{
    Domain, Protocol, SockAddr, SockFilter, SockRef, Socket, TcpKeepalive, Type,
};

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Makes the kernel choose between the sockets of a SO_REUSEPORT group by this classic BPF program,
/// which replaces the one before. It returns the number of a socket, in the order in which they
/// joined the group; the kernel checks that it is in range (net/core/sock_reuseport.c).
pub(crate) fn steer_group(socket: BorrowedFd<'_>, program: &[libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: program.len().try_into().map_err(|_| io::ErrorKind::InvalidInput)?,
        // The kernel only reads it.
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: a live sock_fprog and its exact size are passed; its filter points at `len`
    // instructions that outlive the call, which copies them.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            std::ptr::from_ref(&program).cast(),
            size_of_val(&program) as libc::socklen_t,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
