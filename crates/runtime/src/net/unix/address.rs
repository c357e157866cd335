//! Addresses of Unix sockets: between the standard library, the kernel and us.

use crate::sys::socket::SockAddr;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::SocketAddr;

/// The address in the form of the kernel.
///
/// # Errors
/// Without a name, which is the address of no socket.
pub(super) fn to_kernel(address: &SocketAddr) -> io::Result<SockAddr> {
    if let Some(path) = address.as_pathname() {
        return SockAddr::unix(path);
    }
    match address.as_abstract_name() {
        Some(name) => SockAddr::unix(OsStr::from_bytes(&[&[0], name].concat())),
        None => Err(io::Error::new(io::ErrorKind::InvalidInput, "the address has no name")),
    }
}

/// The address of a Unix socket that the kernel reports.
///
/// # Errors
/// For another kind of socket, and a path of 108 bytes, which only the kernel can represent.
pub(super) fn of_kernel(address: &SockAddr) -> io::Result<SocketAddr> {
    if let Some(path) = address.as_pathname() {
        return SocketAddr::from_pathname(path);
    }
    match address.as_abstract_namespace() {
        Some(name) => SocketAddr::from_abstract_name(name),
        None if address.is_unnamed() => unnamed(),
        None => Err(io::Error::new(io::ErrorKind::InvalidData, "not a Unix socket")),
    }
}

/// The address of a socket that is not bound.
pub(super) fn unnamed() -> io::Result<SocketAddr> {
    SocketAddr::from_pathname("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_round_trip() {
        let paths = ["/a/path", "relative", &"x".repeat(107)];
        let paths = paths.map(|path| SocketAddr::from_pathname(path).unwrap());
        for address in &paths {
            let back = of_kernel(&to_kernel(address).unwrap()).unwrap();
            assert_eq!(back.as_pathname(), address.as_pathname());
        }
        for name in [&b""[..], b"name", b"\0in\0it", &[0xff; 107]] {
            let address = SocketAddr::from_abstract_name(name).unwrap();
            let back = of_kernel(&to_kernel(&address).unwrap()).unwrap();
            assert_eq!(back.as_abstract_name(), Some(name));
        }
        assert!(unnamed().unwrap().is_unnamed());
        assert!(to_kernel(&unnamed().unwrap()).is_err());
        let internet: std::net::SocketAddr = "127.0.0.1:1".parse().unwrap();
        assert!(of_kernel(&internet.into()).is_err());
    }
}
