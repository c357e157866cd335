//! Dates in HTTP format, and the clock of a worker, which formats one per second.

use std::cell::Cell;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Length of a date: `Sun, 06 Nov 1994 08:49:37 GMT`.
pub const DATE_BYTES: usize = 29;

/// The first second that has no date: years have four digits.
const SECONDS_END: i64 = 253_402_300_800;

/// The date of a second since 1970, if it has one.
pub fn format_date(seconds: i64) -> Option<[u8; DATE_BYTES]> {
    if !(0..SECONDS_END).contains(&seconds) {
        return None;
    }
    let time = UNIX_EPOCH + Duration::from_secs(seconds as u64);
    httpdate::fmt_http_date(time).into_bytes().try_into().ok()
}

/// Seconds since 1970 of a date in any of the three formats of RFC 9110 section 5.6.7.
pub fn parse_date(text: &[u8]) -> Option<i64> {
    let time = httpdate::parse_http_date(std::str::from_utf8(text).ok()?).ok()?;
    Some(time.duration_since(UNIX_EPOCH).ok()?.as_secs() as i64)
}

/// The current time, read once for each batch of requests.
#[derive(Debug)]
pub(super) struct Clock {
    now: Cell<Instant>,
    /// The second, since 1970.
    second: Cell<i64>,
    second_ends: Cell<Instant>,
    date: Cell<[u8; DATE_BYTES]>,
}

impl Clock {
    pub(super) fn new() -> Clock {
        let now = Instant::now();
        let clock = Clock {
            now: Cell::new(now),
            second: Cell::new(0),
            second_ends: Cell::new(now),
            date: Cell::new(*b"Thu, 01 Jan 1970 00:00:00 GMT"),
        };
        clock.tick();
        clock
    }

    pub(super) fn tick(&self) {
        let now = Instant::now();
        self.now.set(now);
        if now < self.second_ends.get() {
            return;
        }
        // With a clock before 1970 or after 9999 the last date stays.
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.second.set(since_1970.as_secs() as i64);
        let left = Duration::from_secs(1) - Duration::from_nanos(since_1970.subsec_nanos().into());
        self.second_ends.set(now + left);
        if let Some(date) = format_date(self.second.get()) {
            self.date.set(date);
        }
    }

    /// The moment of the last tick.
    pub(super) fn now(&self) -> Instant {
        self.now.get()
    }

    /// Its second, since 1970.
    pub(super) fn second(&self) -> i64 {
        self.second.get()
    }

    /// Its date.
    pub(super) fn date(&self) -> [u8; DATE_BYTES] {
        self.date.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn years_have_four_digits() {
        let date = b"Sun, 06 Nov 1994 08:49:37 GMT";
        assert_eq!((format_date(784_111_777), parse_date(date)), (Some(*date), Some(784_111_777)));
        assert_eq!((format_date(-1), format_date(SECONDS_END)), (None, None));
        assert_eq!((parse_date(b"yesterday"), parse_date(b"\xe4")), (None, None));
    }
}
