//! Starting threads and waiting for them, as the standard library does it.

pub(crate) use std::thread::{Builder, JoinHandle, scope, sleep};
