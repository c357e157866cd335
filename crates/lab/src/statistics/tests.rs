//! Figures against independent computations; [`super::simulations`] has the shares.

use super::*;

// Computed with scipy 1.17.1 and numpy 2.4.6, x = log(ratios), n = len(x):
//   exp(mean(x))
//   a = norm.cdf(-sqrt(n/(n-1)) * t.ppf(.975, n-1))
//   exp(bootstrap((x,), mean, confidence_level=1-2*a, n_resamples=1_000_000,
//                 method='percentile', random_state=default_rng(1)).confidence_interval)
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
        low: 1.1985122238742918,
        high: 1.2721534222792943,
        p_value: 0.0078125,
        detectable_percent: 4.266304077808414,
    },
    Reference {
        ratios: &[1.02, 0.97, 1.05, 0.99, 0.96, 1.03, 1.01, 0.98, 1.04],
        ratio: 1.005100562979071,
        low: 0.9808639243507498,
        high: 1.029653680198365,
        p_value: 0.6796875,
        detectable_percent: 3.4584383957050586,
    },
    Reference {
        ratios: &[1.01, 1.03, 0.995, 1.04, 1.02, 1.05, 0.99, 1.03],
        ratio: 1.020433278847087,
        low: 1.0029743879981832,
        high: 1.0374305145540912,
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
        // Two random resamplings differ by their sampling error, here under 0.2 %.
        assert!(close(found.low, *low, 0.002) && close(found.high, *high, 0.002), "{found:?}");
    }
}

#[test]
fn quantiles_are_those_of_the_published_tables() {
    // NIST/SEMATECH e-Handbook of Statistical Methods, table 1.3.6.7.2.
    for (freedom, upper) in [(7, 2.365), (10, 2.228), (30, 2.042)] {
        assert!((student_quantile(freedom, 0.975) - upper).abs() < 5e-4);
    }
    // With many pairs nothing is left to expand.
    assert!((expanded_tail(100_000, CONFIDENCE) - 0.025).abs() < 1e-4);
}

#[test]
fn the_same_seed_gives_the_same_interval() {
    let ratios = [1.1, 1.2, 1.15, 1.3, 1.05, 1.22, 1.18, 1.09];
    assert_eq!(interval(&ratios, 9), interval(&ratios, 9));
    assert_ne!(interval(&ratios, 9).unwrap().low, interval(&ratios, 10).unwrap().low);
}

#[test]
fn what_cannot_be_judged_is_not() {
    assert_eq!(interval(&[1.1; 4], 1), None);
    assert_eq!(interval(&[1.0, 1.1, f64::NAN, 1.0, 1.0], 1), None);
    assert_eq!(interval(&[1.0, 1.1, 0.0, 1.0, 1.0], 1), None);
    let equal = interval(&[1.1; 8], 1).unwrap();
    assert!((equal.low - 1.1).abs() < 1e-12 && (equal.high - 1.1).abs() < 1e-12);
    assert!(equal.shows_a_difference());
    let one = interval(&[1.0; 8], 1).unwrap();
    assert!(!one.shows_a_difference() && one.p_value == 1.0);
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
