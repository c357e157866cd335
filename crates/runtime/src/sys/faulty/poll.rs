//! Waits that report events later and reordered.

use super::{calls, real};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

pub(crate) use super::real::poll::*;

/// An epoll set.
pub(crate) struct Epoll(real::poll::Epoll);

impl Epoll {
    pub(crate) fn new() -> io::Result<Epoll> {
        let epoll = real::poll::Epoll::new()?;
        calls::install(epoll.as_raw_fd());
        Ok(Epoll(epoll))
    }

    pub(crate) fn add(&self, target: RawFd, interest: i32, data: u64) -> io::Result<()> {
        calls::watched(target, interest, data);
        self.0.add(target, interest, data)
    }

    pub(crate) fn modify(&self, target: RawFd, interest: i32, data: u64) -> io::Result<()> {
        calls::watched(target, interest, data);
        self.0.modify(target, interest, data)
    }

    pub(crate) fn wait(
        &self,
        events: &mut Vec<Event>,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        self.0.wait(events, calls::patience(timeout))?;
        calls::reported(events);
        Ok(())
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        calls::remove(self.0.as_raw_fd());
    }
}
