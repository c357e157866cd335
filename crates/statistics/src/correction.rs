//! Many comparisons at once: at 5 % each, one of twenty without a difference would show one.

use super::CONFIDENCE;

/// What p values are multiplied by if pairs were added until the interval was narrow. It is narrow
/// sooner when pairs happen to scatter little, which makes the test claim too much: up to 6.8 % in
/// simulation, where 5 % is promised.
pub const STOP_RULE_PENALTY: f64 = 1.4;

/// The q values of Benjamini and Hochberg, in the order of the p values: to claim every comparison
/// whose q value is at most 5 % keeps the expected share of false claims among the claims at 5 %
/// (Y. Benjamini, Y. Hochberg, Controlling the False Discovery Rate, JRSS B 57(1), 1995).
pub fn benjamini_hochberg(p_values: &[f64]) -> Vec<f64> {
    let mut by_size: Vec<usize> = (0..p_values.len()).collect();
    by_size.sort_by(|a, b| p_values[*a].total_cmp(&p_values[*b]));
    let mut q_values = vec![1.0; p_values.len()];
    let mut least = 1.0_f64;
    for (below, &position) in by_size.iter().enumerate().rev() {
        least = least.min(p_values[position] * p_values.len() as f64 / (below + 1) as f64);
        q_values[position] = least;
    }
    q_values
}

/// The p value that is small enough for one of `comparisons`, if `claimed` of them are claimed and
/// this one is among them.
pub fn level_for(claimed: usize, comparisons: usize) -> f64 {
    (1.0 - CONFIDENCE) * claimed.max(1) as f64 / comparisons.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed with scipy 1.17.1: `scipy.stats.false_discovery_control(p, method="bh")`.
    #[test]
    fn q_values_agree_with_an_independent_computation() {
        for (p_values, expected) in REFERENCES {
            let found = benjamini_hochberg(p_values);
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(*expected) {
                assert!((found - expected).abs() < 1e-12, "{found} {expected}");
            }
        }
    }

    const REFERENCES: &[(&[f64], &[f64])] = &[
        (&[0.03], &[0.03]),
        (
            &[0.001, 0.008, 0.039, 0.041, 0.042, 0.06, 0.074, 0.205],
            &[
                0.008,
                0.032,
                0.06720000000000001,
                0.06720000000000001,
                0.06720000000000001,
                0.07999999999999999,
                0.08457142857142856,
                0.205,
            ],
        ),
        (
            &[0.9, 0.0078125, 0.5, 0.015625, 1.0, 0.0078125, 0.3],
            &[1.0, 0.02734375, 0.7, 0.036458333333333336, 1.0, 0.02734375, 0.525],
        ),
        (&[0.04, 0.04, 0.04], &[0.04, 0.04, 0.04]),
    ];

    #[test]
    fn the_level_is_that_at_which_one_more_would_be_claimed() {
        let mut p_values = [0.001, 0.002, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9];
        let claimed =
            |p_values: &[f64]| benjamini_hochberg(p_values).iter().filter(|q| **q <= 0.05).count();
        assert_eq!(claimed(&p_values), 2);
        let level = level_for(3, p_values.len());
        p_values[2] = level * 1.001;
        assert_eq!(claimed(&p_values), 2);
        p_values[2] = level * 0.999;
        assert_eq!(claimed(&p_values), 3);
    }
}
