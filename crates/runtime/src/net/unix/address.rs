//! Names and addresses of Unix sockets: between the standard library, the kernel and us.

use crate::sys::socket::SockAddr;
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::SocketAddr;
use std::path::{Path, PathBuf};

/// The name of a Unix socket: a path, or a [`SocketAddr`], which may be an abstract name
/// ([`SocketAddrExt`]).
pub trait UnixName: fmt::Debug + sealed::ToKernel {}

mod sealed {
    pub trait ToKernel {
        /// The name in the form of the kernel.
        ///
        /// # Errors
        /// If it is too long, or the address of an unnamed socket.
        fn to_kernel(&self) -> std::io::Result<crate::sys::socket::SockAddr>;
    }
}

macro_rules! paths {
    ($($type:ty),*) => {
        $(impl UnixName for $type {}
        impl sealed::ToKernel for $type {
            fn to_kernel(&self) -> io::Result<SockAddr> {
                SockAddr::unix(AsRef::<Path>::as_ref(self))
            }
        })*
    };
}

paths!(str, String, OsStr, Path, PathBuf);

impl<T: UnixName + ?Sized> UnixName for &T {}

impl<T: sealed::ToKernel + ?Sized> sealed::ToKernel for &T {
    fn to_kernel(&self) -> io::Result<SockAddr> {
        (**self).to_kernel()
    }
}

impl UnixName for SocketAddr {}

impl sealed::ToKernel for SocketAddr {
    fn to_kernel(&self) -> io::Result<SockAddr> {
        if let Some(path) = self.as_pathname() {
            return SockAddr::unix(path);
        }
        match self.as_abstract_name() {
            Some(name) => SockAddr::unix(OsStr::from_bytes(&[&[0], name].concat())),
            None => Err(io::Error::new(io::ErrorKind::InvalidInput, "the address has no name")),
        }
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
    use super::sealed::ToKernel;
    use super::*;

    #[test]
    fn addresses_survive_the_round_trip() {
        let paths = ["/a/path", "relative", &"x".repeat(107)];
        let paths = paths.map(|path| SocketAddr::from_pathname(path).unwrap());
        for address in &paths {
            let back = of_kernel(&address.to_kernel().unwrap()).unwrap();
            assert_eq!(back.as_pathname(), address.as_pathname());
        }
        for name in [&b""[..], b"name", b"\0in\0it", &[0xff; 107]] {
            let address = SocketAddr::from_abstract_name(name).unwrap();
            let back = of_kernel(&address.to_kernel().unwrap()).unwrap();
            assert_eq!(back.as_abstract_name(), Some(name));
        }
        assert!(unnamed().unwrap().is_unnamed());
        assert!(unnamed().unwrap().to_kernel().is_err());
        let internet: std::net::SocketAddr = "127.0.0.1:1".parse().unwrap();
        assert!(of_kernel(&internet.into()).is_err());
    }
}
