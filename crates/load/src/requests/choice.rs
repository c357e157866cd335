//! Which of several URLs a request is for: by weight, and the same in every run with the same seed.

#[derive(Debug)]
pub(crate) struct Choice {
    /// Cumulative sums of the weights.
    sums: Vec<u64>,
    seed: u64,
}

impl Choice {
    /// Weights must be from 1 to 2^32 - 1; at least one is required.
    pub(crate) fn new(weights: impl IntoIterator<Item = u32>, seed: u64) -> Choice {
        let sum = |sum: &mut u64, weight: u32| {
            *sum += u64::from(weight);
            Some(*sum)
        };
        Choice { sums: weights.into_iter().scan(0, sum).collect(), seed }
    }

    /// The URL of request `sequence` of `connection`, both from 0.
    pub(crate) fn pick(&self, connection: u64, sequence: u64) -> u32 {
        let (Some(total), true) = (self.sums.last(), self.sums.len() > 1) else { return 0 };
        let random = mix(mix(mix(self.seed).wrapping_add(connection)).wrapping_add(sequence));
        // The high half of the product is `random` scaled to the total, without a division.
        let point = (u128::from(random) * u128::from(*total)) >> 64;
        self.sums.partition_point(|sum| u128::from(*sum) <= point) as u32
    }
}

/// Spreads neighbouring numbers over all 64 bits (one step of the SplitMix64 generator).
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
