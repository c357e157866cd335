//! The arguments for proxies in front of the file server.

use super::super::allow::network;
use clap::Args;
use ipnet::IpNet;
use twinring_services::http::{ForwardedField, Forwarders};

#[derive(Debug, Args)]
#[command(next_help_heading = "Proxies in front")]
pub(super) struct ForwarderArgs {
    /// Proxies whose connections begin with a header of the PROXY protocol, version 1 or 2: a network
    /// such as `192.0.2.0/24`, or an address. Without the header, their connections are closed. The
    /// access log and --max-connections-per-address then see the client. May be given several times.
    #[arg(long, value_name = "CIDR", value_parser = network)]
    proxy_protocol_from: Vec<IpNet>,
    /// Proxies whose --forwarded-field is believed. The access log then has the client of each request:
    /// the last address in the field that is none of these. With `X-Forwarded-Proto: https`, or `proto` in
    /// `Forwarded`, a request counts as one over TLS. Limits of connections do not use it.
    #[arg(long, value_name = "CIDR", value_parser = network)]
    forwarded_from: Vec<IpNet>,
    /// The field that these proxies append to: `X-Forwarded-For`, or `Forwarded` of RFC 7239.
    #[arg(long, value_name = "x-forwarded-for|forwarded", default_value = "x-forwarded-for")]
    forwarded_field: ForwardedField,
}

impl ForwarderArgs {
    pub(super) fn forwarders(&self) -> Forwarders {
        Forwarders {
            proxy_protocol: self.proxy_protocol_from.iter().copied().collect(),
            trusted: self.forwarded_from.iter().copied().collect(),
            field: self.forwarded_field,
        }
    }
}
