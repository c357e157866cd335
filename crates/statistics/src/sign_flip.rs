//! The sign-flip test of a mean, and the interval of all means that it does not reject.
//!
//! If pairs scatter symmetrically around a shift, every assignment of signs to their distances from
//! it was equally likely (Fisher, Pitman). A shift is rejected if few assignments give a mean as far
//! out as the observed one. For a shift below the mean of all values, the assignment that turns the
//! values of a subset around gives a mean at least as far out exactly if the mean of that subset, or of
//! its complement, is not above the shift. So the shifts that are not rejected lie between two order
//! statistics of the means of subsets (J. A. Hartigan, Using Subsample Values as Typical Values, JASA
//! 64, 1969), and interval and p value cannot disagree.

use oorandom::Rand64;

/// Up to this many values all subsets are used: 32,767 and their complements.
const EXACT_VALUES: usize = 16;

/// With more values, this many subsets are drawn. With the observed assignment they are 20,000, so
/// that usual levels are whole numbers of them.
const DRAWN_SUBSETS: usize = 19_999;

/// Means that differ by rounding only are equal: relative to the largest value, and absolutely, as
/// values are logarithms of ratios.
const ROUNDING: [f64; 2] = [1e-12, 1e-14];

/// The means of subsets: of each subset and its complement the smaller one and the larger one.
#[derive(Debug, Clone)]
pub(super) struct SubsetMeans {
    mean: f64,
    smaller: Vec<f64>,
    larger: Vec<f64>,
}

impl SubsetMeans {
    /// Those of two or more finite values, as many as the level needs. The same seed gives the same subsets.
    pub(super) fn of(values: &[f64], level: f64, seed: u64) -> SubsetMeans {
        let total: f64 = values.iter().sum();
        let count = values.len();
        let largest = values.iter().fold(0.0_f64, |largest, value| largest.max(value.abs()));
        let rounding = (largest * ROUNDING[0]).max(ROUNDING[1]);
        let clean = |mean: f64| if mean.abs() <= rounding { 0.0 } else { mean };
        let (mut smaller, mut larger) = (Vec::new(), Vec::new());
        let mut add = |sum: f64, chosen: usize| {
            // The observed assignment again: as far out as itself, for any shift.
            let mut pair = [f64::NEG_INFINITY, f64::INFINITY];
            if chosen > 0 && chosen < count {
                let own = clean(sum / chosen as f64);
                let other = clean((total - sum) / (count - chosen) as f64);
                pair = [own.min(other), own.max(other)];
            }
            smaller.push(pair[0]);
            larger.push(pair[1]);
        };
        if count <= EXACT_VALUES {
            // The last value is in no subset: it is in all complements.
            let mut sums = vec![0.0; 1 << (count - 1)];
            for set in 1..sums.len() {
                let first = set.trailing_zeros() as usize;
                sums[set] = sums[set & (set - 1)] + values[first];
                add(sums[set], set.count_ones() as usize);
            }
        } else {
            let mut random = Rand64::new(u128::from(seed));
            for _ in 0..DRAWN_SUBSETS.max((1.0 / level).ceil().min(1e6) as usize) {
                let (sum, chosen) = drawn(values, &mut random);
                add(sum, chosen);
            }
        }
        SubsetMeans { mean: clean(total / count as f64), smaller, larger }
    }

    /// Assignments of signs, each with its mirror image, the observed one included.
    fn assignments(&self) -> usize {
        self.smaller.len() + 1
    }

    pub(super) fn mean(&self) -> f64 {
        self.mean
    }

    /// The two-sided p value of a shift.
    #[cfg(test)]
    fn p_value(&self, shift: f64) -> f64 {
        let far = match self.mean {
            mean if shift < mean => self.smaller.iter().filter(|it| **it <= shift).count(),
            mean if shift > mean => self.larger.iter().filter(|it| **it >= shift).count(),
            _ => return 1.0,
        };
        (far + 1) as f64 / self.assignments() as f64
    }

    /// The shifts whose p value is above `level`, from the lowest to the highest; none if no shift
    /// has one so small.
    pub(super) fn interval(&self, level: f64) -> Option<[f64; 2]> {
        let assignments = self.assignments() as f64;
        // By the division of a p value, because the product may round to the other side of the level.
        let rejected = |rank: &usize| *rank as f64 / assignments <= level;
        let rank = (1..=self.assignments()).take_while(rejected).count();
        if rank == 0 || rank > self.smaller.len() {
            return None;
        }
        let (mut smaller, mut larger) = (self.smaller.clone(), self.larger.clone());
        let (_, low, _) = smaller.select_nth_unstable_by(rank - 1, f64::total_cmp);
        let (_, high, _) = larger.select_nth_unstable_by(rank - 1, |a, b| b.total_cmp(a));
        let is_bounded = low.is_finite() && high.is_finite();
        is_bounded.then_some([*low, *high])
    }
}

/// The sum of a random subset, and how many values it has.
fn drawn(values: &[f64], random: &mut Rand64) -> (f64, usize) {
    let (mut sum, mut chosen) = (0.0, 0);
    for part in values.chunks(64) {
        let bits = random.rand_u64();
        for (bit, value) in part.iter().enumerate() {
            if bits >> bit & 1 == 1 {
                sum += value;
                chosen += 1;
            }
        }
    }
    (sum, chosen)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// By its definition: all assignments of signs to the distances from the shift.
    fn by_definition(values: &[f64], shift: f64) -> f64 {
        let distances: Vec<f64> = values.iter().map(|value| value - shift).collect();
        let observed = distances.iter().sum::<f64>().abs();
        let far = (0_u32..1 << values.len()).filter(|signs| {
            let signed = |(bit, it): (usize, &f64)| if signs >> bit & 1 == 1 { -it } else { *it };
            let sum: f64 = distances.iter().enumerate().map(signed).sum();
            sum.abs() >= observed - 1e-9
        });
        far.count() as f64 / f64::from(1_u32 << values.len())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn p_values_are_those_of_the_definition(
            values in prop::collection::vec(-1.0..1.0_f64, 2..9),
            shift in -1.0..1.0_f64,
        ) {
            let means = SubsetMeans::of(&values, 0.05, 1);
            for shift in [shift, 0.0] {
                let (found, expected) = (means.p_value(shift), by_definition(&values, shift));
                prop_assert!((found - expected).abs() < 1e-12, "{found} {expected}");
            }
        }

        /// Ties included: values that are multiples of a hundredth often have equal means.
        #[test]
        fn an_interval_excludes_what_the_test_rejects_and_nothing_else(
            hundredths in prop::collection::vec(-20..20_i32, 2..22),
            level in prop::sample::select(vec![0.05, 0.1, 0.05 / 6.0, 0.01, 1.0 - 0.95]),
        ) {
            let values: Vec<f64> = hundredths.iter().map(|it| f64::from(*it) / 100.0).collect();
            let means = SubsetMeans::of(&values, 0.05, 7);
            let interval = means.interval(level);
            for shift in [0.0, -0.03, 0.03, 0.001] {
                let excluded = interval.is_some_and(|[low, high]| shift < low || shift > high);
                prop_assert_eq!(excluded, means.p_value(shift) <= level, "{:?} {}", interval, shift);
            }
        }
    }

    /// A subset without a value, or of all of them, has no mean, and is the observed assignment again.
    #[test]
    fn a_drawn_subset_may_be_the_observed_assignment() {
        let values: Vec<f64> = (1..=17).map(|at| f64::from(at) / 100.0).collect();
        let mut seen = [0, 0];
        for seed in 0..32 {
            let mut random = Rand64::new(u128::from(seed));
            let chosen: Vec<usize> =
                (0..DRAWN_SUBSETS).map(|_| drawn(&values, &mut random).1).collect();
            let [none, all] = [0, 17].map(|count| chosen.iter().filter(|it| **it == count).count());
            let means = SubsetMeans::of(&values, 0.05, seed);
            let count = |means: &[f64], mean| means.iter().filter(|it| **it == mean).count();
            assert_eq!(count(&means.smaller, f64::NEG_INFINITY), none + all);
            assert_eq!(count(&means.larger, f64::INFINITY), none + all);
            seen = [seen[0] + none, seen[1] + all];
        }
        assert!(seen.iter().all(|times| *times > 0), "{seen:?}");
    }

    #[test]
    fn drawn_subsets_come_close_to_all_of_them() {
        let values: Vec<f64> = (0..16).map(|at| f64::from(at * 37 % 16) / 100.0 - 0.06).collect();
        let exact = SubsetMeans::of(&values, 0.05, 1);
        let more: Vec<f64> = values.iter().chain(&[0.015]).copied().collect();
        let [found, expected] =
            [SubsetMeans::of(&more, 0.05, 1), exact].map(|it| it.interval(0.05).unwrap());
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 0.003, "{found} {expected}");
        }
    }
}
