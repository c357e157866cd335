//! The figures of a run, or of several together: the value of each metric that they have.

use std::fmt;
use std::ops::Index;

use hdrhistogram::Histogram;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use serde_json::{Map, Value};

use super::metrics::{METRICS, Metric, Several};
use super::reading::Reading;
use crate::record::RunRecord;
use crate::statistics::median;

/// The figures of one run, or of several together. A unit is a request that was answered, or a packet
/// that came back.
#[derive(Clone, PartialEq)]
pub struct Figures(Vec<Option<f64>>);

impl Figures {
    /// The figures that have these values.
    pub(super) fn of(value: impl FnMut(Metric) -> Option<f64>) -> Figures {
        Figures(METRICS.iter().copied().map(value).collect())
    }

    /// The value of a metric, if it is known.
    pub fn get(&self, metric: Metric) -> Option<f64> {
        self.0[metric as usize]
    }

    /// Every metric that is known, with its value.
    pub fn iter(&self) -> impl Iterator<Item = (Metric, f64)> {
        METRICS.iter().zip(&self.0).filter_map(|(metric, value)| Some((*metric, (*value)?)))
    }

    /// Those of several runs together; nothing of none.
    pub(super) fn together(runs: &[&Figures]) -> Option<Figures> {
        let values = |metric: Metric| runs.iter().filter_map(move |run| run.get(metric));
        let mean = |metric: Metric| {
            let values: Vec<f64> = values(metric).collect();
            (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
        };
        let part = |metric: Metric, busy: Metric| {
            let busy_runs = runs.iter().filter(|run| run[busy] > 0.0);
            let shares: Vec<f64> =
                busy_runs.filter_map(|run| Some(run.get(metric)? / run[busy])).collect();
            Some(median(values(busy))? * shares.iter().sum::<f64>() / shares.len().max(1) as f64)
        };
        let value = |metric: Metric| match metric.several() {
            Several::Median => median(values(metric)),
            Several::Mean => mean(metric),
            Several::Part if metric.place().0 == Some("client") => {
                part(metric, Metric::ClientSideBusyNs)
            }
            Several::Part => part(metric, Metric::ServerSideBusyNs),
        };
        (!runs.is_empty()).then(|| Figures::of(value))
    }
}

/// A run's figures and the histograms behind them.
pub(super) struct Read {
    pub(super) figures: Figures,
    pub(super) latencies: Histogram<u64>,
    pub(super) lateness: Option<Histogram<u64>>,
}

/// The figures of one run, whether it counts or not.
pub(crate) fn figures_of(run: &RunRecord) -> Option<Figures> {
    read(run).map(|read| read.figures)
}

/// The figures of one run and its histograms, if it has everything they need.
pub(super) fn read(run: &RunRecord) -> Option<Read> {
    let reading = Reading::of(run)?;
    let figures = Figures::of(|metric| metric.read(&reading));
    Some(Read { figures, latencies: reading.latencies, lateness: reading.lateness })
}

impl Index<Metric> for Figures {
    type Output = f64;

    /// The value of a metric; what is not known is not a number.
    fn index(&self, metric: Metric) -> &f64 {
        self.0[metric as usize].as_ref().unwrap_or(&f64::NAN)
    }
}

impl fmt::Debug for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter().map(|(metric, value)| (metric.field(), value))).finish()
    }
}

impl Serialize for Figures {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut all = Map::new();
        for metric in METRICS {
            let value = self.get(*metric);
            match metric.place() {
                (None, key) => drop(all.insert(key.to_owned(), value.into())),
                (Some(_), _) if value.is_none() => {}
                (Some(group), key) => {
                    let group = all.entry(group).or_insert_with(|| Value::Object(Map::new()));
                    group[key] = value.into();
                }
            }
        }
        all.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Figures {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Figures, D::Error> {
        let all = Map::deserialize(deserializer)?;
        let mut values = Vec::with_capacity(METRICS.len());
        for metric in METRICS {
            let value = match metric.place() {
                (None, key) => all.get(key),
                (Some(group), key) => all.get(group).and_then(|group| group.get(key)),
            };
            values.push(match value {
                None | Some(Value::Null) => None,
                Some(value) => Some(value.as_f64().ok_or_else(|| {
                    D::Error::custom(format_args!("the figure {} is no number", metric.field()))
                })?),
            });
        }
        Ok(Figures(values))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_as_they_are_written() {
        let some = Figures::of(|metric| {
            (metric.place().0 != Some("memory")).then_some(metric as usize as f64 / 3.0)
        });
        let text = serde_json::to_string(&some).unwrap();
        assert_eq!(serde_json::from_str::<Figures>(&text).unwrap(), some);
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["counts"]["drops"], some[Metric::Drops]);
        assert!(value.get("memory").is_none() && some[Metric::RssBytes].is_nan());
        // As of servers that count no system calls.
        let few = serde_json::from_str::<Figures>(r#"{"server_syscalls":null}"#).unwrap();
        assert_eq!(few.iter().count(), 0);
        let bad = serde_json::from_str::<Figures>(r#"{"client":{"busy_ns":"x"}}"#).unwrap_err();
        assert!(bad.to_string().contains("client.busy_ns is no number"), "{bad}");
    }

    #[test]
    fn several_runs_are_put_together_as_their_metrics_say() {
        let run = |busy: f64, user: f64, drops: Option<f64>| {
            Figures::of(|metric| match metric {
                Metric::ServerSideBusyNs => Some(busy),
                Metric::ServerSideUserNs => Some(user),
                Metric::ServerSideOutsideNs => Some(busy - user),
                Metric::Drops => drops,
                _ => None,
            })
        };
        let runs = [run(10.0, 5.0, Some(3.0)), run(20.0, 5.0, None), run(90.0, 90.0, Some(0.0))];
        let all = Figures::together(&runs.iter().collect::<Vec<_>>()).unwrap();
        assert_eq!((all[Metric::ServerSideBusyNs], all[Metric::Drops]), (20.0, 1.5));
        let parts = all[Metric::ServerSideUserNs] + all[Metric::ServerSideOutsideNs];
        assert!((parts - 20.0).abs() < 1e-9, "{all:?}");
        assert_eq!(Figures::together(&[]), None);
    }
}
