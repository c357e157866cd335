//! Every metric, in one table. What is read from a run, how several runs are put together, the tables
//! of the reports, the CSV, `lab compare` with its gates and the documentation follow from it.

use std::fmt;

use serde::{Serialize, Serializer};

use super::reading::Reading;
use crate::experiment::Protocol;
use crate::workload::Table;

/// Makes the table. Rows of `pairs` are two metrics, of the server's side and of the client's.
macro_rules! metrics {
    (single { $(
        $id:ident $path:literal $(= $alias:literal)? ($unit:ident $better:ident $several:ident)
            [$($tables:ident $title:literal $below:literal),*]
            $(ratio $place:literal $ratio:literal $of_ratio:literal $shown:ident;)?
            $about:literal |$it:ident| $read:expr;
    )* }
    pairs { $(
        $server:ident $client:ident $field:ident ($of_unit:ident $of_better:ident $of_several:ident)
            [$($of_title:literal $of_below:literal)?] $of_about:literal;
    )* }) => {
        /// A metric of a run.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Metric {
            $(#[doc = $about] $id,)*
            $(#[doc = concat!("The server's side. ", $of_about)] $server,
              #[doc = concat!("The client's side. ", $of_about)] $client,)*
        }

        /// Every metric, in the order of the reports.
        pub const METRICS: &[Metric] =
            &[$(Metric::$id,)* $(Metric::$server, Metric::$client,)*];

        /// What both sides have: of the server, of the client.
        pub(crate) const SIDES: &[[Metric; 2]] = &[$([Metric::$server, Metric::$client]),*];

        pub(super) static ROWS: &[Row] = &[$(
            Row {
                path: $path,
                alias: concat!($($alias)?),
                unit: Unit::$unit,
                better: Better::$better,
                several: Several::$several,
                columns: &[$(Column { tables: $tables, title: $title, below: $below }),*],
                ratio: last(&[None $(, Some(Ratio {
                    place: $place,
                    field: $ratio,
                    title: $of_ratio,
                    shown: Shown::$shown,
                }))?]),
                about: $about,
                read: |$it: &Reading<'_>| Into::<Option<f64>>::into($read),
            },
        )* $(
            Row {
                path: concat!("server.", stringify!($field)),
                alias: "",
                unit: Unit::$of_unit,
                better: Better::$of_better,
                several: Several::$of_several,
                columns: &[$(Column { tables: SIDES_TABLE, title: $of_title, below: $of_below })?],
                ratio: None,
                about: $of_about,
                read: |it: &Reading<'_>| Some(it.server.$field),
            },
            Row {
                path: concat!("client.", stringify!($field)),
                alias: "",
                unit: Unit::$of_unit,
                better: Better::$of_better,
                several: Several::$of_several,
                columns: &[],
                ratio: None,
                about: $of_about,
                read: |it: &Reading<'_>| Some(it.client.$field),
            },
        )*];
    };
}

mod row;
mod table;

pub use row::Better;
use row::{Ratio, Row, Shown};
pub(crate) use row::{Several, Unit};
use table::ROWS;
pub(crate) use table::SIDES;
pub use table::{METRICS, Metric};

/// The parts of the busy time of a side, from `user_ns` to `outside_ns`, which add up to it: of the
/// server, of the client.
pub const PARTS: &[[Metric; 2]] = SIDES.split_at(1).1.split_at(6).0;

impl Metric {
    fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// The metric of this name or field.
    pub(crate) fn named(name: &str) -> Option<Metric> {
        let is_it = |it: &Metric| it.name() == name || it.field() == name;
        METRICS.iter().copied().find(is_it)
    }

    /// The group of its field in `figures` of a bundle, if it is in one, and its key there.
    pub(super) fn place(self) -> (Option<&'static str>, &'static str) {
        let path = self.row().path;
        path.split_once('.').map_or((None, path), |(group, key)| (Some(group), key))
    }

    /// Whether only some runs have it, together with others.
    pub(crate) fn is_grouped(self) -> bool {
        self.place().0.is_some()
    }

    /// Its field in `figures` of a bundle, as `server.user_ns`; what is in `counts` goes without that.
    pub fn field(self) -> &'static str {
        let path = self.row().path;
        path.strip_prefix("counts.").unwrap_or(path)
    }

    /// Its name in `lab compare`: that of its field, if it has no shorter one.
    pub fn name(self) -> &'static str {
        if self.is_headline() { self.row().alias } else { self.field() }
    }

    /// Whether `lab compare` shows it even if it did not change.
    pub(crate) fn is_headline(self) -> bool {
        !self.row().alias.is_empty()
    }

    /// Which way it has to change to be better.
    pub fn better(self) -> Better {
        self.row().better
    }

    /// What it says.
    pub fn about(self) -> &'static str {
        self.row().about
    }

    pub(crate) fn unit(self) -> Unit {
        self.row().unit
    }

    /// Its unit in words.
    pub(crate) fn unit_text(self, protocol: Protocol) -> String {
        self.unit().text().replace("unit", protocol.unit())
    }

    pub(super) fn several(self) -> Several {
        self.row().several
    }

    /// Whether there is such a metric of this protocol.
    pub(crate) fn is_of(self, protocol: Protocol) -> bool {
        let Some(group) = self.place().0 else { return true };
        let has = |protocol: Protocol| protocol.workload().figures.contains(&group);
        has(protocol) || !Protocol::ALL.iter().any(|it| has(*it))
    }

    /// Whether packets that were lost, and sent again after a while, are in it.
    pub(crate) fn is_latency(self) -> bool {
        self.unit() == Unit::Us && !matches!(self.place().0, Some("datagrams" | "open_loop"))
    }

    /// Whether it says nothing about the server once the load generator is the bottleneck.
    pub(crate) fn is_of_the_load_too(self) -> bool {
        let is_rate = matches!(self.unit(), Unit::UnitsPerS | Unit::BytesPerS);
        is_rate || self.is_latency() || self.place().0 == Some("open_loop")
    }

    /// What a run has of it.
    pub(super) fn read(self, run: &Reading<'_>) -> Option<f64> {
        (self.row().read)(run).filter(|value| value.is_finite())
    }

    /// Metrics of which a comparison has the ratio, in the order of the reports.
    pub(crate) fn ratios() -> Vec<Metric> {
        let place = |metric: &Metric| metric.row().ratio.map(|ratio| ratio.place);
        let mut metrics: Vec<Metric> =
            METRICS.iter().copied().filter(|it| place(it).is_some()).collect();
        metrics.sort_by_key(place);
        metrics
    }

    /// Its field in a comparison, if that has its ratio.
    pub(crate) fn ratio_field(self) -> Option<&'static str> {
        self.row().ratio.map(|ratio| ratio.field)
    }

    /// The title of its ratio, if the reports show that for this protocol.
    pub(crate) fn ratio_title(self, protocol: Protocol) -> Option<String> {
        let Ratio { title, shown, .. } = self.row().ratio?;
        let workload = protocol.workload();
        let is_shown = match shown {
            Shown::Always => true,
            Shown::OnSchedule => workload.on_schedule,
            Shown::OffSchedule => !workload.on_schedule,
        };
        let latency = workload.latency.to_lowercase();
        is_shown.then(|| title.replace("unit", workload.unit).replace("latency", &latency))
    }

    /// The columns of tables of the reports: metric, title, and the line below it.
    pub(crate) fn columns(
        tables: &[Table],
    ) -> impl Iterator<Item = (Metric, &'static str, &'static str)> {
        METRICS.iter().flat_map(move |metric| {
            let columns = metric
                .row()
                .columns
                .iter()
                .filter(move |it| it.tables.iter().any(|it| tables.contains(it)));
            columns.map(|it| (*metric, it.title, it.below))
        })
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Metric {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_different_and_lead_back() {
        let mut names = BTreeSet::new();
        for metric in METRICS {
            assert_eq!(Metric::named(metric.name()), Some(*metric));
            assert_eq!(Metric::named(metric.field()), Some(*metric));
            assert!(names.insert(metric.row().path), "{metric}");
            let is_word = |c: char| c.is_ascii_alphanumeric() || "._".contains(c);
            assert!(metric.name().chars().all(is_word), "{metric}");
        }
        assert_eq!(Metric::named("speed"), None);
        assert_eq!(Metric::Drops.name(), "drops");
        assert_eq!(Metric::ServerCpuNs.unit_text(Protocol::Udp), "ns/packet");
    }

    /// The documentation of these fields of `figures`.
    fn documented(group: Option<&str>) -> String {
        let mut text =
            "| field | content | better | of several runs |\n|---|---|---|---|\n".to_owned();
        for metric in METRICS.iter().filter(|it| it.place().0 == group) {
            let better = match metric.better() {
                Better::Less => "less",
                Better::More => "more",
                Better::Neither => "",
            };
            let several = match metric.several() {
                Several::Median => "median",
                Several::Mean => "mean",
                Several::Part => "mean share",
            };
            let (key, about) = (metric.place().1, metric.about());
            text += &format!("| `{key}` | {about} | {better} | {several} |\n");
        }
        text
    }

    #[test]
    fn every_metric_is_documented() {
        let document = include_str!("../../../../docs/bundle.md");
        assert_eq!(documented(Some("server")), documented(Some("client")));
        for group in METRICS.iter().map(|metric| metric.place().0).collect::<BTreeSet<_>>() {
            let table = documented(group);
            assert!(document.contains(&table), "docs/bundle.md lacks this of {group:?}:\n{table}");
        }
        let mut ratios = "| field | ratio of |\n|---|---|\n".to_owned();
        for metric in Metric::ratios() {
            let field = metric.ratio_field().unwrap();
            ratios += &format!("| `{field}` | `{}` |\n", metric.field());
        }
        assert!(document.contains(&ratios), "docs/bundle.md lacks this table:\n{ratios}");
        let gates = include_str!("../../../../docs/statistics.md");
        for metric in METRICS.iter().filter(|it| it.is_headline()) {
            let named = format!("`{}` (`{}`)", metric.name(), metric.field());
            assert!(gates.contains(&named), "docs/statistics.md lacks {named}");
        }
    }
}
