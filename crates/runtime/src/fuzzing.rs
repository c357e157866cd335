//! What the fuzz targets of `fuzz/` reach of the runtime. No part of the interface.

pub use crate::driver::ancillary::fuzzing::check_ancillary;
