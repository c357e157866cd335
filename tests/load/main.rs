//! `twinring load`, against our own servers and others whose faults are known.

#[path = "../support/mod.rs"]
mod support;

mod hold;
mod http;
mod http2;
mod http_faults;
mod http_gates;
mod http_serve;
mod http_tls;
mod tcp;
mod udp;
