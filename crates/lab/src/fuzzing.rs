//! What the fuzz targets of `fuzz/` reach of the lab beside its interface. No part of it.

pub use crate::host::fuzzing::check_lines;
