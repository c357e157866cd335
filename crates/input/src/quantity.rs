//! Numbers as people write them: sizes, counts, rates, durations and shares, for command lines, questions and
//! configuration files alike.
//!
//! | | examples | |
//! |---|---|---|
//! | [`size`] | `512`, `12KB`, `12k`, `64M`, `64MiB` | bytes; 1 k is 1,024, as in nginx and dd(1) |
//! | [`count`] | `100`, `20,000`, `20_000`, `2k`, `1.5M` | 1 k is 1,000 |
//! | [`rate`] | `2k`, `20,000`, `2k/s` | per second; 1 k is 1,000 |
//! | [`duration`] | `500ms`, `10s`, `2min`, `1h30m` | from nanoseconds to days |
//! | [`share`] | `1%`, `0.01` | of one; a bare `1` is refused, because it may mean 1 % |
//!
//! Units are read in upper and lower case, with or without a space. A unit of another kind is refused by name:
//! "`12KB` is a size, not a rate".

use std::str::FromStr;
use std::time::Duration;

/// Digits behind the point that are read.
const DECIMALS_MAX: usize = 9;

/// The names of a unit, and its factor.
type Unit = (&'static [&'static str], u64);

const SIZES: &[Unit] = &[
    (&["", "b"], 1),
    (&["k", "kb", "kib"], 1 << 10),
    (&["m", "mb", "mib"], 1 << 20),
    (&["g", "gb", "gib"], 1 << 30),
    (&["t", "tb", "tib"], 1 << 40),
];

const COUNTS: &[Unit] =
    &[(&[""], 1), (&["k"], 1_000), (&["m"], 1_000_000), (&["g"], 1_000_000_000)];

const RATES: &[Unit] = &[(&["", "/s"], 1), (&["k", "k/s"], 1_000), (&["m", "m/s"], 1_000_000)];

/// In nanoseconds. Without a unit only zero is a duration.
const DURATIONS: &[Unit] = &[
    (&["ns"], 1),
    (&["us", "µs"], 1_000),
    (&["ms"], 1_000_000),
    (&["s", "sec"], 1_000_000_000),
    (&["m", "min"], 60_000_000_000),
    (&["h"], 3_600_000_000_000),
    (&["d"], 86_400_000_000_000),
];

/// A kind of quantity: its name, its units, and what an error message expects.
struct Kind {
    name: &'static str,
    units: &'static [Unit],
    expected: &'static str,
}

const SIZE: Kind =
    Kind { name: "a size", units: SIZES, expected: "bytes, such as 512, 12KB or 64M" };
const COUNT: Kind =
    Kind { name: "a count", units: COUNTS, expected: "a number, such as 100, 20,000 or 2k" };
const RATE: Kind =
    Kind { name: "a rate", units: RATES, expected: "a number per second, such as 2k or 20,000" };
const DURATION: Kind = Kind {
    name: "a duration",
    units: DURATIONS,
    expected: "a number with a unit, such as 500ms, 10s or 2min",
};

/// The kind that is meant by a unit which several kinds could have, such as `k`, is not told.
const BY_UNIT: [&Kind; 3] = [&RATE, &SIZE, &DURATION];

impl Kind {
    fn factor(&self, unit: &str) -> Option<u64> {
        self.units.iter().find(|(names, _)| names.contains(&unit)).map(|(_, factor)| *factor)
    }

    fn error(&self, text: &str, why: impl std::fmt::Display) -> String {
        format!("`{text}` {why}: expected {}", self.expected)
    }

    /// Why a unit is not one of this kind.
    fn wrong_unit(&self, text: &str, unit: &str) -> String {
        if unit.is_empty() {
            return self.error(text, "has no unit");
        }
        if unit == "%" {
            return self.error(text, format_args!("is a share, not {}", self.name));
        }
        match BY_UNIT.into_iter().find(|kind| kind.factor(unit).is_some()) {
            Some(other) => self.error(text, format_args!("is {}, not {}", other.name, self.name)),
            None => self.error(text, format_args!("has the unknown unit `{unit}`")),
        }
    }

    fn read(&self, text: &str) -> Result<u64, String> {
        self.read_scaled(text, 1)
    }

    /// The number in units of one `scale`-th.
    fn read_scaled(&self, text: &str, scale: u64) -> Result<u64, String> {
        let (number, unit) = split(text.trim());
        let unit = unit.trim().to_lowercase();
        let (value, divisor) = decimal(number)
            .ok_or_else(|| self.error(text, format_args!("is not {}", self.name)))?;
        let factor = match self.factor(&unit) {
            Some(factor) => factor,
            None if unit.is_empty() && value == 0 => 1,
            None => return Err(self.wrong_unit(text, &unit)),
        };
        let product = value.saturating_mul(factor.saturating_mul(scale).into());
        match u64::try_from(product / divisor) {
            Err(_) => Err(self.error(text, "is too large")),
            Ok(_) if product % divisor != 0 => Err(self.error(text, "is not a whole number")),
            Ok(number) => Ok(number),
        }
    }
}

/// The digits, separators and point at the beginning, and the rest.
fn split(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !(c.is_ascii_digit() || ".,_".contains(c)));
    text.split_at(end.unwrap_or(text.len()))
}

/// A decimal number without its point, and what that has to be divided by. Separators stand between digits; behind a
/// comma there are three, so `1,5` is no number.
fn decimal(text: &str) -> Option<(u128, u128)> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_group = |group: &str| group.len() == 3 && !group.contains('_');
    let grouped = whole.split(',').skip(1).all(is_group);
    let is_digit = |c: char| c.is_ascii_digit();
    let separated = whole.starts_with(is_digit) && whole.ends_with(is_digit);
    let digits = !fraction.is_empty() && fraction.chars().all(is_digit);
    if !grouped || !separated || !digits || whole.contains("__") || fraction.len() > DECIMALS_MAX {
        return None;
    }
    let digits: String = whole.chars().filter(char::is_ascii_digit).collect();
    // A number with more digits than fit is too large, not malformed.
    let value = format!("{digits}{fraction}").parse().unwrap_or(u128::MAX);
    Some((value, 10_u128.pow(fraction.len() as u32)))
}

/// A number of bytes.
///
/// # Errors
/// A sentence that quotes the text and says what is expected, as for all functions here.
pub fn size(text: &str) -> Result<u64, String> {
    SIZE.read(text)
}

/// A number of things.
pub fn count(text: &str) -> Result<u64, String> {
    COUNT.read(text)
}

/// A number of bytes of 32 bits.
pub fn size_u32(text: &str) -> Result<u32, String> {
    narrow(text, size(text)?)
}

/// A number of things of 32 bits.
pub fn count_u32(text: &str) -> Result<u32, String> {
    narrow(text, count(text)?)
}

fn narrow(text: &str, number: u64) -> Result<u32, String> {
    u32::try_from(number).map_err(|_| format!("`{text}` is too large: at most {}", u32::MAX))
}

/// `on` or `off`.
pub fn switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("expected on or off".to_owned()),
    }
}

/// A number of events in a second.
pub fn rate(text: &str) -> Result<u64, String> {
    RATE.read(text)
}

/// A number of events in a second that may be a fraction, such as `33.3`: in millionths.
pub fn rate_millionths(text: &str) -> Result<u64, String> {
    RATE.read_scaled(text, 1_000_000)
}

/// A length of time; several units may follow each other, as in `1h30m`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let mut rest = text.trim();
    let mut total = Duration::ZERO;
    loop {
        let (number, behind) = split(rest);
        let end = behind.find(|c: char| c.is_ascii_digit()).unwrap_or(behind.len());
        let part = &rest[..number.len() + end];
        let ns = DURATION.read(part).map_err(|error| match part == text {
            true => error,
            false => DURATION.error(text, "is not a duration"),
        })?;
        total = total
            .checked_add(Duration::from_nanos(ns))
            .ok_or_else(|| DURATION.error(text, "is too large"))?;
        rest = &behind[end..];
        if rest.is_empty() {
            return Ok(total);
        }
    }
}

/// A length of time other than zero.
pub fn timeout(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("a timeout of 0 would close every connection at once".to_owned()),
        timeout => Ok(timeout),
    }
}

/// A share from 0 to 1.
///
/// # Errors
/// As for [`size`], and for `1`, which may mean 1 % or all.
pub fn share(text: &str) -> Result<f64, String> {
    let wrong = |why: &str| format!("`{text}` {why}: expected a share, such as 1% or 0.01");
    let (number, factor) = match text.trim().strip_suffix('%') {
        Some(number) => (number, 0.01),
        None => (text.trim(), 1.0),
    };
    let number: f64 = number.trim_end().parse().map_err(|_| wrong("is not a share"))?;
    if factor == 1.0 && number == 1.0 {
        return Err(wrong("is ambiguous; write 1% or 100%"));
    }
    let share = number * factor;
    if (0.0..=1.0).contains(&share) { Ok(share) } else { Err(wrong("is not between 0% and 100%")) }
}

/// A number from `MIN` to `MAX`, of bytes or of things, for command lines and configuration files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Within<const BYTES: bool, const MIN: u64, const MAX: u64>(u64);

/// A count from `MIN` to `MAX`.
pub type Count<const MIN: u64, const MAX: u64> = Within<false, MIN, MAX>;

/// A number of bytes from `MIN` to `MAX`.
pub type Size<const MIN: u64, const MAX: u64> = Within<true, MIN, MAX>;

impl<const BYTES: bool, const MIN: u64, const MAX: u64> Within<BYTES, MIN, MAX> {
    /// The number.
    pub fn get(self) -> u64 {
        self.0
    }
}

impl<const BYTES: bool, const MIN: u64, const MAX: u64> FromStr for Within<BYTES, MIN, MAX> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match if BYTES { size(text)? } else { count(text)? } {
            value if value < MIN => Err(format!("`{text}` is too small: at least {MIN}")),
            value if value > MAX => Err(format!("`{text}` is too large: at most {MAX}")),
            value => Ok(Within(value)),
        }
    }
}

/// A rate from 1 to `MOST` per second.
#[derive(Clone, Copy, Debug)]
pub struct PerSecond<const MOST: u32>(pub u32);

impl<const MOST: u32> FromStr for PerSecond<MOST> {
    type Err = String;

    fn from_str(text: &str) -> Result<PerSecond<MOST>, String> {
        let rate = u32::try_from(rate(text)?).ok();
        let rate = rate.filter(|rate| (1..=MOST).contains(rate));
        rate.map(PerSecond).ok_or_else(|| format!("`{text}` is not from 1 to {MOST} per second"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_people_write_them() {
        type Read = fn(&str) -> Result<u64, String>;
        let ms: Read = |text| duration(text).map(|time| time.as_millis() as u64);
        let sizes = "0=0 512=512 512B=512 12KB=12288 12k=12288 1.5K=1536 \
                     64M=67108864 64MiB=67108864 3GiB=3221225472 20,000=20000";
        let table: [(Read, &str); 5] = [
            (size, sizes),
            (count, "100=100 20,000=20000 20_000=20000 1.5M=1500000"),
            (rate, "2k=2000 2k/s=2000 20,000=20000 1,000,000/s=1000000"),
            (ms, "500ms=500 10s=10000 2min=120000 5m=300000 1.5s=1500 1h30m=5400000 0=0 0s=0"),
            (rate_millionths, "33.3=33300000 2k/s=2000000000 0.001=1000"),
        ];
        for (read, cases) in table {
            for case in cases.split(' ') {
                let (text, value) = case.split_once('=').unwrap();
                assert_eq!(read(text), Ok(value.parse().unwrap()), "{text}");
            }
        }
        assert_eq!(size("4 KiB"), Ok(4096));
        assert_eq!(duration("1h 30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(duration("7us"), Ok(Duration::from_micros(7)));
        assert_eq!((share("1%"), share("0.01"), share("100 %")), (Ok(0.01), Ok(0.01), Ok(1.0)));
    }

    #[test]
    fn what_is_no_number_is_refused() {
        let wrong = "|k|-1|+1|1,5|1,50k|1.|.5|1__0|1,,000|4X|4KiBs|\u{e9}|0x10|99999999999999999999|\
                     99999999999T|1e3|1.0000000001k|inf|NaN";
        for text in wrong.split('|') {
            let read = [size(text), count(text), rate(text), duration(text).map(|_| 0)];
            assert!(read.iter().all(Result::is_err), "{text:?}: {read:?}");
        }
        for text in ["0.5", "1.0001k"] {
            assert!(size(text).unwrap_err().contains("whole number"), "{text}");
        }
        for text in ["", "half", "-1%", "101%", "2", "nan"] {
            assert!(share(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_unit_of_another_kind_is_named() {
        for (error, says) in [
            (rate("12KB"), "`12KB` is a size, not a rate: expected a number per second"),
            (rate("10ms"), "`10ms` is a duration, not a rate"),
            (size("2k/s"), "`2k/s` is a rate, not a size: expected bytes, such as 512"),
            (count("10s"), "`10s` is a duration, not a count"),
            (count("10%"), "`10%` is a share, not a count"),
            (duration("10").map(|_| 0), "`10` has no unit: expected a number with a unit"),
            (duration("10KB").map(|_| 0), "`10KB` is a size, not a duration"),
            (duration("10 parsecs").map(|_| 0), "`10 parsecs` has the unknown unit `parsecs`"),
        ] {
            let error = error.unwrap_err();
            assert!(error.starts_with(says), "{error}");
        }
        assert!(share("1").unwrap_err().contains("write 1% or 100%"));
    }

    #[test]
    fn numbers_out_of_their_bounds_are_refused_with_the_bound() {
        let count = |text: &str| text.parse::<Count<1, 10_000>>().map(Count::get);
        assert_eq!((count("1"), count("10k")), (Ok(1), Ok(10_000)));
        assert_eq!(count("0").unwrap_err(), "`0` is too small: at least 1");
        assert_eq!(count("11k").unwrap_err(), "`11k` is too large: at most 10000");
        assert!(count("10KB").unwrap_err().contains("is a size, not a count"));
        let size = |text: &str| text.parse::<Size<256, { 1 << 20 }>>().map(Size::get);
        assert_eq!(size("1M"), Ok(1 << 20));
        assert_eq!(size("2M").unwrap_err(), "`2M` is too large: at most 1048576");
    }
}
