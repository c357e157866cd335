//! The JSON lines of `twinring serve` and `twinring load`, as the lab reads them. Runs store the
//! lines as they came.

pub(crate) use twinring_wire::requests;
pub(crate) use twinring_wire::{HttpResult, LoadResult, UdpResult, event_of, sum};
