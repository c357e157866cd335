//! One moment for several load generators, on any hosts, to begin: each is told it when it is started.

use std::time::{Duration, SystemTime, UNIX_EPOCH};
use twinring::measure::monotonic_ns;
use twinring_load::observer::Begin;

/// How far ahead the moment may be.
const AHEAD_MAX: Duration = Duration::from_secs(600);

/// When traffic begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct StartAt {
    unix_s: f64,
}

impl StartAt {
    /// Parses seconds since 1970, with a fraction.
    pub(super) fn parse(text: &str) -> Result<StartAt, String> {
        let unix_s: f64 = text.parse().map_err(|_| "expected seconds since 1970".to_owned())?;
        let start = StartAt { unix_s };
        match start.ahead_s() {
            ahead_s if ahead_s <= AHEAD_MAX.as_secs_f64() => Ok(start),
            _ => Err(format!("expected a moment at most {} s ahead", AHEAD_MAX.as_secs())),
        }
    }

    /// By the clock of this host; negative if it has passed.
    fn ahead_s(self) -> f64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.unix_s - now.as_secs_f64()
    }

    /// What a load generator does that is connected now.
    pub(super) fn begin(self) -> Begin {
        match Duration::try_from_secs_f64(self.ahead_s()) {
            Ok(ahead) => Begin::At(monotonic_ns().saturating_add(ahead.as_nanos() as u64)),
            Err(_) => Begin::Never,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_seconds_within_ten_minutes() {
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        for wrong in ["", "soon", "NaN", "inf", "9e99", &(now_s + 700.0).to_string()] {
            assert!(StartAt::parse(wrong).is_err(), "{wrong}");
        }
        let before_ns = monotonic_ns();
        let soon = StartAt::parse(&(now_s + 60.5).to_string()).unwrap();
        let Begin::At(ns) = soon.begin() else { panic!("it is ahead") };
        assert!((ns as f64 - before_ns as f64 - 60.5e9).abs() < 1e9, "{ns}");
        assert!(matches!(StartAt::parse("0").unwrap().begin(), Begin::Never));
    }
}
