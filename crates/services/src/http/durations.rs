//! Durations of requests as a histogram, by host and by class of the status.
//!
//! A duration is from the end of a request's head to when its answer was handed over for sending, to
//! the kernel or to the queue of its connection. Without an observer of the service nothing is measured.

use super::Status;
use super::hosts::Sites;
use crate::server::Count;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Upper bounds of the buckets, in microseconds; a last one has the rest.
pub(super) const BOUNDS_US: [u64; 14] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 10_000_000,
];

/// Classes of status that answers have: 2xx, 3xx, 4xx and 5xx.
pub(super) const CLASSES: [&str; 4] = ["2xx", "3xx", "4xx", "5xx"];

/// Hosts that are told apart, since the start. Requests for further ones count for the default site.
const HOSTS_MAX: usize = 100;

/// The label of the site for hosts without one of their own.
const DEFAULT_HOST: &str = "*";

/// The label of requests for which there is no site, and of invalid ones.
const NO_HOST: &str = "";

/// The durations of one host on one worker.
#[derive(Debug, Default)]
pub(super) struct HostDurations {
    classes: [ClassDurations; CLASSES.len()],
}

/// Those of one class of status.
#[derive(Debug, Default)]
struct ClassDurations {
    /// Each without those of the buckets before it.
    buckets: [Count; BOUNDS_US.len() + 1],
    sum_us: Count,
}

impl HostDurations {
    pub(super) fn observe(&self, status: Status, duration: Duration) {
        let class = usize::from(status.as_u16() / 100).clamp(2, 5) - 2;
        let class = &self.classes[class];
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        // Nearly all are in the first buckets.
        let bucket = BOUNDS_US.iter().position(|bound| us <= *bound).unwrap_or(BOUNDS_US.len());
        class.buckets[bucket].add(1);
        class.sum_us.add(us);
    }
}

/// The histograms of one worker, which writes them; others read them.
#[derive(Debug, Default)]
pub(super) struct WorkerDurations {
    hosts: Mutex<Vec<(String, Arc<HostDurations>)>>,
}

impl WorkerDurations {
    /// Those of each site, by its number, and behind them those of requests without a site.
    pub(super) fn of_sites(&self, sites: &Sites) -> Vec<Arc<HostDurations>> {
        let labels = (0..sites.count()).map(|number| sites.name(number));
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        let mut find = |label: &str| {
            let label =
                if hosts.len() < HOSTS_MAX || label == NO_HOST { label } else { DEFAULT_HOST };
            match hosts.iter().find(|(known, _)| known == label) {
                Some((_, durations)) => Arc::clone(durations),
                None => {
                    hosts.push((label.to_owned(), Arc::default()));
                    Arc::clone(&hosts[hosts.len() - 1].1)
                }
            }
        };
        let of_sites = labels.map(|label| find(label.as_deref().unwrap_or(DEFAULT_HOST)));
        let mut all: Vec<_> = of_sites.collect();
        all.push(find(NO_HOST));
        all
    }
}

/// The sum of all workers, for one host and class.
pub(super) struct Summed {
    pub(super) host: String,
    pub(super) class: &'static str,
    /// Each without those of the buckets before it.
    pub(super) buckets: [u64; BOUNDS_US.len() + 1],
    pub(super) sum_us: u64,
}

/// The sums of those hosts and classes that had requests, by host and class.
pub(super) fn sum<'a>(workers: impl Iterator<Item = &'a WorkerDurations>) -> Vec<Summed> {
    let mut sums: Vec<Summed> = Vec::new();
    for worker in workers {
        let hosts = worker.hosts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (host, durations) in hosts {
            for (class, counted) in CLASSES.iter().zip(&durations.classes) {
                add(&mut sums, &host, class, counted);
            }
        }
    }
    sums.sort_by(|a, b| (&a.host, a.class).cmp(&(&b.host, b.class)));
    sums
}

fn add(sums: &mut Vec<Summed>, host: &str, class: &'static str, counted: &ClassDurations) {
    let buckets = counted.buckets.each_ref().map(Count::get);
    if buckets.iter().all(|count| *count == 0) {
        return;
    }
    let at = sums.iter().position(|sum| sum.host == host && sum.class == class);
    let at = at.unwrap_or_else(|| {
        let (host, buckets) = (host.to_owned(), [0; BOUNDS_US.len() + 1]);
        sums.push(Summed { host, class, buckets, sum_us: 0 });
        sums.len() - 1
    });
    let sum = &mut sums[at];
    sum.buckets.iter_mut().zip(buckets).for_each(|(sum, count)| *sum += count);
    sum.sum_us += counted.sum_us.get();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::hosts::{HostName, Site};

    #[test]
    fn durations_are_in_the_first_bucket_that_holds_them() {
        let worker = WorkerDurations::default();
        let mut sites = Sites::new(Some(Site::without_files()));
        let names: [HostName; 2] = ["b.org".parse().unwrap(), "a.org".parse().unwrap()];
        sites.add(&names, Site::without_files()).unwrap();
        let hosts = worker.of_sites(&sites);
        assert_eq!(hosts.len(), 3);
        for us in [0, 100, 101, 10_000_000, 10_000_001] {
            hosts[1].observe(Status::OK, Duration::from_micros(us));
        }
        hosts[0].observe(Status::NOT_FOUND, Duration::from_micros(600));
        hosts[2].observe(Status::BAD_REQUEST, Duration::MAX);
        let sums = sum([&worker, &WorkerDurations::default()].into_iter());
        let series: Vec<_> = sums.iter().map(|sum| (sum.host.as_str(), sum.class)).collect();
        assert_eq!(series, [("", "4xx"), ("*", "4xx"), ("b.org", "2xx")]);
        let buckets = sums[2].buckets;
        assert_eq!((buckets[0], buckets[1], buckets[13], buckets[14]), (2, 1, 1, 1));
        assert_eq!(sums[1].sum_us, 600);
    }

    /// Each reload may bring others.
    #[test]
    fn hosts_have_a_bound() {
        let worker = WorkerDurations::default();
        for number in 0..2 * HOSTS_MAX {
            let mut sites = Sites::new(None);
            let name: HostName = format!("h{number}.org").parse().unwrap();
            sites.add(&[name], Site::without_files()).unwrap();
            let hosts = worker.of_sites(&sites);
            hosts[0].observe(Status::OK, Duration::ZERO);
        }
        let sums = sum(std::iter::once(&worker));
        assert!(sums.len() <= HOSTS_MAX + 2, "{}", sums.len());
        let of_others = sums.iter().find(|sum| sum.host == DEFAULT_HOST).unwrap();
        assert!(of_others.buckets[0] >= HOSTS_MAX as u64);
    }
}
