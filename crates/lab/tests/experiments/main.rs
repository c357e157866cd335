//! Whole experiments, short ones, with servers and load generators whose faults are known
//! (`examples/fakes`).

#[path = "../common/mod.rs"]
mod common;

mod accounting;
mod bundles;
mod faults;
mod http_faults;
mod interrupted;
mod networks;
mod peers;
mod udp_faults;
