//! `twinring serve`, over real sockets, as an operator starts it.

#[path = "../support/mod.rs"]
mod support;

mod allow;
mod containers;
mod discard;
mod echo;
mod echo_limits;
mod echo_shutdown;
mod engines;
mod families;
mod http;
mod http2;
mod http2_spec;
mod http_activation;
mod http_auth;
mod http_browser;
mod http_compression;
mod http_config;
mod http_hosts;
mod http_log;
mod http_log_disk;
mod http_metrics;
mod http_patience;
mod http_proxies;
mod http_ranges;
mod http_redirects;
mod http_reload;
mod http_robust;
mod http_sending;
mod http_shutdown;
mod http_strict;
mod http_tls;
mod idle;
mod sandbox;
mod udp;
mod udp_impaired;
mod udp_shutdown;
