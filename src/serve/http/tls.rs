//! The arguments of TLS, and the loading of certificates.

use super::super::timeout;
use crate::serve::notices;
use crate::values;
use clap::Args;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;
use twinring_services::http::{MinVersion, Tls, TlsError, TlsSettings};
use twinring_services::take_no_signals;

#[derive(Debug, Args)]
#[command(next_help_heading = "TLS")]
pub(super) struct TlsArgs {
    /// Address to listen on with TLS; may be given several times. Without --listen, the server then
    /// listens on no address without TLS.
    #[arg(long, value_name = "ADDR", value_parser = values::listen)]
    pub(super) listen_tls: Vec<SocketAddr>,
    /// PEM file with the certificate, followed by its chain to one that clients trust. SIGHUP reloads
    /// it and the key, for new connections.
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// PEM file with its private key.
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
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
    pub(super) fn missing(&self) -> Option<&'static str> {
        let given = [!self.listen_tls.is_empty(), self.tls_cert.is_some(), self.tls_key.is_some()];
        let missing = given.iter().position(|given| !given)?;
        let any = given.contains(&true);
        let names = ["--listen-tls ADDR", "--tls-cert FILE", "--tls-key FILE"];
        any.then(|| names[missing])
    }

    /// The files that SIGHUP reloads.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        self.tls_cert.iter().chain(&self.tls_key).cloned().collect()
    }

    /// TLS, if there is to be any.
    ///
    /// # Errors
    /// When certificate or key cannot be used.
    pub(super) fn tls(&self) -> Result<Option<Tls>, TlsError> {
        let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) else {
            return Ok(None);
        };
        let (certificate, key) = (certificate.clone(), key.clone());
        Tls::new(&TlsSettings { certificate, key, min_version: self.tls_min_version }).map(Some)
    }
}

/// Reloads certificate and key on request, on a separate thread: the filesystem
/// they are on may never answer.
pub(super) struct Reloader(SyncSender<()>);

impl Reloader {
    /// # Errors
    /// When the thread cannot be started.
    pub(super) fn start(tls: Tls) -> io::Result<Reloader> {
        // One request waits behind the one under way, and stands for all that come meanwhile.
        let (requests, received) = sync_channel(1);
        std::thread::Builder::new().name("certificates".to_owned()).spawn(move || {
            take_no_signals();
            received.iter().for_each(|()| reload(&tls));
        })?;
        Ok(Reloader(requests))
    }

    /// Returns at once.
    pub(super) fn request(&self) {
        let _one_waits_already = self.0.try_send(());
    }
}

/// Tells the operator how that went.
fn reload(tls: &Tls) {
    match tls.reload() {
        Ok(()) => notices::tell("twinring: certificate and key were reloaded".to_owned()),
        Err(error) => {
            notices::tell(format!("twinring: {error}; the previous certificate stays in use"));
        }
    }
}
