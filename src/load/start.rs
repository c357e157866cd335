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
