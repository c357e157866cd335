//! Whole experiments, short ones, with servers and load generators whose faults are known
//! (`examples/fakes`).

pub(crate) mod accounting;
pub(crate) mod bundles;
pub(crate) mod faults;
pub(crate) mod http_faults;
pub(crate) mod interrupted;
pub(crate) mod networks;
pub(crate) mod peers;
pub(crate) mod udp_faults;
