//! Which addresses a service answers.

use ipnet::IpNet;
use std::net::{IpAddr, SocketAddr};

/// The clients of a service that sends back what it receives: all, or certain networks. This
/// machine is always allowed, by its loopback addresses, which cannot be used from elsewhere.
#[derive(Clone, Debug, Default)]
pub struct AllowList {
    /// `None` allows all clients, for the price of one branch.
    networks: Option<Box<[IpNet]>>,
}

impl AllowList {
    /// Allows every client that can reach the service.
    pub fn any() -> AllowList {
        AllowList::default()
    }

    /// Allows these networks, and this machine. IPv4 addresses mapped to IPv6 count as IPv4.
    pub fn of(networks: impl IntoIterator<Item = IpNet>) -> AllowList {
        AllowList { networks: Some(networks.into_iter().collect()) }
    }

    /// True if it is limited at all.
    pub fn is_limited(&self) -> bool {
        self.networks.is_some()
    }

    /// True if this address may use the service.
    pub fn admits(&self, address: IpAddr) -> bool {
        let Some(networks) = &self.networks else { return true };
        let address = address.to_canonical();
        address.is_loopback() || networks.iter().any(|network| network.contains(&address))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn only_listed_networks_and_this_machine_are_admitted() {
        let networks = ["10.1.0.0/16", "192.0.2.7/32", "2001:db8::/32"];
        let some = AllowList::of(networks.map(|text| text.parse().expect("a network")));
        for one in
            ["10.1.255.1", "192.0.2.7", "2001:db8:1::1", "::ffff:10.1.2.3", "127.0.0.9", "::1"]
        {
            assert!(some.admits(address(one)), "{one}");
        }
        for other in ["10.2.0.1", "192.0.2.8", "2001:db9::1", "::ffff:10.2.0.1", "0.0.0.0", "::"] {
            assert!(!some.admits(address(other)), "{other}");
            assert!(AllowList::any().admits(address(other)), "{other}");
        }
        let nobody_else = AllowList::of([]);
        assert!(nobody_else.is_limited() && nobody_else.admits(address("127.0.0.1")));
        assert!(!nobody_else.admits(address("10.0.0.1")));
    }

    #[test]
    fn sources_that_are_not_one_host_are_recognised() {
        for one in ["10.0.0.1:1", "127.0.0.1:65535", "[fe80::1]:9", "[::ffff:10.0.0.1]:9"] {
            assert!(is_one_host(one.parse().expect("an address")), "{one}");
        }
        for none in [
            "10.0.0.1:0",
            "0.0.0.0:9",
            "224.0.0.1:9",
            "255.255.255.255:9",
            "[ff02::1]:9",
            "[::]:9",
            "[::ffff:255.255.255.255]:9",
        ] {
            assert!(!is_one_host(none.parse().expect("an address")), "{none}");
        }
    }
}
