//! How reports write numbers.

use crate::statistics::{Ends, Interval};

/// What a number that is not there looks like.
pub(super) const NOTHING: &str = "–";

/// A whole number with its thousands set apart.
pub(super) fn whole(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value <= -0.5 { format!("-{text}") } else { text }
}

/// Three significant digits or more.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        100.0.. => whole(value),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// A count that may be far below 1.
pub(super) fn rare(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        10.0.. => short(value),
        _ if value < 0.001 => "< 0.001".to_owned(),
        _ => format!("{value:.3}"),
    }
}

pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// A share that is nothing or very little most of the time, in percent.
pub(super) fn share(share: f64) -> String {
    match share * 100.0 {
        0.0 => "0 %".to_owned(),
        percent if percent < 0.001 => "< 0.001 %".to_owned(),
        percent if percent < 1.0 => format!("{percent:.3} %"),
        percent => format!("{percent:.1} %"),
    }
}

/// `1.25 [1.22, 1.28]`, or `1.25 [–]` of too few pairs for an interval.
pub(super) fn interval(interval: Option<&Interval>) -> String {
    interval.map_or(NOTHING.to_owned(), |it| ends(it.ratio, it.ends))
}

/// A ratio with its interval in brackets.
pub(super) fn ends(ratio: f64, ends: Option<Ends>) -> String {
    match ends {
        Some(Ends { low, high }) => format!("{ratio:.3} [{low:.3}, {high:.3}]"),
        None => format!("{ratio:.3} [{NOTHING}]"),
    }
}

/// How much less CPU one needs of which the other needs so many times as much.
pub(super) fn saved_percent(times: f64) -> f64 {
    (1.0 - 1.0 / times) * 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_easy_to_read() {
        assert_eq!(whole(1_234_567.4), "1,234,567");
        assert_eq!(whole(999.6), "1,000");
        assert_eq!(whole(0.2), "0");
        assert_eq!(whole(-1234.0), "-1,234");
        assert_eq!([short(0.5), short(12.34), short(1234.5)], ["0.50", "12.3", "1,234"]);
        assert_eq!(percent(0.5), "50.0 %");
        let shares = [0.0, 0.000_001, 0.000_5, 0.25].map(share);
        assert_eq!(shares, ["0 %", "< 0.001 %", "0.050 %", "25.0 %"]);
    }
}
