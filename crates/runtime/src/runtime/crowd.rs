//! Gives memory back to the system when a crowd has gone.
//!
//! The C library keeps what is freed for the next time, unless it lies at the end of the heap. After
//! thousands of connections whose peers were slow that can be hundreds of megabytes of whole pages.

use std::cell::Cell;

/// Slots in use that make a crowd.
const CROWD: usize = 64;

/// The share of a crowd that may still be there when it counts as gone.
const REST: usize = 8;

/// Watches how many slots are in use.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    /// The most since one was gone.
    most: Cell<usize>,
}

impl Crowd {
    /// Notes how many there are. True if that means that a crowd has gone, once for each time
    /// that their number falls to an eighth.
    pub(super) fn has_gone(&self, now: usize) -> bool {
        let most = self.most.get().max(now);
        let gone = most >= CROWD && now <= most / REST;
        self.most.set(if gone { now } else { most });
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_goes_once_for_each_time_that_it_falls_to_an_eighth() {
        let crowd = Crowd::default();
        let gone_at = |numbers: &[usize]| -> Vec<usize> {
            numbers.iter().copied().filter(|now| crowd.has_gone(*now)).collect()
        };
        assert_eq!(gone_at(&[0, 63, 0, 60, 0]), [0; 0], "too few for a crowd");
        assert_eq!(gone_at(&[10, 4000, 600, 500, 400, 62, 61, 0]), [500, 62]);
        assert_eq!(gone_at(&[300, 38, 37, 300, 37]), [37, 37]);
    }
}
