//! The result line of `twinring load tcp`.

use serde::Deserialize;

use super::requests::RequestResult;

/// The schema of this line.
pub(super) const SCHEMA: &str = "twinring.load.tcp/1";

/// The result of `twinring load tcp`.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct TcpResult {
    pub(crate) settings: Settings,
    #[serde(flatten)]
    pub(crate) all: RequestResult,
    pub(crate) errors: Errors,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Settings {
    pub(crate) connections: u64,
    pub(crate) depth: u64,
    pub(crate) mode: String,
    pub(crate) verify: bool,
}

#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct Errors {
    pub(crate) connect: u64,
    pub(crate) reset: u64,
    pub(crate) closed_early: u64,
    pub(crate) timeout: u64,
    pub(crate) mismatch: u64,
    pub(crate) other: u64,
}

impl Errors {
    /// All but mismatches, which are judged on their own.
    pub(crate) fn failures(&self) -> u64 {
        self.connect + self.reset + self.closed_early + self.timeout + self.other
    }
}
