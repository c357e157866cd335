//! The settings of a server: those of the command line, and of `[server]` for what it does not say.

use super::arguments::HttpArgs;
use super::config::Keys;
use super::listen::ListenOn;
use super::moved::names_of;
use crate::engine_args::EngineArgs;
use crate::serve::admin::AdminArgs;
use crate::serve::report::OutputArgs;
use crate::serve::sandbox::SandboxArgs;
use crate::serve::user::UserArgs;
use serde::Deserialize;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use twinring_input::quantity::Count;
use twinring_services::http::text::{optional, several};
use twinring_services::http::{HttpSettings, LogSettings, MinVersion};

/// Where a server listens unless it is said.
const LISTEN: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 8080);

#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) listening: Listening,
    pub(super) engine: EngineArgs,
    pub(super) admin: AdminArgs,
    pub(super) user: UserArgs,
    pub(super) sandbox: SandboxArgs,
    pub(super) output: OutputArgs,
    pub(super) log: LogSettings,
    /// Without sites.
    pub(super) http: HttpSettings,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Listening {
    #[serde(deserialize_with = "several")]
    pub(super) listen: Vec<ListenOn>,
    #[serde(deserialize_with = "several")]
    pub(super) listen_tls: Vec<ListenOn>,
    #[serde(deserialize_with = "optional")]
    pub(super) backlog: Option<Count<1, 65_535>>,
    pub(super) tls_min_version: MinVersion,
    /// Directories for roots that a reload adds.
    #[serde(deserialize_with = "several")]
    pub(super) sandbox_read: Vec<PathBuf>,
}

/// The keys of `[server]`.
pub(super) fn keys() -> Vec<String> {
    let of_settings =
        [names_of::<Listening>(), names_of::<LogSettings>(), names_of::<HttpSettings>()];
    let of_arguments = [
        names_of::<EngineArgs>(),
        names_of::<AdminArgs>(),
        names_of::<UserArgs>(),
        names_of::<SandboxArgs>(),
        names_of::<OutputArgs>(),
    ];
    [of_settings.concat(), of_arguments.concat()].concat()
}

impl Server {
    pub(super) fn new(args: &HttpArgs, mut keys: Keys<'_, '_>) -> Result<Server, String> {
        let mut listening: Listening = keys.take()?;
        if !args.listen.is_empty() {
            listening.listen = args.listen.clone();
        }
        if !args.listen_tls.is_empty() {
            listening.listen_tls = args.listen_tls.clone();
        }
        if listening.listen.is_empty() && listening.listen_tls.is_empty() {
            listening.listen.push(ListenOn::Address(SocketAddr::from(LISTEN)));
        }
        let mut log: LogSettings = keys.take()?;
        log.access_log = args.access_log.clone().or(log.access_log);
        let mut http: HttpSettings = keys.take()?;
        if let Some(streams) = args.http2_streams {
            http.http2_streams = streams.get() as u32;
        }
        let (admin, user): (AdminArgs, UserArgs) = (keys.take()?, keys.take()?);
        let (sandbox, output): (SandboxArgs, OutputArgs) = (keys.take()?, keys.take()?);
        let server = Server {
            listening,
            engine: args.engine.or(keys.take()?),
            admin: AdminArgs { admin: args.admin.admin.or(admin.admin) },
            user: UserArgs {
                user: args.user.user.clone().or(user.user),
                group: args.user.group.clone().or(user.group),
            },
            sandbox: SandboxArgs {
                sandbox: args.sandbox.sandbox.clone().or(sandbox.sandbox),
                sandbox_check: args.sandbox.sandbox_check,
            },
            output: OutputArgs {
                stats: args.output.stats.or(output.stats),
                json: args.output.json || output.json,
            },
            log,
            http,
        };
        keys.end().map(|()| server)
    }
}
