//! The clients of the reflectors. An answer to a forged address is traffic against a third party, so
//! only this machine is answered unless the operator allows other clients.

use super::families;
use clap::Args;
use std::net::SocketAddr;
use std::str::FromStr;
use twinring_services::{AllowList, Network};

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Limits")]
pub(super) struct AllowArgs {
    /// Admit other clients than loopback addresses: a network such as `192.0.2.0/24`, an address, or
    /// `any`. May be given several times. Required to listen on addresses that others can reach.
    #[arg(long = "allow", value_name = "CIDR|any")]
    pub(super) allowed: Vec<Allowed>,
}

/// A network; none for any address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Allowed(Option<Network>);

impl FromStr for Allowed {
    type Err = String;

    fn from_str(text: &str) -> Result<Allowed, String> {
        if text == "any" {
            return Ok(Allowed(None));
        }
        let network = text.parse::<Network>().map_err(|expected| format!("{expected}, or any"))?;
        Ok(Allowed(Some(network)))
    }
}

impl AllowArgs {
    /// The allow list of a service that listens on these addresses.
    pub(super) fn list_for(&self, listen: &[SocketAddr]) -> Result<AllowList, String> {
        families::once(listen.to_vec())?;
        if self.is_any() {
            return Ok(AllowList::any());
        }
        let open = listen.iter().find(|address| !address.ip().to_canonical().is_loopback());
        match open {
            Some(address) if self.allowed.is_empty() => Err(format!(
                "others can reach {address}, and this service sends back everything that it \
                 receives: list its clients with --allow CIDR (repeatable), or answer all with \
                 --allow any"
            )),
            // Loopback addresses are checked as well: hand-written or forwarded packets
            // (net.ipv4.conf.*.route_localnet) can arrive there from elsewhere.
            _ => Ok(AllowList::of(self.networks())),
        }
    }

    fn networks(&self) -> impl Iterator<Item = Network> {
        self.allowed.iter().filter_map(|allowed| allowed.0)
    }

    pub(super) fn is_any(&self) -> bool {
        self.allowed.contains(&Allowed(None))
    }

    pub(super) fn list(&self) -> Vec<String> {
        match self.is_any() {
            true => vec!["any".to_owned()],
            false => {
                let networks = self.networks().map(|network| network.to_string());
                ["loopback".to_owned()].into_iter().chain(networks).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(allowed: &[&str]) -> AllowArgs {
        let parse = |text: &&str| text.parse().expect("an entry");
        AllowArgs { allowed: allowed.iter().map(parse).collect() }
    }

    #[test]
    fn who_can_be_reached_by_others_has_to_say_whom_to_answer() {
        let loopback: &[SocketAddr] = &["127.0.0.1:7".parse().unwrap(), "[::1]:7".parse().unwrap()];
        let this_machine = args(&[]).list_for(loopback).expect("no question");
        assert!(this_machine.admits("127.8.8.8".parse().unwrap()));
        assert!(!this_machine.admits("192.0.2.9".parse().unwrap()));
        for open in ["0.0.0.0:7", "[::]:7", "192.0.2.1:7", "[2001:db8::1]:7"] {
            let listen = [loopback[0], open.parse().unwrap()];
            let error = args(&[]).list_for(&listen).expect_err(open);
            assert!(error.contains(open) && error.contains("--allow any"), "{error}");
            assert!(!args(&["any"]).list_for(&listen).expect("anybody").is_limited());
            let some = args(&["192.0.2.0/24"]).list_for(&listen).expect("some");
            assert!(some.admits("192.0.2.9".parse().unwrap()));
            assert!(!some.admits("198.51.100.1".parse().unwrap()));
        }
    }

    #[test]
    fn entries_parse_and_are_told_as_they_count() {
        let some = args(&["192.0.2.0/24", "2001:db8::1"]);
        assert_eq!(some.list(), ["loopback", "192.0.2.0/24", "2001:db8::1/128"]);
        assert_eq!(args(&["10.0.0.0/8", "any"]).list(), ["any"]);
        // These were taken for 10.0.0.0/8, and for networks in which no client is.
        let misread = ["010.0.0.0/8", "::ffff:10.0.0.0/104", "::ffff:10.0.0.1"];
        let wrong = ["", "all", "10.0.0.0/33", "10.0.0.1/8", "10.0.0", "x.org"];
        for wrong in wrong.into_iter().chain(misread) {
            assert!(wrong.parse::<Allowed>().is_err(), "{wrong:?}");
        }
    }
}
