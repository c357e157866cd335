//! The locks, atomics and eventfds through which the threads of a program wake each other.
//!
//! Model checks (`--cfg loom`, see CONTRIBUTING.md) replace them by those of loom, which try all
//! orders in which threads can meet. All state of a wake or a shutdown must use these types.

#[cfg(all(test, loom))]
pub(crate) use crate::runtime::model::EventFd;
#[cfg(not(all(test, loom)))]
pub(crate) use crate::sys::EventFd;
#[cfg(all(test, loom))]
pub(crate) use loom::sync::{
    Mutex, MutexGuard, RwLock,
    atomic::{AtomicBool, AtomicU8},
};
#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::{
    Mutex, MutexGuard, RwLock,
    atomic::{AtomicBool, AtomicU8},
};
