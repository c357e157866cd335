//! By simulation: how often intervals hold the truth, and how often equals are told apart.
//!
//! `docs/statistics.md` has the figures, which this prints:
//! `cargo test -p twinring-statistics simulations -- --nocapture`

use oorandom::Rand64;

use super::*;

/// How the machine scatters, in the logarithm of one run's cost.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Noise {
    Normal,
    /// Student's t with 3 degrees of freedom.
    Heavy,
    /// One run in ten costs five deviations more, never less.
    Outliers,
    /// The machine becomes slower from run to run, by half a deviation.
    Drift,
}

const DEVIATION: f64 = 0.02;

fn normal(random: &mut Rand64) -> f64 {
    let uniform = (1.0 - random.rand_float(), random.rand_float());
    (-2.0 * uniform.0.ln()).sqrt() * (std::f64::consts::TAU * uniform.1).cos()
}

impl Noise {
    /// The noise of run number `at`, in deviations.
    fn draw(self, random: &mut Rand64, at: usize) -> f64 {
        match self {
            Noise::Normal => normal(random),
            Noise::Heavy => {
                let squares: f64 = (0..3).map(|_| normal(random).powi(2)).sum();
                normal(random) / (squares / 3.0).sqrt()
            }
            Noise::Outliers => normal(random) + if random.rand_float() < 0.1 { 5.0 } else { 0.0 },
            Noise::Drift => normal(random) + 0.5 * at as f64,
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Plan {
    noise: Noise,
    pairs: usize,
    /// The true difference, in logarithms, in each stratum; pairs take turns in blocks of these counts.
    strata: &'static [(f64, usize)],
    /// A pair whose subject costs this many deviations more than usual is excluded. The baseline never is.
    excluded_beyond: f64,
}

const ONE: &[(f64, usize)] = &[(0.0, 1)];

impl Plan {
    const fn of(noise: Noise, pairs: usize) -> Plan {
        Plan { noise, pairs, strata: ONE, excluded_beyond: f64::INFINITY }
    }

    /// The pairs, each with its own coin, and whether each counts.
    fn run(self, random: &mut Rand64, session: f64) -> Vec<(Sample, bool)> {
        let cycle: Vec<usize> =
            self.strata.iter().enumerate().flat_map(|(at, (_, count))| vec![at; *count]).collect();
        let mut pair = |number: usize| {
            let stratum = cycle[number % cycle.len()];
            let [first, second] = [0, 1].map(|half| self.noise.draw(random, 2 * number + half));
            let subject_first = random.rand_float() < 0.5;
            let (subject, baseline) = if subject_first { (first, second) } else { (second, first) };
            let log = self.strata[stratum].0 + session + DEVIATION * (subject - baseline);
            (Sample { value: log.exp(), stratum }, subject < self.excluded_beyond)
        };
        (0..self.pairs).map(&mut pair).collect()
    }

    /// The ratio that the session's mix of strata has.
    fn truth(self, pairs: &[Sample]) -> f64 {
        let logs: f64 = pairs.iter().map(|pair| self.strata[pair.stratum].0).sum();
        (logs / pairs.len() as f64).exp()
    }

    /// The share of sessions whose interval holds the truth, over all pairs and over those that count.
    fn coverage(self, sessions: u64) -> [f64; 2] {
        let mut random = Rand64::new(42);
        let mut held = [0_u64; 2];
        for seed in 0..sessions {
            let all = self.run(&mut random, 0.0);
            let every: Vec<Sample> = all.iter().map(|it| it.0).collect();
            let counted: Vec<Sample> = all.iter().filter(|it| it.1).map(|it| it.0).collect();
            for (held, pairs) in held.iter_mut().zip([every, counted]) {
                let found = estimate(&pairs, 0.05, seed).and_then(|it| it.ends);
                *held += u64::from(
                    found.is_none_or(|it| (it.low..=it.high).contains(&self.truth(&pairs))),
                );
            }
        }
        held.map(|held| held as f64 / sessions as f64)
    }
}

/// What strata differ by: 30 %, the subject costing more in one and the same in the other.
const STRATA_EVEN: &[(f64, usize)] = &[(0.26, 1), (0.0, 1)];
const STRATA_UNEVEN: &[(f64, usize)] = &[(0.26, 3), (0.0, 9)];

fn print(what: &str, figures: &[f64]) {
    let figures: Vec<String> = figures.iter().map(|it| format!("{:.1} %", it * 100.0)).collect();
    println!("| {what} | {} |", figures.join(" | "));
}

/// So many sessions that a true share of 95 % is found to 0.3 %.
const SESSIONS: u64 = 5000;

#[test]
fn intervals_hold_the_truth_in_95_percent_of_sessions() {
    for noise in [Noise::Normal, Noise::Heavy, Noise::Outliers, Noise::Drift] {
        for pairs in [8, 12] {
            let plan = Plan::of(noise, pairs);
            let [covered, _] = plan.coverage(SESSIONS);
            print(&format!("{noise:?}, {pairs} pairs"), &[covered]);
            assert!((covered - 0.95).abs() <= 0.01, "{plan:?}: {covered}");
        }
    }
}

#[test]
fn strata_that_differ_cost_no_coverage() {
    for (strata, pairs) in [(STRATA_EVEN, 8), (STRATA_EVEN, 12), (STRATA_UNEVEN, 12)] {
        for noise in [Noise::Normal, Noise::Heavy, Noise::Outliers] {
            let plan = Plan { strata, ..Plan::of(noise, pairs) };
            let [covered, _] = plan.coverage(SESSIONS);
            print(&format!("{noise:?}, {pairs} pairs in strata of {strata:?}"), &[covered]);
            assert!((covered - 0.95).abs() <= 0.015, "{plan:?}: {covered}");
        }
    }
}

/// Exclusion that hits one side makes the undisturbed pairs a sample of something else. Over all pairs the
/// interval holds, which is why that ratio stands first.
#[test]
fn unequal_exclusion_leaves_the_ratio_over_all_pairs() {
    let plan = Plan { excluded_beyond: 1.0, ..Plan::of(Noise::Normal, 12) };
    let [every, counted] = plan.coverage(SESSIONS);
    print("dear runs of one side excluded: all pairs, undisturbed pairs", &[every, counted]);
    assert!((every - 0.95).abs() <= 0.01 && counted < 0.94, "{every} {counted}");
}

/// The deviation of sessions of this project's machines from each other is as large as that of pairs.
const BETWEEN: f64 = 0.02;

#[test]
fn three_sessions_say_what_one_cannot() {
    let mut random = Rand64::new(7);
    let (sessions, plan) = (3000, Plan::of(Noise::Normal, 8));
    let (mut one, mut three, mut alone) = (0, 0, 0);
    for seed in 0..sessions {
        let mut session = |between: f64| -> Vec<Sample> {
            let shift = between * normal(&mut random);
            plan.run(&mut random, shift).into_iter().map(|it| it.0).collect()
        };
        let found = estimate(&session(BETWEEN), 0.05, seed).unwrap();
        one += u64::from(!found.shows_a_difference());
        let mut over = |between: f64| {
            let all: Vec<Session> = (0..3).filter_map(|_| Session::of(&session(between))).collect();
            u64::from(!over_sessions(&all, 0.05).unwrap().shows_a_difference())
        };
        three += over(BETWEEN);
        alone += over(0.0);
    }
    let [one, three, alone] = [one, three, alone].map(|held| held as f64 / sessions as f64);
    print(
        "sessions that differ: the interval of one, over three; three that do not differ",
        &[one, three, alone],
    );
    assert!((three - 0.95).abs() <= 0.01 && (alone - 0.95).abs() <= 0.01, "{three} {alone}");
    // What one session says of the machine is too sure by far.
    assert!(one < 0.85, "{one}");
}

#[test]
fn an_experiment_of_equals_seldom_claims_any_difference() {
    for (comparisons, pairs) in [(1, 8), (6, 8), (12, 10), (24, 12)] {
        let mut random = Rand64::new(11);
        let experiments = if comparisons > 6 { 600 } else { 2000 };
        let level = family_level(comparisons);
        let mut claimed = 0;
        for seed in 0..experiments {
            let mut any = false;
            for comparison in 0..comparisons {
                let noise =
                    [Noise::Normal, Noise::Heavy, Noise::Outliers, Noise::Drift][comparison % 4];
                let pairs: Vec<Sample> = Plan::of(noise, pairs)
                    .run(&mut random, 0.0)
                    .into_iter()
                    .map(|it| it.0)
                    .collect();
                any |= estimate(&pairs, level, seed).unwrap().shows_a_difference();
            }
            claimed += u64::from(any);
        }
        let share = claimed as f64 / experiments as f64;
        print(
            &format!("A/A, {comparisons} comparisons of {pairs} pairs: any false difference"),
            &[share],
        );
        assert!(
            share <= 0.05 + 2.0 * (0.05 * 0.95 / experiments as f64).sqrt(),
            "{comparisons}: {share}"
        );
    }
}

#[test]
fn two_bundles_of_equals_are_seldom_told_apart() {
    let mut random = Rand64::new(3);
    let mut held = 0;
    for _ in 0..SESSIONS {
        let mut runs = || -> Vec<Sample> {
            let figure = |_| Sample { value: (DEVIATION * normal(&mut random)).exp(), stratum: 0 };
            (0..8).map(figure).collect()
        };
        let (a, b) = (runs(), runs());
        held += u64::from(!difference(&a, &b, RUNS_MIN, 0.05).unwrap().shows_a_difference());
    }
    let share = held as f64 / SESSIONS as f64;
    print("two bundles, 8 runs each", &[share]);
    assert!((share - 0.95).abs() <= 0.01, "{share}");
}
