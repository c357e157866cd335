//! `twinring lab`, from the command line to the bundle.

mod compare;
mod examples;
mod fleet;
mod hosts;
mod http;
mod measurements;
#[path = "../support/missing.rs"]
mod missing;
mod pages;
mod peers;
mod profile;
mod quick;
#[path = "../support/rootfs.rs"]
mod rootfs;
mod slurm;
mod support;
mod tcp;
mod udp;
