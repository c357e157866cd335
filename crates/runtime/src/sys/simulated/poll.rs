//! Waiting: epoll sets of the kernel or of a simulated machine.

use super::{ask, ask_machine, own, real};
use crate::sys::faults::calls;
use crate::sys::machine::world;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

pub(crate) use super::real::poll::Event;

/// An epoll set. On a thread in a world it belongs to the machine.
pub(crate) enum Epoll {
    Real(real::poll::Epoll),
    Simulated(OwnedFd),
}

impl Epoll {
    pub(crate) fn new() -> io::Result<Epoll> {
        match world::machine() {
            Some(machine) => {
                let fd = ask_machine(Some(machine), |kernel| kernel.epoll_create())?;
                Ok(Epoll::Simulated(own(fd)))
            }
            None => {
                let epoll = real::poll::Epoll::new()?;
                calls::install(epoll.as_raw_fd());
                Ok(Epoll::Real(epoll))
            }
        }
    }

    pub(crate) fn add(&self, target: RawFd, interest: i32, data: u64) -> io::Result<()> {
        match self {
            Epoll::Real(epoll) => {
                calls::watched(target, interest, data);
                epoll.add(target, interest, data)
            }
            Epoll::Simulated(set) => control(set, target, interest, data, false),
        }
    }

    pub(crate) fn modify(&self, target: RawFd, interest: i32, data: u64) -> io::Result<()> {
        match self {
            Epoll::Real(epoll) => {
                calls::watched(target, interest, data);
                epoll.modify(target, interest, data)
            }
            Epoll::Simulated(set) => control(set, target, interest, data, true),
        }
    }

    pub(crate) fn remove(&self, target: RawFd) -> io::Result<()> {
        match self {
            Epoll::Real(epoll) => epoll.remove(target),
            // Descriptors of a simulated machine are not duplicated: closing it is enough.
            Epoll::Simulated(_) => Ok(()),
        }
    }

    pub(crate) fn wait(
        &self,
        events: &mut Vec<Event>,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        match self {
            Epoll::Real(epoll) => {
                epoll.wait(events, calls::patience(timeout))?;
                calls::reported(events);
                Ok(())
            }
            Epoll::Simulated(set) => wait(set.as_raw_fd(), events, timeout),
        }
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        if let Epoll::Real(epoll) = self {
            calls::remove(epoll.as_raw_fd());
        }
    }
}

fn control(set: &OwnedFd, target: RawFd, interest: i32, data: u64, known: bool) -> io::Result<()> {
    let asked = ask(set.as_raw_fd(), |kernel, set| {
        kernel.epoll_control(set, target, interest as u32, data, known)
    });
    asked.unwrap_or_else(|| Err(io::Error::from_raw_os_error(libc::EBADF)))
}

fn wait(set: RawFd, events: &mut Vec<Event>, timeout: Option<Duration>) -> io::Result<()> {
    events.clear();
    let room = events.capacity();
    world::rest(set, timeout);
    match ask(set, |kernel, set| kernel.epoll_reports(set, room)) {
        Some(Ok(reports)) => {
            let event = |report: crate::sys::machine::poll::Report| Event {
                events: report.bits,
                u64: report.data,
            };
            events.extend(reports.into_iter().map(event));
            Ok(())
        }
        Some(Err(error)) if error.raw_os_error() == Some(libc::EINTR) => Ok(()),
        Some(Err(error)) => Err(error),
        None => Err(io::Error::from_raw_os_error(libc::EBADF)),
    }
}

/// Like the real one; an eventfd of a simulated machine is awaited in its time.
pub(crate) fn wait_readable(fd: RawFd, timeout: Duration) -> io::Result<bool> {
    match world::wait_readable(fd, timeout) {
        Some(readable) => Ok(readable),
        None => real::poll::wait_readable(fd, timeout),
    }
}
