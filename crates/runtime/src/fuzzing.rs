//! Entry points for the fuzz targets of `fuzz/`. Not part of the interface.

pub use crate::driver::ancillary::fuzzing::check_ancillary;
