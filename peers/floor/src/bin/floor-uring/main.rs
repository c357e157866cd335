//! TCP echo on bare io_uring: what the interface allows with no runtime in between.
//!
//! One multishot accept, one multishot receive per connection into a ring of provided buffers, and
//! sends that post a completion only when they did not send everything. A round of the loop is one
//! `io_uring_enter` (two with `--split`) for all connections that have something to do.

mod pool;
mod server;

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::process::ExitCode;

use clap::Parser;
use io_uring::IoUring;
use peer_common::{COMPLETION_ENTRIES, Common, SUBMISSION_ENTRIES};

use crate::pool::Pool;
use crate::server::Server;

const NAME: &str = "floor-uring";

/// Classic buffers: a small message each. The kernel takes them in turn, so that all of them want
/// to be in the L2 cache: 256 are 512 KB, and enough for 100 connections.
const CLASSIC_BUFFER_BYTES: u32 = 2 * 1024;
const CLASSIC_BUFFERS: u16 = 256;

/// Incremental buffers: many messages each.
const INCREMENTAL_BUFFER_BYTES: u32 = 64 * 1024;
const INCREMENTAL_BUFFERS: u16 = 16;

/// TCP echo server on bare io_uring (Linux 6.6; 6.12 for --inc).
#[derive(Parser)]
#[command(name = NAME, version)]
struct Options {
    #[command(flatten)]
    common: Common,

    /// Receive buffers in the ring; a power of two.
    #[arg(long, value_name = "COUNT", value_parser = power_of_two)]
    buffers: Option<u16>,

    /// Buffers that many receives fill one after the other (IOU_PBUF_RING_INC).
    #[arg(long)]
    inc: bool,

    /// Submit the sends with an enter of their own, so that their buffers are back in the ring
    /// before the wait.
    #[arg(long)]
    split: bool,
}

fn main() -> ExitCode {
    peer_common::finish(NAME, run(&Options::parse()))
}

fn run(options: &Options) -> io::Result<()> {
    let listener = peer_common::start(&options.common)?;
    let mut ring = set_up_ring()
        .map_err(|error| peer_common::context("cannot set up io_uring (needs 6.6)", error))?;
    let (mut submitter, submissions, mut completions) = ring.split();
    submitter.register_ring_fd()?;
    let (buffer_bytes, buffers) = if options.inc {
        (INCREMENTAL_BUFFER_BYTES, INCREMENTAL_BUFFERS)
    } else {
        (CLASSIC_BUFFER_BYTES, CLASSIC_BUFFERS)
    };
    let buffer_bytes = options.common.buffer_bytes_or(buffer_bytes);
    let buffers = options.buffers.unwrap_or(buffers);
    let pool = Pool::register(&submitter, buffers, buffer_bytes, options.inc)
        .map_err(|error| peer_common::context("cannot register the buffer ring", error))?;
    // Never dropped: when the loop fails, the kernel may still read from what the server owns.
    let mut server = ManuallyDrop::new(Server::new(
        submitter,
        submissions,
        pool,
        listener.as_raw_fd(),
        options.split,
    ));
    peer_common::announce(NAME, &listener)?;
    server.run(&mut completions)
}

fn set_up_ring() -> io::Result<IoUring> {
    IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_no_sqarray()
        .setup_submit_all()
        .setup_cqsize(COMPLETION_ENTRIES)
        .build(SUBMISSION_ENTRIES)
}

fn power_of_two(text: &str) -> Result<u16, String> {
    match text.parse::<u16>() {
        Ok(count) if count.is_power_of_two() => Ok(count),
        _ => Err("must be a power of two, at most 32768".to_owned()),
    }
}
