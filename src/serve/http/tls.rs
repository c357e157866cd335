//! The arguments of TLS.

use super::host::HostArgs;
use super::listen::ListenOn;
use crate::values::timeout;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;
use twinring_services::http::{CertificateFiles, MinVersion, TlsSettings};

/// The certificate of the server, or of one host.
#[derive(Debug, Args)]
#[command(next_help_heading = "TLS")]
pub(super) struct CertificateArgs {
    /// PEM file with the certificate, followed by its chain to one that clients trust. SIGHUP reloads
    /// it and the key, for new connections. A [[host]] can have its own.
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// PEM file with its private key.
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
}

impl CertificateArgs {
    /// Certificate and key, if both are given.
    pub(super) fn files(&self) -> Option<CertificateFiles> {
        let (certificate, key) = (self.tls_cert.clone()?, self.tls_key.clone()?);
        Some(CertificateFiles { certificate, key })
    }

    /// The missing option, if only one is given.
    pub(super) fn missing(&self) -> Option<&'static str> {
        match (&self.tls_cert, &self.tls_key) {
            (Some(_), None) => Some("--tls-key FILE"),
            (None, Some(_)) => Some("--tls-cert FILE"),
            _ => None,
        }
    }
}

#[derive(Debug, Args)]
#[command(next_help_heading = "TLS")]
pub(super) struct TlsArgs {
    /// Address to listen on with TLS; may be given several times. Without --listen, the server then
    /// listens on no address without TLS.
    #[arg(long, value_name = "ADDR|systemd|fd:NAME")]
    pub(super) listen_tls: Vec<ListenOn>,
    #[command(flatten)]
    pub(super) certificate: CertificateArgs,
    /// Oldest version of TLS that clients may speak.
    #[arg(long, value_name = "1.2|1.3", default_value = "1.2")]
    tls_min_version: MinVersion,
    /// Reset a connection whose handshake takes longer.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = timeout)]
    pub(super) tls_handshake_timeout: Duration,
}

impl TlsArgs {
    /// The missing option: each of these requires the others. (clap cannot check that, because the
    /// configuration file may have them.)
    pub(super) fn missing(&self, hosts: &[HostArgs]) -> Option<&'static str> {
        let of_hosts = hosts.iter().any(|host| host.certificate.is_some());
        let CertificateArgs { tls_cert, tls_key } = &self.certificate;
        let any = of_hosts || tls_cert.is_some() || tls_key.is_some();
        match (self.listen_tls.is_empty(), any) {
            (true, false) => None,
            (true, true) => Some("--listen-tls ADDR"),
            (false, false) => Some("--tls-cert FILE"),
            (false, true) => self.certificate.missing(),
        }
    }

    /// The files that SIGHUP reloads.
    pub(super) fn files(&self, hosts: &[HostArgs]) -> Vec<PathBuf> {
        let of_hosts = hosts.iter().filter_map(|host| host.certificate.clone());
        let all = self.certificate.files().into_iter().chain(of_hosts);
        all.flat_map(|files| [files.certificate, files.key]).collect()
    }

    /// The certificates of the server and of hosts.
    pub(super) fn settings(&self, hosts: &[HostArgs]) -> TlsSettings {
        let of_host = |host: &HostArgs| Some((host.names.clone(), host.certificate.clone()?));
        TlsSettings {
            default: self.certificate.files(),
            hosts: hosts.iter().filter_map(of_host).collect(),
            min_version: self.tls_min_version,
            ..TlsSettings::default()
        }
    }
}
