//! What the fuzz targets of `fuzz/` reach of the service. No part of the interface.

pub use super::access_log::fuzzing::{Logged, log_line};
