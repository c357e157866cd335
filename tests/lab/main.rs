//! `twinring lab`, from the command line to the bundle.

mod compare;
mod examples;
mod http;
mod measurements;
#[path = "../support/missing.rs"]
mod missing;
mod pages;
mod peers;
mod quick;
mod slurm;
mod support;
mod tcp;
mod udp;
