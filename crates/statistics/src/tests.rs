//! Figures against independent computations; [`super::simulations`] has the shares.

use super::*;

// Computed with Python's itertools and fractions, and scipy 1.17.1, x = log(ratios), n = len(x):
//   exp(mean(x))
//   the means of all subsets of x but the empty one, sorted; m = floor(0.05 * 2**n / 2):
//   exp of the m-th smallest and of the m-th largest
//   permutation_test((x,), mean, permutation_type='samples', n_resamples=inf).pvalue
//   expm1((t.ppf(.975, n-1) + t.ppf(.8, n-1)) * x.std(ddof=1) / sqrt(n)) * 100
struct Reference {
    ratios: &'static [f64],
    ratio: f64,
    low: f64,
    high: f64,
    p_value: f64,
    detectable_percent: f64,
}

const REFERENCES: &[Reference] = &[
    Reference {
        ratios: &[1.21, 1.25, 1.19, 1.28, 1.23, 1.17, 1.26, 1.30],
        ratio: 1.235540961832966,
        low: 1.196408008726994,
        high: 1.2765008597719816,
        p_value: 0.0078125,
        detectable_percent: 4.266304077808414,
    },
    Reference {
        ratios: &[1.02, 0.97, 1.05, 0.99, 0.96, 1.03, 1.01, 0.98, 1.04],
        ratio: 1.005100562979071,
        low: 0.9798229424426945,
        high: 1.0323936133270315,
        p_value: 0.6796875,
        detectable_percent: 3.4584383957050586,
    },
    Reference {
        ratios: &[1.01, 1.03, 0.995, 1.04, 1.02, 1.05, 0.99, 1.03],
        ratio: 1.020433278847087,
        low: 1.0015811652653883,
        high: 1.0399519219656264,
        p_value: 0.046875,
        detectable_percent: 2.419461747363822,
    },
];

#[test]
fn figures_agree_with_an_independent_computation() {
    for Reference { ratios, ratio, low, high, p_value, detectable_percent } in REFERENCES {
        let found = interval(ratios, 1).unwrap();
        let close = |a: f64, b: f64, tolerance: f64| (a / b - 1.0).abs() < tolerance;
        assert!(close(found.ratio, *ratio, 1e-12), "{found:?}");
        assert!(close(found.p_value, *p_value, 1e-12), "{found:?}");
        assert!(close(found.detectable_percent, *detectable_percent, 1e-6), "{found:?}");
        let ends = found.ends.unwrap();
        assert!(close(ends.low, *low, 1e-12) && close(ends.high, *high, 1e-12), "{found:?}");
        assert_eq!(ends.excludes_one(), found.shows_a_difference());
    }
}

#[test]
fn quantiles_are_those_of_the_published_tables() {
    // NIST/SEMATECH e-Handbook of Statistical Methods, table 1.3.6.7.2.
    for (freedom, upper) in [(7, 2.365), (10, 2.228), (30, 2.042)] {
        assert!((student_quantile(freedom, 0.975) - upper).abs() < 5e-4);
    }
}

#[test]
fn the_seed_matters_only_where_subsets_are_drawn() {
    let ratios: Vec<f64> = (0..17).map(|at| 1.0 + f64::from(at * 5 % 17) / 50.0).collect();
    assert_eq!(interval(&ratios, 9), interval(&ratios, 9));
    assert_ne!(interval(&ratios, 9), interval(&ratios, 10));
    assert_eq!(interval(&ratios[..16], 9), interval(&ratios[..16], 10));
}

#[test]
fn what_cannot_be_judged_is_not() {
    assert_eq!(interval(&[1.1], 1), None);
    assert_eq!(interval(&[1.0, 1.1, f64::NAN, 1.0, 1.0], 1), None);
    assert_eq!(interval(&[1.0, 1.1, 0.0, 1.0, 1.0], 1), None);
    // Five pairs have a ratio, but never an interval.
    let five = interval(&[1.1; 5], 1).unwrap();
    assert_eq!((five.ends, five.width_percent(), five.p_value), (None, None, 2.0 / 32.0));
    let equal = interval(&[1.1; 8], 1).unwrap();
    let ends = equal.ends.unwrap();
    assert!((ends.low - 1.1).abs() < 1e-12 && (ends.high - 1.1).abs() < 1e-12);
    assert!(equal.shows_a_difference());
    let one = interval(&[1.0; 8], 1).unwrap();
    assert!(!one.shows_a_difference() && one.p_value == 1.0);
}

#[test]
fn equivalence_is_two_one_sided_tests() {
    let close = [1.01, 0.995, 1.004, 0.99, 1.008, 0.998, 1.002, 0.993];
    let found = equivalence(&close, 1, CONFIDENCE, 3.0).unwrap();
    // All pairs are within the bound, so both tests have the smallest p value there is.
    assert_eq!(found.p_value, 1.0 / 256.0);
    let ends = found.ends.unwrap();
    assert!(1.0 / 1.03 < ends.low && ends.high < 1.03, "{found:?}");
    assert!((found.confidence - 0.9).abs() < 1e-12);
    // On average beyond the bound.
    let beyond = equivalence(&close.map(|it| it * 1.05), 1, CONFIDENCE, 3.0).unwrap();
    assert!(beyond.p_value > 0.9, "{beyond:?}");
    // A difference can be significant and too small to matter.
    let small = close.map(|it| it * 1.012);
    assert!(interval(&small, 1).unwrap().shows_a_difference());
    assert!(equivalence(&small, 1, CONFIDENCE, 3.0).unwrap().p_value <= 0.05);
    // And the interval lies within the bounds exactly if both tests reject.
    for shift in [0.97, 0.98, 0.985, 1.0, 1.015, 1.02, 1.03] {
        let found = equivalence(&close.map(|it| it * shift), 1, CONFIDENCE, 3.0).unwrap();
        let ends = found.ends.unwrap();
        let within = 1.0 / 1.03 < ends.low && ends.high < 1.03;
        assert_eq!(within, found.p_value <= 1.0 - CONFIDENCE, "{found:?}");
    }
}

#[test]
fn medians() {
    assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
    assert_eq!(median([4.0, 1.0, 2.0, 3.0]), Some(2.5));
    assert_eq!(median([f64::NAN]), None);
}

#[test]
fn the_sign_test_is_exact() {
    // By hand: of 2^n outcomes, those at least as unequal, on both sides.
    for ((one, other), expected) in [
        ((0, 0), 1.0),
        ((5, 0), 2.0 / 32.0),
        ((0, 6), 2.0 / 64.0),
        ((8, 0), 2.0 / 256.0),
        ((7, 1), 2.0 * 9.0 / 256.0),
        ((4, 4), 1.0),
    ] {
        assert!((sign_test(one, other) - expected).abs() < 1e-12, "{one} to {other}");
    }
}

/// The share of all assignments of signs with a mean as far from the shift as the observed one, on the
/// same side of it.
fn one_sided_by_definition(ratios: &[f64], shift: f64) -> f64 {
    let distances: Vec<f64> = ratios.iter().map(|ratio| ratio.ln() - shift).collect();
    let observed: f64 = distances.iter().sum();
    let far = (0_u32..1 << distances.len()).filter(|signs| {
        let signed = |(bit, it): (usize, &f64)| if signs >> bit & 1 == 1 { -it } else { *it };
        let sum: f64 = distances.iter().enumerate().map(signed).sum();
        sum * observed.signum() >= observed.abs() - 1e-12
    });
    far.count() as f64 / f64::from(1_u32 << distances.len())
}

#[test]
fn the_p_value_of_equivalence_is_the_larger_of_both_sides() {
    let scattered = [1.04, 0.97, 1.05, 0.99, 0.95, 1.03, 1.01, 0.98];
    let bound = 1.03_f64.ln();
    for shift in [0.985, 0.99, 1.0, 1.01, 1.02] {
        let ratios = scattered.map(|it| it * shift);
        let found = equivalence(&ratios, 1, CONFIDENCE, 3.0).unwrap();
        let [below, above] = [-bound, bound].map(|it| one_sided_by_definition(&ratios, it));
        assert!((found.p_value - below.max(above)).abs() < 1e-12, "{found:?} {below} {above}");
    }
    // Beyond either bound: more than half of the assignments are as far out.
    for shift in [0.96, 1.03] {
        let ratios = scattered.map(|it| it * shift);
        let found = equivalence(&ratios, 1, CONFIDENCE, 3.0).unwrap();
        let nearer = one_sided_by_definition(&ratios, if shift > 1.0 { bound } else { -bound });
        assert!((found.p_value - (1.0 - nearer)).abs() < 1e-12, "{found:?} {nearer}");
        assert!(found.p_value > 0.5);
    }
}

#[test]
fn an_interval_has_an_inverse_and_a_width() {
    assert_eq!(Ends { low: 0.5, high: 4.0 }.inverse(), Ends { low: 0.25, high: 2.0 });
    for (low, high, excludes) in [
        (1.0, 1.2, false),
        (0.8, 1.0, false),
        (0.9, 1.1, false),
        (1.1, 1.2, true),
        (0.8, 0.9, true),
    ] {
        assert_eq!(Ends { low, high }.excludes_one(), excludes, "{low} to {high}");
    }
    let found =
        Interval { ends: Some(Ends { low: 0.8, high: 1.0 }), ..interval(&[1.0; 8], 1).unwrap() };
    assert!((found.width_percent().unwrap() - 25.0).abs() < 1e-9);
}

#[test]
fn occasions_are_told_apart_and_count_from_five_ratios_on() {
    let mixed = [(2, 1.0), (0, 2.0), (2, 3.0)];
    assert_eq!(by_occasion(&mixed), [(0, vec![2.0]), (2, vec![1.0, 3.0])]);
    let of = |occasions: &[(usize, f64, usize)]| -> Vec<(usize, f64)> {
        let ratios = |(occasion, ratio, count): &(usize, f64, usize)| {
            let scattered = [0.99, 1.01, 1.0, 0.98, 1.0 / 0.98].into_iter().take(*count);
            scattered.map(|it| (*occasion, it * ratio)).collect::<Vec<_>>()
        };
        occasions.iter().flat_map(ratios).collect()
    };
    // An occasion with four does not count as one.
    let one = of(&[(0, 1.0, 5), (1, 2.0, 4)]);
    let together: Vec<f64> = one.iter().map(|(_, ratio)| *ratio).collect();
    assert_eq!(interval_of(&one, 1, 0.9), interval_at(&together, 1, 0.9));
    assert_eq!(equivalence_of(&one, 1, 0.9, 3.0), equivalence(&together, 1, 0.9, 3.0));
    assert_eq!(spread_of(&one), None);
    let two = of(&[(0, 1.0, 5), (1, 1.1, 5), (2, 2.0, 4)]);
    let spread = spread_of(&two).unwrap();
    assert!((spread.percent - 10.0).abs() < 1e-9 && spread.occasions == 2, "{spread:?}");
    assert_eq!(interval_of(&two, 1, 0.9).unwrap().pairs, 10);
    assert_eq!(equivalence_of(&two, 1, 0.9, 3.0), None);
    let three = of(&[(0, 1.0, 5), (1, 1.1, 5), (2, 1.21, 5)]);
    let mean = [1.0, 1.1, 1.21].map(|ratio: f64| ratio.ln()).iter().sum::<f64>() / 3.0
        + (0.99_f64 * 1.01).ln() / 5.0;
    let found = interval_of(&three, 1, 0.9).unwrap();
    assert!((found.ratio.ln() - mean).abs() < 1e-12 && found.ends.is_some(), "{found:?}");
    assert!(equivalence_of(&three, 1, 0.9, 3.0).is_some());
}

#[test]
fn chances_of_false_claims_are_binomial() {
    for ((least, of, chance), expected) in [
        ((0, 2, 0.5), 1.0),
        ((1, 2, 0.5), 0.75),
        ((2, 2, 0.5), 0.25),
        ((3, 2, 0.5), 0.0),
        ((1, 3, 0.1), 1.0 - 0.9_f64.powi(3)),
        // No probability.
        ((1, 2, 2.0), 1.0),
    ] {
        assert!((at_least(least, of, chance) - expected).abs() < 1e-12, "{least} of {of}");
    }
}

#[test]
fn scatter_is_that_of_the_logarithms() {
    let found = scatter(&[0.1_f64.exp(), (-0.1_f64).exp()]).unwrap();
    assert!((found - 0.02_f64.sqrt()).abs() < 1e-12, "{found}");
    assert_eq!(scatter(&[1.0]), None);
}
