//! Experiments of the first version, which knew TCP only: `[axes]` and `[load]` in place of
//! `[tcp]`. Files and bundles that have them stay readable.

use crate::placement::Wanted;
use serde::Deserialize;

use super::choices::{Accounting, NetChoice, Pin};
use super::{AnswersInTime, TcpGrid};
use super::{Correction, EXPERIMENT_SCHEMA, Experiment, Subject};

/// The schema of this version.
pub(super) const SCHEMA: &str = "twinring.lab.experiment/1";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExperimentV1 {
    #[serde(rename = "schema")]
    _schema: String,
    name: String,
    #[serde(default)]
    about: String,
    pairs: usize,
    #[serde(default)]
    spare_pairs: usize,
    #[serde(default)]
    net: NetChoice,
    #[serde(default)]
    accounting: Accounting,
    warmup_s: f64,
    window_s: f64,
    axes: Axes,
    load: Load,
    subjects: Vec<Subject>,
}

fn one() -> Vec<u32> {
    vec![1]
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Axes {
    connections: Vec<u32>,
    message_bytes: Vec<u32>,
    #[serde(default = "one")]
    depth: Vec<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Load {
    command: Vec<String>,
}

impl From<ExperimentV1> for Experiment {
    fn from(old: ExperimentV1) -> Experiment {
        let Axes { connections, message_bytes, depth } = old.axes;
        let tcp = TcpGrid {
            connections,
            message_bytes,
            depth,
            rate_per_s: vec![0],
            churn: vec![0],
            keeps_up: AnswersInTime::default(),
            warmup_s: None,
            window_s: None,
            load: old.load.command,
        };
        Experiment {
            schema: EXPERIMENT_SCHEMA.to_owned(),
            name: old.name,
            about: old.about,
            pairs: old.pairs,
            spare_pairs: old.spare_pairs,
            until: None,
            correction: Correction::None,
            net: old.net,
            accounting: old.accounting,
            placement: Wanted::Any,
            pin: Pin::default(),
            warmup_s: old.warmup_s,
            window_s: old.window_s,
            tcp: Some(tcp),
            udp: None,
            http: None,
            subjects: old.subjects,
            published: Vec::new(),
            not_reproduced: Vec::new(),
        }
    }
}
