//! What is concluded from records of runs, and how it is told: no process is started here but
//! browsers and editors of bundles.

#[path = "../common/mod.rs"]
mod common;

mod aa;
mod audits;
mod compare;
mod compressed;
mod counts;
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
