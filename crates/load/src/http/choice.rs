//! Which of several URLs a request is for: by weight, and the same in every run with the same seed.

/// A weighted choice among URLs.
#[derive(Debug)]
pub(super) struct Choice {
    /// Cumulative sums of the weights.
    sums: Vec<u64>,
    seed: u64,
}

impl Choice {
    /// Weights must be from 1 to 2^32 - 1; at least one is required.
    pub(super) fn new(weights: impl IntoIterator<Item = u32>, seed: u64) -> Choice {
        let sum = |sum: &mut u64, weight: u32| {
            *sum += u64::from(weight);
            Some(*sum)
        };
        Choice { sums: weights.into_iter().scan(0, sum).collect(), seed }
    }

    /// The URL of request `sequence` of `connection`, both from 0.
    pub(super) fn pick(&self, connection: u64, sequence: u64) -> u32 {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// How often each URL is picked by 100 connections with 1,000 requests each.
    fn counts(weights: &[u32], seed: u64) -> Vec<u64> {
        let choice = Choice::new(weights.iter().copied(), seed);
        let mut counts = vec![0; weights.len()];
        for request in 0..100_000 {
            counts[choice.pick(request % 100, request / 100) as usize] += 1;
        }
        counts
    }

    #[test]
    fn urls_are_picked_by_weight() {
        for seed in 0..20 {
            let weights = [1, 2, 5, 12];
            for (count, weight) in counts(&weights, seed).into_iter().zip(weights) {
                let share = f64::from(weight) / 20.0;
                let expected = 100_000.0 * share;
                // Six standard deviations of a binomial distribution.
                let spread = 6.0 * (expected * (1.0 - share)).sqrt();
                assert!((count as f64 - expected).abs() < spread, "{count} of weight {weight}");
            }
        }
        assert_eq!(counts(&[7], 3), [100_000]);
        let heaviest = counts(&[u32::MAX, u32::MAX], 1);
        assert!(heaviest.iter().all(|count| (48_000..52_000).contains(count)), "{heaviest:?}");
    }
}
