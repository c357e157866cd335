//! What the prices of another machine would make of the ratios measured on this one.

use std::str::FromStr;

use super::explain::{Explained, Explanation};
use super::{PRICE_NS_MAX, TERMS, Term};
use crate::error::LabError;

/// Prices of another machine, as `syscall=80ns,interrupt=0.5us`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct OtherPrices {
    /// By position in the table of terms: nanoseconds, for all CPUs that pay.
    list: Vec<(usize, f64)>,
}

const FORM: &str =
    "syscall, interrupt, wakeup or copy (of 1 KB), each with ns, us or ms, as interrupt=0.5us";

impl FromStr for OtherPrices {
    type Err = String;

    fn from_str(text: &str) -> Result<OtherPrices, String> {
        let bad = |part: &str| format!("`{part}`: expected {FORM}");
        let mut list: Vec<(usize, f64)> = Vec::new();
        for part in text.split(',') {
            let (name, price) = part.split_once('=').ok_or_else(|| bad(part))?;
            let term = TERMS.iter().position(|term| term.option == Some(name.trim()));
            let term = term.ok_or_else(|| bad(part))?;
            let price = nanoseconds(price.trim()).ok_or_else(|| bad(part))?;
            if list.iter().any(|(known, _)| *known == term) {
                return Err(format!("`{}` is given twice", name.trim()));
            }
            list.push((term, price));
        }
        Ok(OtherPrices { list })
    }
}

fn nanoseconds(text: &str) -> Option<f64> {
    let units = [("ns", 1.0), ("us", 1e3), ("ms", 1e6)];
    let (number, unit) =
        units.iter().find_map(|(unit, ns)| Some((text.strip_suffix(unit)?, ns)))?;
    let ns = number.trim().parse::<f64>().ok()? * unit;
    (0.0..=PRICE_NS_MAX).contains(&ns).then_some(ns)
}

/// A ratio as it would be.
pub(crate) struct Predicted<'a> {
    pub(crate) of: &'a Explained<'a>,
    /// How many times better; nothing if the counts at these prices would have taken more than all CPU.
    pub(crate) ratio: Option<f64>,
    /// How far off that may be: as far as predictions of this machine's own cells were, in the median.
    pub(crate) error: Option<f64>,
}

/// Every ratio at other prices: each side's CPU is changed by its counts times how much each price is higher or
/// lower than the machine's own.
///
/// # Errors
/// When a price is given for something that was not counted here, or whose own price is not known.
pub(crate) fn predict<'a>(
    explanation: &'a Explanation<'a>,
    prices: &OtherPrices,
) -> Result<Vec<Predicted<'a>>, LabError> {
    let mut changes = Vec::new();
    for (term, price) in &prices.list {
        let Term { title, share, option, .. } = TERMS[*term];
        let own = explanation.measured[*term].or_else(|| explanation.fitted(*term));
        let own = own.filter(|_| explanation.terms.contains(term));
        let own = own.ok_or_else(|| LabError::BadExperiment {
            place: format!("--price {}", option.unwrap_or(title)),
            problem: format!("the bundle does not know what {title} cost where it was measured"),
            expected: "prices of what the bundle has counted, and has the price of".to_owned(),
        })?;
        changes.push((*term, price * share - own));
    }
    // The smaller of what it was with the measured prices and with the fitted ones is no promise.
    let error_ns = explanation.errors.map(|[_, measured, fitted]| {
        if explanation.measured.iter().any(Option::is_some) { measured } else { fitted }.median_ns
    });
    let predicted = |it: &'a Explained<'a>| {
        let own = it.cpu_ns();
        let mut other = own;
        for (term, change_ns) in &changes {
            let counts = it.sides(*term);
            other.iter_mut().zip(counts).for_each(|(ns, count)| *ns += count * change_ns);
        }
        let possible = other.iter().all(|ns| *ns > 0.0);
        let measured = it.ratio().filter(|_| possible)?.ratio;
        let ratio = measured * (other[0] / own[0]) / (other[1] / own[1]);
        Some((ratio, error_ns.map(|ns| ratio * ns / other[1])))
    };
    let all = explanation.differences.iter().map(|of| {
        let found = predicted(of);
        Predicted { of, ratio: found.map(|it| it.0), error: found.and_then(|it| it.1) }
    });
    Ok(all.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_are_read_with_their_units() {
        let read = |text: &str| text.parse::<OtherPrices>();
        let found = read("interrupt=0.5us, syscall=80ns,copy=1 ms").unwrap();
        assert_eq!(found.list, [(1, 500.0), (0, 80.0), (4, 1e6)]);
        for text in [
            "",
            "syscall",
            "syscall=80",
            "syscall=-1ns",
            "syscall=infns",
            "softirq=1ns",
            "syscall=2ms,x",
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains("expected syscall, interrupt"), "{text}: {error}");
        }
        assert!(read("syscall=1ns,syscall=2ns").unwrap_err().contains("twice"));
    }
}
