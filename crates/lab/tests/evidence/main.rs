//! What is concluded from records of runs, and how it is told. No process is started here but browsers,
//! editors of bundles, and in `experiments` servers and load generators with known faults.

#[path = "../common/mod.rs"]
mod common;

mod aa;
mod audits;
mod compare;
mod compressed;
mod counts;
mod experiments;
mod foreign_files;
mod hosts;
mod http_verdicts;
mod many_verdicts;
mod occasions;
mod placements;
mod prices;
mod published;
mod report;
mod report_browser;
mod tampering;
mod udp_verdicts;
mod verdicts;
mod warnings;
