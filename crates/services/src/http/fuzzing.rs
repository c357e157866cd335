//! Entry points for the fuzz targets of `fuzz/`. Not part of the interface.

pub use super::access_log::{Logged, log_line};
