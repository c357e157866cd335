//! The lab of Twinring: paired experiments on processes, with intervals, audits and bundles.
//!
//! The lab starts programs and reads what they print; it does not depend on their code. An
//! [`Experiment`] names the subjects and, for TCP, UDP and HTTP, the grid of cells. [`run`] measures
//! every cell in interleaved pairs, audits every run, and writes a bundle: a directory with the raw
//! data, the figures and verdicts computed from them, and reports. [`verify`] computes everything
//! again from the raw data; [`rerender`] renders it again. `docs/method.md` explains the method, and
//! ARCHITECTURE.md names the files on the path of a figure, from `lab.rs` to `report/`.

pub mod accounting;
pub mod analysis;
mod available;
mod bundle;
mod calibration;
pub mod certificate;
mod cpus;
mod diff;
mod error;
mod estimate;
mod experiment;
mod gate;
mod lab;
mod machine;
mod merge;
mod namespace;
mod net;
pub mod noise;
pub mod peers;
mod placement;
mod plan;
mod prices;
mod process;
mod procfs;
mod progress;
pub mod record;
mod report;
pub mod result;
mod runner;
mod site;
mod stop;
mod verify;
mod words;
mod workload;

pub use cpus::{CpuList, Cpus, Pin};
pub use diff::{Diff, diff};
pub use error::LabError;
pub use estimate::how_long;
pub use experiment::{
    Arrivals, Axis, BUILT_IN, Cell, EXPERIMENT_BYTES_MAX, EXPERIMENT_SCHEMA, Experiment, Grid,
    NetChoice, NetKind, Point, Printed, Protocol, Published, PublishedAgainst, PublishedDatagrams,
    Ready, Slo, Subject, UnderTest, Via, built_in,
};
pub use gate::{Gate, Gated, Verdict, gates_exit_code};
pub use lab::{Outcome, RunOptions, json_line, run};
pub use machine::{Fingerprint, Program};
pub use merge::{add, merge};
pub use net::NetRecord;
pub use placement::{Distance, Placement};
pub use prices::{Price, PriceRecord};
pub use process::{Exit, helper};
pub use report::{first_page, full, lines_of, markdown, wrapped};
pub use stop::Stop;
pub use twinring_statistics as statistics;
pub use verify::{Verification, is_bundle, recomputed, rerender, verify};
pub use words::load_options;

#[cfg(test)]
mod schema;
