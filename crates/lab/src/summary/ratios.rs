//! The ratios of a comparison: of those metrics whose row in the table has one.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use serde_json::{Map, Value};

use super::metrics::Metric;
use crate::json;
use crate::statistics::Interval;

/// Ratios with their intervals, by metric. Each is above 1 where the subject is better.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Ratios(BTreeMap<Metric, Interval>);

impl Ratios {
    /// The ratios that there are.
    pub(super) fn of(ratio: impl Fn(Metric) -> Option<Interval>) -> Ratios {
        let ratio = |metric| Some((metric, ratio(metric)?));
        Ratios(Metric::ratios().into_iter().filter_map(ratio).collect())
    }

    pub(super) fn get(&self, metric: Metric) -> Option<&Interval> {
        self.0.get(&metric)
    }
}

impl Serialize for Ratios {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let metrics = Metric::ratios().into_iter();
        let field = |metric: Metric| Some((metric.ratio_field()?, self.get(metric)));
        serializer.collect_map(metrics.filter_map(field))
    }
}

impl<'de> Deserialize<'de> for Ratios {
    /// From the fields of a comparison; older ones lack some.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Ratios, D::Error> {
        let mut fields = Map::deserialize(deserializer)?;
        let mut ratios = BTreeMap::new();
        for metric in Metric::ratios() {
            let field = metric.ratio_field().unwrap_or_default();
            let Some(value) = fields.remove(field).filter(|it| *it != Value::Null) else {
                continue;
            };
            let wrong = |error| D::Error::custom(format_args!("{field}: {error}"));
            ratios.insert(metric, json::from_value(&value).map_err(wrong)?);
        }
        Ok(Ratios(ratios))
    }
}
