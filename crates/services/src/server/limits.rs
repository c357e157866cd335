//! How many connections are admitted, over all workers, and from where.

use super::allow_list::AllowList;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use twinring::TcpStream;

/// Counts the connections of a service, over all workers, and admits no more than its limits allow.
#[derive(Debug)]
pub(crate) struct ConnectionLimiter {
    allow: AllowList,
    open_max: usize,
    open: AtomicUsize,
    of_address_max: usize,
    /// Only kept when there is a maximum; an entry for each address with a connection.
    of_address: Mutex<HashMap<IpAddr, usize>>,
}

/// Why a connection was not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    NotAllowed,
    Full,
    FullForAddress,
}

impl ConnectionLimiter {
    /// At most `open_max` at once, and `of_address_max` per address; `usize::MAX` is unlimited.
    pub(crate) fn new(
        allow: AllowList,
        open_max: usize,
        of_address_max: usize,
    ) -> Arc<ConnectionLimiter> {
        Arc::new(ConnectionLimiter {
            allow,
            open_max,
            open: AtomicUsize::new(0),
            of_address_max,
            of_address: Mutex::default(),
        })
    }

    pub(crate) fn admit(
        self: &Arc<ConnectionLimiter>,
        stream: &TcpStream,
    ) -> Result<Permit, Refused> {
        let asks = self.allow.is_limited() || self.of_address_max < usize::MAX;
        // A peer without an address has already left.
        let peer = if asks { stream.peer_addr().ok() } else { None };
        if peer.is_some_and(|peer| !self.allow.admits(peer.ip())) {
            return Err(Refused::NotAllowed);
        }
        let mut permit = self.admit_any()?;
        if let Some(peer) = peer {
            permit._of_address = Some(self.count(peer.ip())?);
        }
        Ok(permit)
    }

    /// Admits a connection from any address, whose client is counted later, if at all.
    pub(crate) fn admit_any(self: &Arc<ConnectionLimiter>) -> Result<Permit, Refused> {
        let permit = Permit { limiter: Arc::clone(self), _of_address: None };
        // From here on, dropping the permit decrements the count again.
        match self.open.fetch_add(1, Ordering::Relaxed) >= self.open_max {
            true => Err(Refused::Full),
            false => Ok(permit),
        }
    }

    /// Counts a connection for its client's address.
    pub(crate) fn count(
        self: &Arc<ConnectionLimiter>,
        address: IpAddr,
    ) -> Result<AddressPermit, Refused> {
        let limiter = Arc::clone(self);
        if self.of_address_max == usize::MAX {
            return Ok(AddressPermit { limiter, address: None });
        }
        let address = network_of(address);
        let mut of_address = self.of_address();
        let count = of_address.entry(address).or_default();
        if *count >= self.of_address_max {
            return Err(Refused::FullForAddress);
        }
        *count += 1;
        drop(of_address);
        Ok(AddressPermit { limiter, address: Some(address) })
    }

    fn of_address(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.of_address.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The address that is counted: for IPv6 the network, since every client there has 2^64 addresses.
pub(crate) fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & u128::MAX << 64)),
        address => address,
    }
}

/// An admitted connection; dropping it frees its place.
#[derive(Debug)]
pub(crate) struct Permit {
    limiter: Arc<ConnectionLimiter>,
    _of_address: Option<AddressPermit>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.limiter.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection that is counted for an address; dropping it frees that place.
#[derive(Debug)]
pub(crate) struct AddressPermit {
    limiter: Arc<ConnectionLimiter>,
    /// None without a maximum.
    address: Option<IpAddr>,
}

impl Drop for AddressPermit {
    fn drop(&mut self) {
        if let Some(address) = self.address {
            let mut of_address = self.limiter.of_address();
            if let Some(count) = of_address.get_mut(&address) {
                *count -= 1;
                if *count == 0 {
                    of_address.remove(&address);
                }
            }
        }
    }
}
