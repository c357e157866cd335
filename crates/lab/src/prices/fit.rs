//! Prices that explain differences best: non-negative least squares, of what the cells can tell apart.

/// If at least this share of a column follows from the others, their prices are not separated.
const ALIKE_SHARE: f64 = 0.95;

/// Less than this share of what is to be explained, at the price it has or at 1 us, is no ground for a price.
const MATTERS_SHARE: f64 = 0.01;
const USUAL_NS: f64 = 1000.0;

/// Sweeps of the coordinate descent; it has converged long before.
const SWEEPS: usize = 2000;

/// What a fit found.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Fit {
    /// The price of each term. One without influence keeps what it had before.
    pub(super) prices: Vec<f64>,
    /// The terms that the rows cannot tell apart: each set got one factor on the prices that they had.
    pub(super) alike: Vec<Vec<usize>>,
    /// The terms that hardly differ in any row.
    pub(super) constant: Vec<usize>,
}

/// Finds prices of at least 0 that make `targets` of the counts in `rows`. `start` are the prices by which
/// those are divided that always go together; nothing for a term with no price of its own.
///
/// Returns nothing with too few rows to say anything.
pub(super) fn fit(rows: &[Vec<f64>], targets: &[f64], start: &[Option<f64>]) -> Option<Fit> {
    let terms = start.len();
    let to_explain = rms(targets.iter().copied());
    let column = |term: usize| rows.iter().map(move |row| row[term]);
    let matters = |term: &usize| {
        let price = start[*term].filter(|price| *price > 0.0).unwrap_or(USUAL_NS);
        rms(column(*term)) * price > MATTERS_SHARE * to_explain
    };
    let (active, constant): (Vec<usize>, Vec<usize>) = (0..terms).partition(matters);
    let mut sets: Vec<Set> =
        active.iter().map(|term| Set::of(&[*term], rows, targets, start)).collect();
    while let Some((one, other)) = most_alike(&sets) {
        let other = sets.remove(other);
        let together = [sets[one].terms.clone(), other.terms].concat();
        sets[one] = Set::of(&together, rows, targets, start);
    }
    if rows.len() < sets.len() + 2 {
        return None;
    }
    let columns: Vec<&[f64]> = sets.iter().map(|set| &*set.column).collect();
    let (matrix, vector) = normal_equations(&columns, targets);
    let factors = non_negative(&matrix, &vector);
    let mut prices: Vec<f64> = start.iter().map(|price| price.unwrap_or(0.0)).collect();
    for (set, factor) in sets.iter().zip(factors) {
        for (term, weight) in set.terms.iter().zip(&set.weights) {
            prices[*term] = factor * weight;
        }
    }
    let alike = sets.into_iter().map(|set| set.terms).filter(|terms| terms.len() > 1).collect();
    Some(Fit { prices, alike, constant })
}

/// Terms with one factor.
struct Set {
    terms: Vec<usize>,
    /// The price of each at a factor of 1.
    weights: Vec<f64>,
    /// Their counts at these prices, with a root mean square of 1.
    column: Vec<f64>,
}

impl Set {
    /// Where one count falls as another rises, those that rise with the targets have all of the price.
    fn of(terms: &[usize], rows: &[Vec<f64>], targets: &[f64], start: &[Option<f64>]) -> Set {
        let of_term = |term: usize| rows.iter().map(|row| row[term]).collect::<Vec<f64>>();
        let first = of_term(terms[0]);
        let opposed = terms.iter().any(|term| dot(&first, &of_term(*term)) < 0.0);
        let rises = |term: &usize| !opposed || dot(&of_term(*term), targets) > 0.0;
        let weight = |term: &usize| if rises(term) { start[*term].unwrap_or(0.0) } else { 0.0 };
        let mut weights: Vec<f64> = terms.iter().map(weight).collect();
        if weights.iter().all(|weight| *weight == 0.0) {
            // Without prices to divide it by, all of it is the first one's.
            weights[terms.iter().position(rises).unwrap_or(0)] = 1.0;
        }
        let column = |weights: &[f64]| -> Vec<f64> {
            let of_row = |row: &Vec<f64>| {
                terms.iter().zip(weights).map(|(term, weight)| row[*term] * weight).sum()
            };
            rows.iter().map(of_row).collect()
        };
        let scale = rms(column(&weights).into_iter()).max(f64::MIN_POSITIVE);
        weights.iter_mut().for_each(|weight| *weight /= scale);
        Set { terms: terms.to_vec(), column: column(&weights), weights }
    }
}

/// Two sets that have to become one, because one of them follows from the others.
fn most_alike(sets: &[Set]) -> Option<(usize, usize)> {
    let share = |set: usize| {
        let others = sets.iter().enumerate().filter(|(other, _)| *other != set);
        let others: Vec<&[f64]> = others.map(|(_, other)| &*other.column).collect();
        explained_share(&others, &sets[set].column)
    };
    let shares = (0..sets.len()).map(|set| (set, share(set)));
    let (set, share) = shares.max_by(|(_, a), (_, b)| a.total_cmp(b))?;
    if share < ALIKE_SHARE {
        return None;
    }
    let likeness = |other: &usize| dot(&sets[set].column, &sets[*other].column).abs();
    let others = (0..sets.len()).filter(|other| *other != set);
    let other = others.max_by(|a, b| likeness(a).total_cmp(&likeness(b)))?;
    Some((set.min(other), set.max(other)))
}

/// The share of the squares of `target` that a combination of these columns has.
fn explained_share(columns: &[&[f64]], target: &[f64]) -> f64 {
    let (mut matrix, mut vector) = normal_equations(columns, target);
    let against = vector.clone();
    // Elimination; a pivot of next to nothing is of a column that follows from those before it.
    for pivot in 0..columns.len() {
        if matrix[pivot][pivot] < 1e-9 * target.len() as f64 {
            matrix.iter_mut().for_each(|row| row[pivot] = 0.0);
            matrix[pivot] = vec![0.0; columns.len()];
            matrix[pivot][pivot] = 1.0;
            vector[pivot] = 0.0;
        }
        for row in (0..columns.len()).filter(|row| *row != pivot) {
            let factor = matrix[row][pivot] / matrix[pivot][pivot];
            let of_pivot = matrix[pivot].clone();
            for (value, above) in matrix[row].iter_mut().zip(of_pivot) {
                *value -= factor * above;
            }
            vector[row] -= factor * vector[pivot];
        }
    }
    let solved = (0..columns.len()).map(|term| vector[term] / matrix[term][term]);
    let explained: f64 = solved.zip(against).map(|(factor, against)| factor * against).sum();
    explained / dot(target, target).max(f64::MIN_POSITIVE)
}

fn normal_equations(columns: &[&[f64]], targets: &[f64]) -> (Vec<Vec<f64>>, Vec<f64>) {
    let against = |one: &[f64]| columns.iter().map(|other| dot(one, other)).collect();
    let matrix = columns.iter().map(|column| against(column)).collect();
    (matrix, columns.iter().map(|column| dot(column, targets)).collect())
}

/// The least squares with no factor below 0, by coordinate descent, from equations that are well conditioned:
/// no column follows from the others.
fn non_negative(matrix: &[Vec<f64>], vector: &[f64]) -> Vec<f64> {
    let mut factors = vec![0.0; vector.len()];
    for _ in 0..SWEEPS {
        for term in 0..factors.len() {
            let others = (0..factors.len()).filter(|other| *other != term);
            let of_others: f64 = others.map(|other| matrix[term][other] * factors[other]).sum();
            factors[term] = ((vector[term] - of_others) / matrix[term][term]).max(0.0);
        }
    }
    factors
}

fn dot(one: &[f64], other: &[f64]) -> f64 {
    one.iter().zip(other).map(|(a, b)| a * b).sum()
}

fn rms(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len().max(1) as f64;
    (values.map(|value| value * value).sum::<f64>() / count).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn targets(rows: &[Vec<f64>], prices: &[f64], noise: &[f64]) -> Vec<f64> {
        rows.iter().zip(noise).map(|(row, noise)| dot(row, prices) + noise).collect()
    }

    proptest! {
        /// With a noise of 20 ns at most, prices are found again to what that can shift them by.
        #[test]
        fn injected_prices_are_found_again(
            rows in prop::collection::vec(prop::collection::vec(-2.0..2.0_f64, 3), 24..60),
            prices in prop::collection::vec(100.0..5000.0_f64, 3),
            noise in prop::collection::vec(-20.0..20.0_f64, 60),
        ) {
            let found = fit(&rows, &targets(&rows, &prices, &noise), &[None; 3]).unwrap();
            prop_assert_eq!((found.alike.len(), found.constant.len()), (0, 0));
            for (found, price) in found.prices.iter().zip(&prices) {
                prop_assert!((found - price).abs() < 40.0, "{} for {}", found, price);
            }
        }

        /// Two counts in a fixed ratio, but for 1 % of noise: only what they cost together is known.
        #[test]
        fn what_goes_together_is_not_divided_at_will(
            rows in prop::collection::vec(prop::collection::vec(-2.0..2.0_f64, 2), 24..60),
            ratio in prop_oneof![-3.0..-0.3_f64, 0.3..3.0_f64],
            start in prop::option::of(50.0..500.0_f64),
            wobble in prop::collection::vec(-0.01..0.01_f64, 60),
        ) {
            let with_both = |(row, wobble): (&Vec<f64>, &f64)| {
                vec![row[0], row[1], row[0] * (ratio + wobble)]
            };
            let rows: Vec<Vec<f64>> = rows.iter().zip(&wobble).map(with_both).collect();
            let targets = targets(&rows, &[800.0, 300.0, 0.0], &[0.0; 60]);
            let found = fit(&rows, &targets, &[Some(100.0), None, start]).unwrap();
            prop_assert_eq!(&found.alike, &[vec![0, 2]], "{:?}", found);
            let together = found.prices[0] + ratio * found.prices[2];
            prop_assert!((together - 800.0).abs() < 30.0 && (found.prices[1] - 300.0).abs() < 30.0, "{:?}", found);
        }

        /// For all numbers, prices are finite and not below 0.
        #[test]
        fn anything_has_an_answer(
            rows in prop::collection::vec(prop::collection::vec(-1e6..1e6_f64, 4), 0..12),
            targets in prop::collection::vec(-1e6..1e6_f64, 12),
            start in prop::collection::vec(prop::option::of(0.0..1e9_f64), 4),
        ) {
            if let Some(found) = fit(&rows, &targets[..rows.len()], &start) {
                prop_assert!(found.prices.iter().all(|it| it.is_finite() && *it >= 0.0), "{:?}", found);
            }
        }
    }

    #[test]
    fn what_hardly_differs_keeps_its_price() {
        let rows: Vec<Vec<f64>> = (0..20).map(|it| vec![f64::from(it % 5) - 2.0, 1e-5]).collect();
        let targets = targets(&rows, &[700.0, 1e6], &[0.0; 20]);
        let found = fit(&rows, &targets, &[None, Some(90.0)]).unwrap();
        assert_eq!((&*found.constant, found.prices[1]), (&[1][..], 90.0));
        assert!((found.prices[0] - 700.0).abs() < 10.0);
        assert_eq!(fit(&rows[..2], &targets[..2], &[None, None]), None, "two rows say nothing");
    }
}
