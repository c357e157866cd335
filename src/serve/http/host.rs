//! A virtual host of the configuration file.

use super::site::SiteArgs;
use twinring_services::http::{CertificateFiles, HostName};

/// A virtual host of the file.
#[derive(Debug)]
pub(crate) struct HostArgs {
    /// `FILE:LINE: `, where it begins.
    pub(super) place: String,
    pub(super) names: Vec<HostName>,
    pub(super) site: SiteArgs,
    /// Its own certificate, if it has one.
    pub(super) certificate: Option<CertificateFiles>,
}
