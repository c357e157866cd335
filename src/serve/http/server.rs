//! The settings of a server: those of the command line, and of `[server]` for what it does not say.

use super::arguments::HttpArgs;
use super::keys::ServerKeys;
use super::listen::ListenOn;
use super::log::LogArgs;
use super::values::Text;
use crate::engine_args::EngineArgs;
use crate::serve::admin::AdminArgs;
use crate::serve::report::OutputArgs;
use crate::serve::sandbox::SandboxArgs;
use crate::serve::user::UserArgs;
use std::net::{Ipv4Addr, SocketAddr};

/// Where a server listens unless it is said.
const LISTEN: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 8080);

#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) listen: Vec<ListenOn>,
    pub(super) listen_tls: Vec<ListenOn>,
    pub(super) backlog: u32,
    pub(super) engine: EngineArgs,
    pub(super) admin: AdminArgs,
    pub(super) user: UserArgs,
    pub(super) sandbox: SandboxArgs,
    pub(super) output: OutputArgs,
    pub(super) log: LogArgs,
    /// Keys that the command line does not have.
    pub(super) keys: ServerKeys,
}

impl Server {
    pub(super) fn new(args: &HttpArgs, mut keys: ServerKeys) -> Server {
        let listed = |args: &Vec<ListenOn>, keys: &Vec<ListenOn>| match args.is_empty() {
            true => keys.clone(),
            false => args.clone(),
        };
        let listen_tls = listed(&args.listen_tls, &keys.listen_tls.0);
        let mut listen = listed(&args.listen, &keys.listen.0);
        if listen.is_empty() && listen_tls.is_empty() {
            listen.push(ListenOn::Address(SocketAddr::from(LISTEN)));
        }
        keys.http2_streams = args.http2_streams.map(Text).or(keys.http2_streams);
        Server {
            listen,
            listen_tls,
            backlog: keys.backlog.map_or(4096, |Text(backlog)| backlog.get() as u32),
            engine: args.engine.or(keys.engine()),
            admin: AdminArgs {
                admin: args.admin.admin.or(keys.admin.map(|Text(address)| address.0)),
            },
            user: UserArgs {
                user: args.user.user.clone().or(keys.user.clone()),
                group: args.user.group.clone().or(keys.group.clone()),
            },
            sandbox: SandboxArgs {
                sandbox: args.sandbox.sandbox.clone().or(keys.sandbox.clone().map(|Text(s)| s)),
                sandbox_check: args.sandbox.sandbox_check,
            },
            output: OutputArgs {
                stats: args.output.stats.or(keys.stats.map(|Text(seconds)| seconds)),
                json: args.output.json || keys.json,
            },
            log: LogArgs {
                file: args.access_log.clone().or(keys.access_log.clone()),
                format: keys.access_log_format.unwrap_or_default(),
                buffer_bytes: keys.access_log_buffer.map_or(4 << 20, |Text(n)| n.get() as usize),
            },
            keys,
        }
    }
}
