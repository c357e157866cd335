//! What is concluded from records of runs, and how it is told. No process is started here but editors of bundles,
//! and in `experiments` servers and load generators with known faults.

#[path = "../common/mod.rs"]
mod common;

mod checks;
mod compressed;
mod decisions;
mod experiments;
mod foreign_files;
mod pages;
mod tampering;
