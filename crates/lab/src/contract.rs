//! The JSON lines of `twinring serve` and `twinring load`, as the lab reads them. Runs store the
//! lines as they came.

pub(crate) use twinring_wire::{HttpResult, LoadResult, TcpResult, UdpResult, event_of, sum};
pub(crate) use twinring_wire::{http, requests, tcp, udp};

use serde_json::Value;

/// A counter of the server's `final` line.
pub(crate) fn runtime_counter(final_line: Option<&Value>, name: &str) -> Option<f64> {
    final_line?.get("runtime_counters")?.get(name)?.as_f64()
}

/// A counter of the service in the server's `final` line.
pub(crate) fn service_counter(final_line: Option<&Value>, name: &str) -> Option<f64> {
    final_line?.get("service_counters")?.get(name)?.as_f64()
}
