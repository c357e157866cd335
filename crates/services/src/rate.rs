//! Limits the datagrams, or the requests, per second of one source: an IPv4 address or an IPv6 network of 64 bits, since a
//! client has all addresses and ports of its own.
//!
//! Not the crate governor: the memory of its keyed limiters has no bound, and it brings eight more crates.
//!
//! For each source there is one time: when its used allowance is whole again (the generic cell rate algorithm, ITU-T
//! I.371). A datagram advances it by one interval, and is refused if it is further ahead than a burst. At most
//! [`SOURCES_MAX`] sources are kept, in two generations; the older one is discarded when the younger one is full, or has
//! been filled for longer than a burst lasts: a source that was idle for that long has its whole allowance again. Only an
//! attacker that forges more than half of [`SOURCES_MAX`] sources within that time makes others get one more burst.

use crate::server::network_of;
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Instant;

/// Sources that a limit remembers.
pub(crate) const SOURCES_MAX: usize = 65_536;

#[derive(Debug)]
pub(crate) struct RateLimit {
    interval_ns: u64,
    burst_ns: u64,
    origin: Instant,
    young_since_ns: u64,
    young: HashMap<IpAddr, u64>,
    old: HashMap<IpAddr, u64>,
}

impl RateLimit {
    /// At most `per_second` per second, at least one, in bursts of up to `burst`.
    pub(crate) fn new(per_second: u32, burst: u32, now: Instant) -> RateLimit {
        let per_second = per_second.max(1);
        let interval_ns = 1_000_000_000 / u64::from(per_second);
        RateLimit {
            interval_ns,
            burst_ns: interval_ns * u64::from(burst),
            origin: now,
            young_since_ns: 0,
            young: HashMap::new(),
            old: HashMap::new(),
        }
    }

    /// True if `datagrams`, or requests, of `source` may be answered now; they are counted then.
    pub(crate) fn admits(&mut self, source: IpAddr, datagrams: usize, now: Instant) -> bool {
        let now_ns = now.saturating_duration_since(self.origin).as_nanos() as u64;
        if self.young.len() >= SOURCES_MAX / 2 || now_ns - self.young_since_ns > self.burst_ns {
            self.old = std::mem::take(&mut self.young);
            self.young_since_ns = now_ns;
        }
        let source = network_of(source);
        let whole_at = self.young.get(&source).or_else(|| self.old.get(&source));
        let whole_at = whole_at.map_or(now_ns, |moment| now_ns.max(*moment));
        let next = whole_at.saturating_add(self.interval_ns.saturating_mul(datagrams as u64));
        let admitted = next - now_ns <= self.burst_ns;
        // A refused source is remembered, too; otherwise it would be forgotten, and its debt with
        // it, sooner.
        self.young.insert(source, if admitted { next } else { whole_at });
        admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use std::time::Duration;

    fn source(number: u32) -> IpAddr {
        IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + number))
    }

    #[test]
    fn a_source_gets_its_burst_and_then_its_rate() {
        let start = Instant::now();
        let mut limit = RateLimit::new(1000, 100, start);
        let admitted = (0..1000).filter(|_| limit.admits(source(1), 1, start)).count();
        assert_eq!(admitted, 100);
        // Another source is not affected; an IPv6 network is one.
        assert!(limit.admits(source(2), 1, start));
        let address = |last: u16| format!("2001:db8::{last:x}").parse().expect("an address");
        let admitted = (0..200).filter(|last| limit.admits(address(*last), 1, start)).count();
        assert_eq!(admitted, 100);
        let later = start + Duration::from_millis(20);
        let admitted = (0..1000).filter(|_| limit.admits(source(1), 1, later)).count();
        assert_eq!(admitted, 20);
        let idle = start + Duration::from_secs(5);
        assert!(limit.admits(source(1), 100, idle));
        assert!(!limit.admits(source(1), 1, idle));
    }

    #[test]
    fn remembered_sources_are_bounded_and_expire() {
        let start = Instant::now();
        let mut limit = RateLimit::new(10, 64, start);
        let burst = Duration::from_nanos(limit.burst_ns);
        let sources = |limit: &RateLimit| limit.young.len() + limit.old.len();
        for number in 0..3 * SOURCES_MAX as u32 {
            limit.admits(source(number), 1, start);
            assert!(sources(&limit) <= SOURCES_MAX);
        }
        let later = start + 2 * burst;
        limit.admits(source(1), 1, later);
        limit.admits(source(1), 1, later + 2 * burst);
        assert!(sources(&limit) <= 2, "{}", sources(&limit));
    }
}
