//! The locks and atomics through which the threads of a program wake each other.
//!
//! Model checks (`--cfg loom`, see CONTRIBUTING.md) put those of loom in their place, which try all
//! orders in which threads can meet. Whatever a wake or a shutdown goes through has to come from here.

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
