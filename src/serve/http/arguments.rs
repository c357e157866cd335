//! The arguments of `twinring serve http`: what people type. Everything else is a key of the configuration file.

use super::listen::ListenOn;
use crate::engine_args::EngineArgs;
use crate::serve::admin::AdminArgs;
use crate::serve::report::OutputArgs;
use crate::serve::sandbox::SandboxArgs;
use crate::serve::user::UserArgs;
use clap::Args;
use std::path::PathBuf;
use twinring_input::quantity::Count;
use twinring_services::http::{LogTarget, listing};

#[derive(Clone, Debug, Default, Args)]
pub(crate) struct HttpArgs {
    /// TOML file with [server], [[site]] and [[site.rule]]: sites, header fields, redirects, passwords, limits,
    /// timeouts. The command line takes precedence. SIGHUP reloads the sites, all or nothing.
    #[arg(long, value_name = "FILE", help_heading = "Operation")]
    pub(super) config: Option<PathBuf>,
    /// Check arguments, configuration file, directories, certificates and rights, as the user of the running server,
    /// print the effective rules of each site, and exit.
    #[arg(long, help_heading = "Operation")]
    pub(super) check: bool,
    /// Directory whose files are served to hosts without a [[site]] of their own. Files and directories that begin
    /// with a dot are not served, except for `/.well-known/`.
    #[arg(long, value_name = "DIR")]
    pub(super) root: Option<PathBuf>,
    /// List directories without an index file.
    #[arg(long, value_name = "html|off", value_parser = listing)]
    pub(super) listing: Option<bool>,
    /// Address to listen on; may be given several times, for IPv4 and IPv6 (`[::1]:8080`). `fd:NAME` is
    /// a socket that systemd passes, by its FileDescriptorName, and `systemd` are all passed ones
    /// that no option names. [default: 127.0.0.1:8080, without --listen-tls]
    #[arg(long, value_name = "ADDR|systemd|fd:NAME", help_heading = "Listening")]
    pub(super) listen: Vec<ListenOn>,
    /// Address to listen on with TLS; may be given several times.
    #[arg(long, value_name = "ADDR|systemd|fd:NAME", help_heading = "Listening")]
    pub(super) listen_tls: Vec<ListenOn>,
    /// PEM file with the certificate, followed by its chain to one that clients trust. SIGHUP reloads it and the key,
    /// for new connections.
    #[arg(long, value_name = "FILE", help_heading = "Listening")]
    pub(super) tls_cert: Option<PathBuf>,
    /// PEM file with its private key.
    #[arg(long, value_name = "FILE", help_heading = "Listening")]
    pub(super) tls_key: Option<PathBuf>,
    /// Concurrent requests of a connection of HTTP/2. [default: 100]
    #[arg(long, value_name = "N", help_heading = "Listening")]
    pub(super) http2_streams: Option<Count<1, 10_000>>,
    #[command(flatten)]
    pub(super) engine: EngineArgs,
    #[command(flatten)]
    pub(super) admin: AdminArgs,
    #[command(flatten)]
    pub(super) user: UserArgs,
    /// Append a line for each request to this file, or to standard output (`-`). SIGHUP and SIGUSR1
    /// reopen the file, after it was renamed.
    #[arg(long, value_name = "FILE|-", help_heading = "Operation")]
    pub(super) access_log: Option<LogTarget>,
    #[command(flatten)]
    pub(super) sandbox: SandboxArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}
