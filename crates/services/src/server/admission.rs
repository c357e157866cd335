//! Which clients a service admits, and how many connections, over all workers.

use crate::lock;
use ipnet::IpNet;
use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A network, such as `192.0.2.0/24`, or an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network(IpNet);

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Network, String> {
        // The standard library reads the address: `ipnet` takes 010.0.0.0/8 for 10.0.0.0/8, which
        // others read as 8.0.0.0/8.
        let address = text.split('/').next().unwrap_or_default().parse::<IpAddr>();
        let network = address.ok().and_then(|address| match text.contains('/') {
            true => text.parse::<IpNet>().ok(),
            false => Some(IpNet::from(address)),
        });
        let network = network.ok_or_else(|| {
            "expected a network such as 192.0.2.0/24 or 2001:db8::/32, or an address".to_owned()
        })?;
        if let IpNet::V6(mapped) = network
            && let Some(address) = mapped.addr().to_ipv4_mapped()
        {
            return Err(format!("`{text}` matches nobody: write IPv4 as such, here {address}"));
        }
        match network.trunc() {
            whole if whole == network => Ok(Network(network)),
            whole => Err(format!(
                "`{text}` is an address inside of {whole}: expected a network; did you mean {whole}?"
            )),
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// True if an address is in one of these networks. IPv4 addresses mapped to IPv6 count as IPv4.
pub(crate) fn contain(networks: &[Network], address: IpAddr) -> bool {
    let address = address.to_canonical();
    networks.iter().any(|network| network.0.contains(&address))
}

/// The clients of a service that sends back what it receives: all, or certain networks. This
/// machine is always allowed, by its loopback addresses, which cannot be used from elsewhere.
#[derive(Clone, Debug, Default)]
pub struct AllowList(Option<Arc<[Network]>>);

impl AllowList {
    /// Allows every client that can reach the service.
    pub fn any() -> AllowList {
        AllowList::default()
    }

    /// Allows these networks, and this machine.
    pub fn of(networks: impl IntoIterator<Item = Network>) -> AllowList {
        AllowList(Some(networks.into_iter().collect()))
    }

    /// True if it is limited at all.
    pub fn is_limited(&self) -> bool {
        self.0.is_some()
    }

    /// True if this address may use the service.
    pub fn admits(&self, address: IpAddr) -> bool {
        let admits = |networks: &Arc<[Network]>| contain(networks, address);
        self.0.as_ref().is_none_or(admits) || address.to_canonical().is_loopback()
    }
}

/// True if answers to this source reach at most one host. No host has port 0, and an unspecified,
/// multicast or broadcast address is not that of one host: such sources are forged.
pub(crate) fn is_one_host(source: SocketAddr) -> bool {
    let one = match source.ip().to_canonical() {
        // 0.0.0.0/8 is "this network"; from 224.0.0.0 on all is multicast, reserved or broadcast.
        IpAddr::V4(address) => (1..224).contains(&address.octets()[0]),
        IpAddr::V6(address) => !address.is_multicast() && !address.is_unspecified(),
    };
    one && source.port() != 0
}

/// Counts the connections of a service, over all workers, and admits no more than its limits allow.
#[derive(Debug)]
pub(crate) struct ConnectionLimiter {
    free: Arc<Semaphore>,
    of_address_max: usize,
    /// Only kept when there is a maximum; an entry for each address with a connection.
    of_address: Mutex<HashMap<IpAddr, usize>>,
}

impl ConnectionLimiter {
    /// At most `open_max` at once, and `of_address_max` per address; `usize::MAX` is unlimited.
    pub(crate) fn new(open_max: usize, of_address_max: usize) -> Arc<ConnectionLimiter> {
        Arc::new(ConnectionLimiter {
            free: Arc::new(Semaphore::new(open_max.min(Semaphore::MAX_PERMITS))),
            of_address_max,
            of_address: Mutex::default(),
        })
    }

    /// Admits a connection from any address; none if all places are taken.
    pub(crate) fn admit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.free).try_acquire_owned().ok()
    }

    /// Counts a connection for its address, if that matters and is known; none if it has as many as it may.
    pub(crate) fn count(
        self: &Arc<ConnectionLimiter>,
        address: impl FnOnce() -> Option<IpAddr>,
    ) -> Option<AddressPermit> {
        let is_limited = self.of_address_max < usize::MAX;
        let address = is_limited.then(address).flatten().map(network_of);
        if let Some(address) = address {
            let mut of_address = lock(&self.of_address);
            let count = of_address.entry(address).or_default();
            if *count >= self.of_address_max {
                return None;
            }
            *count += 1;
        }
        Some(AddressPermit { limiter: Arc::clone(self), address })
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
pub(crate) type Permit = (OwnedSemaphorePermit, AddressPermit);

/// A connection that is counted for an address; dropping it frees that place.
#[derive(Debug)]
pub(crate) struct AddressPermit {
    limiter: Arc<ConnectionLimiter>,
    address: Option<IpAddr>,
}

impl Drop for AddressPermit {
    fn drop(&mut self) {
        if let Some(address) = self.address {
            let mut of_address = lock(&self.limiter.of_address);
            if let Some(count) = of_address.get_mut(&address) {
                *count -= 1;
                if *count == 0 {
                    of_address.remove(&address);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_that_are_not_one_host_are_recognised() {
        for one in ["10.0.0.1:1", "127.0.0.1:65535", "[fe80::1]:9", "[::ffff:10.0.0.1]:9"] {
            assert!(is_one_host(one.parse().expect("an address")), "{one}");
        }
        for none in ["10.0.0.1:0", "0.0.0.0:9", "224.0.0.1:9", "[ff02::1]:9", "[::]:9"] {
            assert!(!is_one_host(none.parse().expect("an address")), "{none}");
        }
    }
}
