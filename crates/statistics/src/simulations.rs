//! By simulation: how often verdicts are false, and how often differences are found.
//!
//! Tests are bounded in time, so their samples are small. `docs/statistics.md` has tables of larger
//! ones, which those that are ignored print:
//! `cargo test -p twinring-statistics simulations::table -- --ignored --nocapture`

use oorandom::Rand64;

use super::*;

/// How the logarithms of ratios scatter around the true one.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Scatter {
    Normal,
    /// Student's t with 3 degrees of freedom.
    Heavy,
    /// One pair in ten is ten times as noisy.
    Outliers,
    /// The difference of two skewed times.
    Exponential,
    /// A slow walk on top of normal scatter: each pair is correlated with the one before (0.5).
    Drift,
    /// Skewed: a single exponential less its mean.
    OneSided,
    /// One pair in ten is five deviations too high, and never too low.
    OneSidedOutliers,
}

impl Scatter {
    /// Those for which the sign-flip test is exact.
    const SYMMETRIC: [Scatter; 4] =
        [Scatter::Normal, Scatter::Heavy, Scatter::Outliers, Scatter::Exponential];

    /// Those that break its assumption.
    const OTHERS: [Scatter; 3] = [Scatter::Drift, Scatter::OneSided, Scatter::OneSidedOutliers];

    /// A deviate that is about as wide as a standard normal one in its middle, with a mean of 0;
    /// `last` is the one before.
    fn draw(self, random: &mut Rand64, last: f64) -> f64 {
        match self {
            Scatter::Normal => normal(random),
            Scatter::Heavy => {
                let squares: f64 = (0..3).map(|_| normal(random).powi(2)).sum();
                normal(random) / (squares / 3.0).sqrt()
            }
            Scatter::Outliers => {
                let width = if random.rand_float() < 0.1 { 10.0 } else { 1.0 };
                width * normal(random)
            }
            Scatter::Exponential => exponential(random) - exponential(random),
            Scatter::Drift => 0.5 * last + 0.75_f64.sqrt() * normal(random),
            Scatter::OneSided => exponential(random) - 1.0,
            Scatter::OneSidedOutliers => {
                let outlier = if random.rand_float() < 0.1 { 5.0 } else { 0.0 };
                normal(random) + outlier - 0.5
            }
        }
    }
}

/// Normal deviates by Box and Muller, from the generator under test's own family but another
/// stream.
fn normal(random: &mut Rand64) -> f64 {
    let uniform = (1.0 - random.rand_float(), random.rand_float());
    (-2.0 * uniform.0.ln()).sqrt() * (std::f64::consts::TAU * uniform.1).cos()
}

fn exponential(random: &mut Rand64) -> f64 {
    -(1.0 - random.rand_float()).ln()
}

/// Pairs with this difference and deviation, in logarithms.
fn ratios(
    random: &mut Rand64,
    scatter: Scatter,
    pairs: usize,
    difference: f64,
    deviation: f64,
) -> Vec<f64> {
    // Drift is on its way already when the first pair is measured.
    let mut last = normal(random);
    let mut next = |_| {
        last = scatter.draw(random, last);
        (difference + deviation * last).exp()
    };
    (0..pairs).map(&mut next).collect()
}

/// The shares of experiments in which the interval holds the true ratio, a difference is claimed, and
/// equivalence within 3 % is claimed.
#[derive(Debug, Clone, Copy, Default)]
struct Frequencies {
    covered: f64,
    claimed: f64,
    equivalent: f64,
}

fn frequencies(
    experiments: u64,
    scatter: Scatter,
    pairs: usize,
    difference: f64,
    deviation: f64,
) -> Frequencies {
    let mut random = Rand64::new(42);
    let mut counts = [0_u64; 3];
    for seed in 0..experiments {
        let ratios = ratios(&mut random, scatter, pairs, difference, deviation);
        let interval = interval(&ratios, seed).unwrap();
        let ends = interval.ends.unwrap();
        let truth = difference.exp();
        let equivalence = equivalence(&ratios, seed, CONFIDENCE, 3.0).unwrap();
        let is = [
            (ends.low..=ends.high).contains(&truth),
            interval.shows_a_difference(),
            equivalence.p_value <= 1.0 - CONFIDENCE,
        ];
        // What the interval excludes is what the test rejects, every time.
        assert_eq!(ends.excludes_one(), is[1], "{interval:?}");
        counts.iter_mut().zip(is).for_each(|(count, is)| *count += u64::from(is));
    }
    let [covered, claimed, equivalent] = counts.map(|count| count as f64 / experiments as f64);
    Frequencies { covered, claimed, equivalent }
}

/// Deviation of the pairs in all simulations.
const DEVIATION: f64 = 0.03;

/// Upper end of what a true share of 5 % gives in `EXPERIMENTS` experiments: three standard errors.
fn at_most_5_percent(experiments: u64) -> f64 {
    0.05 + 3.0 * (0.05 * 0.95 / experiments as f64).sqrt()
}

#[test]
fn intervals_cover_and_equal_subjects_are_seldom_told_apart() {
    for (pairs, experiments) in [(6, 2000), (8, 2000), (12, 1000), (24, 60)] {
        let limit = at_most_5_percent(experiments);
        for scatter in Scatter::SYMMETRIC {
            let found = frequencies(experiments, scatter, pairs, 0.0, DEVIATION);
            assert!(found.claimed <= limit, "{scatter:?}, {pairs} pairs: {found:?}");
            assert!(found.covered >= 1.0 - limit, "{scatter:?}, {pairs} pairs: {found:?}");
        }
    }
}

/// The truth exactly at the bound is where false claims of equivalence are most frequent.
#[test]
fn what_differs_by_the_bound_is_seldom_called_equivalent() {
    let experiments = 2000;
    for scatter in Scatter::SYMMETRIC {
        let found = frequencies(experiments, scatter, 8, 0.03_f64.ln_1p(), 0.01);
        assert!(found.equivalent <= at_most_5_percent(experiments), "{scatter:?}: {found:?}");
    }
    // And what does not differ is called so most of the time, if pairs scatter little.
    assert!(frequencies(500, Scatter::Normal, 8, 0.0, 0.02).equivalent > 0.85);
}

#[test]
fn the_stated_difference_is_found_with_the_stated_power() {
    let difference = (detectable_percent(DEVIATION, 8, 0.05) / 100.0).ln_1p();
    let share = frequencies(2000, Scatter::Normal, 8, difference, DEVIATION).claimed;
    assert!((POWER - 0.05..=1.0).contains(&share), "found in {share} of the experiments");
}

#[test]
fn three_percent_are_found_with_the_pairs_that_they_are_said_to_take() {
    let pairs = required_pairs(DEVIATION, 3.0, 0.05).unwrap();
    let share = frequencies(2000, Scatter::Normal, pairs, 0.03_f64.ln_1p(), DEVIATION).claimed;
    assert!((POWER - 0.05..=POWER + 0.1).contains(&share), "{pairs} pairs: {share}");
}

/// An experiment of many cells, some of which have a difference.
#[derive(Debug, Clone, Copy)]
struct Family {
    cells: usize,
    /// Of these, how many have a difference.
    different: usize,
    /// How large it is, in deviations.
    deviations: f64,
    pairs: usize,
    scatter: Scatter,
    /// All subjects are compared with the same baseline, so that its noise is in every ratio.
    one_baseline: bool,
}

/// What came out, as means over experiments.
#[derive(Debug, Clone, Copy, Default)]
struct Shares {
    /// Experiments with a false claim.
    any_false: f64,
    /// False claims among the claims.
    false_discoveries: f64,
    /// Differences that were found.
    found: f64,
}

impl Family {
    fn run(self, random: &mut Rand64) -> Shares {
        let own = if self.one_baseline { DEVIATION / 2.0_f64.sqrt() } else { DEVIATION };
        let shared: Vec<f64> = (0..self.pairs)
            .map(|_| if self.one_baseline { own * self.scatter.draw(random, 0.0) } else { 0.0 })
            .collect();
        let p_values: Vec<f64> = (0..self.cells)
            .map(|cell| {
                let difference =
                    if cell < self.different { self.deviations * DEVIATION } else { 0.0 };
                let mut ratios = ratios(random, self.scatter, self.pairs, difference, own);
                for (ratio, shared) in ratios.iter_mut().zip(&shared) {
                    *ratio *= shared.exp();
                }
                interval(&ratios, cell as u64).unwrap().p_value
            })
            .collect();
        let q_values = benjamini_hochberg(&p_values);
        let claimed = |cells: &[f64]| cells.iter().filter(|q| **q <= 0.05).count() as f64;
        let (different, equal) = q_values.split_at(self.different);
        let (right, wrong) = (claimed(different), claimed(equal));
        Shares {
            any_false: f64::from(u8::from(wrong > 0.0)),
            false_discoveries: wrong / (right + wrong).max(1.0),
            found: right / self.different.max(1) as f64,
        }
    }

    fn means(self, experiments: u64) -> Shares {
        let mut random = Rand64::new(7);
        let mut sum = Shares::default();
        for _ in 0..experiments {
            let one = self.run(&mut random);
            sum.any_false += one.any_false;
            sum.false_discoveries += one.false_discoveries;
            sum.found += one.found;
        }
        let count = experiments as f64;
        Shares {
            any_false: sum.any_false / count,
            false_discoveries: sum.false_discoveries / count,
            found: sum.found / count,
        }
    }
}

const EQUAL: Family = Family {
    cells: 8,
    different: 0,
    deviations: 0.0,
    pairs: 10,
    scatter: Scatter::Normal,
    one_baseline: false,
};

#[test]
fn experiments_of_many_cells_seldom_claim_what_is_not_there() {
    for (cells, experiments) in [(1, 500), (8, 200), (24, 60)] {
        for (scatter, one_baseline) in
            [(Scatter::Normal, false), (Scatter::Heavy, false), (Scatter::Normal, true)]
        {
            let family = Family { cells, scatter, one_baseline, ..EQUAL };
            let share = family.means(experiments).any_false;
            assert!(share <= at_most_5_percent(experiments), "{family:?}: {share}");
        }
    }
}

#[test]
fn among_the_claims_of_many_cells_few_are_false_and_most_differences_are_found() {
    for different in [2, 6] {
        let family = Family { different, deviations: 1.5, ..EQUAL };
        let Shares { false_discoveries, found, .. } = family.means(200);
        assert!(false_discoveries <= 0.05 + 0.03, "{family:?}: {false_discoveries}");
        assert!(found > 0.8, "{family:?}: {found}");
    }
}

/// An experiment that adds two pairs at a time until its interval is narrower than this, from 8 pairs
/// on and at most to `cap`, and is judged once, at its end. Returns the pairs it took and the p value.
fn until_narrower(
    random: &mut Rand64,
    scatter: Scatter,
    percent: f64,
    cap: usize,
    seed: u64,
) -> (usize, f64) {
    let mut ratios = ratios(random, scatter, crate::MIN_PAIRS, 0.0, DEVIATION);
    let confidence = 1.0 - (1.0 - CONFIDENCE) / STOP_RULE_PENALTY;
    loop {
        let interval = interval_at(&ratios, seed, confidence).unwrap();
        if interval.width_percent().unwrap() <= percent || ratios.len() >= cap {
            return (ratios.len(), interval.p_value);
        }
        ratios.extend((0..2).map(|_| (DEVIATION * scatter.draw(random, 0.0)).exp()));
    }
}

/// Mean pairs, and the shares of experiments with a false claim as they are judged, and as they
/// would be without the penalty for stopping.
fn until_narrower_shares(
    experiments: u64,
    scatter: Scatter,
    percent: f64,
    cap: usize,
) -> (f64, [f64; 2]) {
    let mut random = Rand64::new(11);
    let (mut pairs, mut claimed) = (0, [0_u32; 2]);
    for seed in 0..experiments {
        let (took, p_value) = until_narrower(&mut random, scatter, percent, cap, seed);
        pairs += took;
        for (claimed, penalty) in claimed.iter_mut().zip([STOP_RULE_PENALTY, 1.0]) {
            *claimed += u32::from(p_value * penalty <= 0.05);
        }
    }
    let count = experiments as f64;
    (pairs as f64 / count, claimed.map(|claimed| f64::from(claimed) / count))
}

#[test]
fn stopping_at_a_narrow_interval_does_not_make_differences() {
    for scatter in [Scatter::Normal, Scatter::Heavy] {
        let experiments = 300;
        let (pairs, [share, _]) = until_narrower_shares(experiments, scatter, 6.0, 14);
        assert!(share <= at_most_5_percent(experiments), "{scatter:?}, {pairs}: {share}");
        assert!((8.0..14.0).contains(&pairs), "{scatter:?} takes {pairs} pairs on average");
    }
}

/// The smallest p value of `looks` series of `count` values each, which move by `drift` from one to
/// the next.
fn least_drift_p_value(random: &mut Rand64, looks: usize, count: usize, drift: f64) -> f64 {
    let p_values = (0..looks).filter_map(|_| {
        let mut value = |at: usize| (drift * at as f64 + 0.01 * normal(random)).exp();
        let series = (0..count).map(|at| (at as f64, value(at))).collect();
        super::drift(&[series]).map(|drift| drift.p_value)
    });
    p_values.fold(1.0, f64::min)
}

#[test]
fn what_holds_still_seldom_drifts_and_what_moves_is_seen() {
    let mut random = Rand64::new(3);
    let (experiments, looks) = (1000, 12);
    let mut seen = |drift: f64| {
        let is_seen =
            |_: &u64| least_drift_p_value(&mut random, looks, 10, drift) * looks as f64 <= 0.05;
        (0..experiments).filter(is_seen).count() as f64 / experiments as f64
    };
    let share = seen(0.0);
    assert!(share <= at_most_5_percent(experiments), "{share}");
    // A scatter of 1 %, and 1 % from one run to the next.
    assert!(seen(0.01) > 0.95);
}

#[test]
#[ignore = "takes minutes and prints a table"]
fn table_of_one_comparison() {
    println!("scatter, pairs: covered, false claims, 3 % found");
    for scatter in Scatter::SYMMETRIC.into_iter().chain(Scatter::OTHERS) {
        for pairs in [6, 8, 12, 24] {
            let experiments = if pairs > sign_flip::EXACT_VALUES { 1000 } else { 10_000 };
            let equal = frequencies(experiments, scatter, pairs, 0.0, DEVIATION);
            let differ =
                frequencies(experiments, scatter, pairs, 0.03_f64.ln_1p(), DEVIATION).claimed;
            println!("{scatter:?} {pairs}: {:.3} {:.3} {differ:.2}", equal.covered, equal.claimed);
        }
    }
}

#[test]
#[ignore = "takes minutes and prints a table"]
fn table_of_equivalence() {
    println!(
        "deviation in percent, pairs: equals called equivalent within 3 %; those that differ by 3 %"
    );
    for deviation in [0.01, 0.02, 0.03] {
        for pairs in [8, 12, 16] {
            let [equal, differ] = [0.0, 0.03_f64.ln_1p()]
                .map(|it| frequencies(4000, Scatter::Normal, pairs, it, deviation).equivalent);
            println!("{:.0} {pairs}: {equal:.3} {differ:.3}", deviation * 100.0);
        }
    }
}

#[test]
#[ignore = "takes minutes and prints a table"]
fn table_of_many_cells() {
    println!("cells: experiments with a false claim, false among the claims, differences found");
    for (scatter, one_baseline) in
        [(Scatter::Normal, false), (Scatter::Heavy, false), (Scatter::Normal, true)]
    {
        for (cells, different) in [(1, 0), (8, 0), (8, 2), (8, 4), (24, 0), (24, 6), (24, 12)] {
            let family =
                Family { cells, different, deviations: 1.5, scatter, one_baseline, ..EQUAL };
            let Shares { any_false, false_discoveries, found } = family.means(2000);
            println!(
                "{scatter:?}, one baseline {one_baseline}, {cells} cells, {different} different: \
                 {any_false:.3} {false_discoveries:.3} {found:.2}"
            );
        }
    }
}

#[test]
#[ignore = "takes minutes and prints a table"]
fn table_of_stopping() {
    println!("scatter, width, most pairs: mean pairs, false claims, without the penalty");
    for scatter in [Scatter::Normal, Scatter::Heavy] {
        for (percent, cap) in [(8.0, 24), (5.0, 24), (3.0, 64)] {
            let (pairs, [share, without]) = until_narrower_shares(2000, scatter, percent, cap);
            println!("{scatter:?} {percent} % {cap}: {pairs:.1} {share:.3} {without:.3}");
        }
    }
}

#[test]
#[ignore = "takes minutes and prints a table"]
fn table_of_required_pairs() {
    println!("scatter, pairs said to show 3 %: share of experiments that find it");
    for (scatter, width) in [(Scatter::Normal, 1.0), (Scatter::Heavy, 3.0_f64.sqrt())] {
        let pairs = required_pairs(DEVIATION * width, 3.0, 0.05).unwrap();
        let share = frequencies(4000, scatter, pairs, 0.03_f64.ln_1p(), DEVIATION).claimed;
        println!("{scatter:?} {pairs}: {share:.3}");
    }
}

#[test]
#[ignore = "takes minutes and prints a table"]
fn table_of_outliers() {
    println!("normal values: share of samples with any outlier, with a severe one");
    let mut random = Rand64::new(5);
    for count in [8, 12, 24] {
        let samples: Vec<Outliers> = (0..20_000)
            .map(|_| Outliers::among((0..count).map(|_| (DEVIATION * normal(&mut random)).exp())))
            .collect();
        let share = |is: fn(&Outliers) -> bool| {
            samples.iter().filter(|it| is(it)).count() as f64 / samples.len() as f64
        };
        let any = share(|it| *it != Outliers::default());
        println!("{count}: {any:.3} {:.4}", share(|it| it.severe() > 0));
    }
}
