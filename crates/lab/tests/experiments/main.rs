//! Whole experiments, short ones, with servers and load generators whose faults are known
//! (`examples/fakes`).

#[path = "../common/mod.rs"]
mod common;

mod accounting;
mod bundles;
mod faults;
mod http_faults;
mod peers;
mod stop_rule;
mod udp_faults;
