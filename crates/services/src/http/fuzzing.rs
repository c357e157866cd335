//! Entry points for the fuzz targets of `fuzz/`. Not part of the interface.

pub use super::access_log::log_line;
