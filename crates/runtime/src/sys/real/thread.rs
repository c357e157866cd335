//! Starting threads and waiting for them, by the standard library.

pub(crate) use std::thread::{Builder, JoinHandle, scope, sleep};
