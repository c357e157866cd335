//! Whole experiments, short ones, with servers and load generators whose faults are known
//! (`examples/fakes`).

mod accounting;
mod bundles;
mod faults;
mod http_faults;
mod interrupted;
mod networks;
mod peers;
mod udp_faults;
