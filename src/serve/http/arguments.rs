//! The arguments of the HTTP service.

use super::forwarders::ForwarderArgs;
use super::host::HostArgs;
use super::listen::ListenOn;
use super::log::LogArgs;
use super::site::SiteArgs;
use super::tls::TlsArgs;
use crate::engine_args::EngineArgs;
use crate::serve::admin::AdminArgs;
use crate::serve::report::OutputArgs;
use crate::serve::sandbox::SandboxArgs;
use crate::serve::sandbox::paths::Paths;
use crate::serve::user::UserArgs;
use crate::values::{duration, timeout};
use clap::builder::ArgPredicate;
use clap::{ArgAction, Args};
use std::path::PathBuf;
use std::time::Duration;
use twinring::confine::Uses;
use twinring_services::http::head::HeadLimits;
use twinring_services::http::{
    CacheLimits, Http2Limits, HttpLimits, HttpSettings, SENDFILE_ABOVE_MAX, SendStrategy, Sites,
    Timeouts, Tls, TlsError, TlsSettings,
};

#[derive(Debug, Args)]
pub(crate) struct HttpArgs {
    /// TOML file with further options, named as here without their dashes, and a [[host]] with
    /// `names` for each virtual host. The command line takes precedence. SIGHUP reloads it: sites,
    /// certificates, limits of requests and timeouts, all or nothing.
    #[arg(long, value_name = "FILE", help_heading = "Operation")]
    pub(super) config: Option<PathBuf>,
    /// Check options, configuration file, directories, certificates and rights, as the user of the
    /// running server, and exit.
    #[arg(long, help_heading = "Operation")]
    pub(super) check: bool,
    #[command(flatten)]
    pub(super) site: SiteArgs,
    /// Address to listen on; may be given several times, for IPv4 and IPv6 (`[::1]:8080`). `fd:NAME` is
    /// a socket that systemd passes, by its FileDescriptorName, and `systemd` are all passed ones
    /// that no option names.
    #[arg(
        long,
        value_name = "ADDR|systemd|fd:NAME",
        help_heading = "Listening",
        default_value = "127.0.0.1:8080",
        default_value_if("listen_tls", ArgPredicate::IsPresent, None)
    )]
    pub(super) listen: Vec<ListenOn>,
    #[command(flatten)]
    pub(super) tls: TlsArgs,
    #[command(flatten)]
    pub(super) engine: EngineArgs,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    http2: Http2Args,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    timeouts: TimeoutArgs,
    /// Connections that the kernel queues before they are accepted; net.core.somaxconn caps it.
    #[arg(long, value_name = "N", help_heading = "Limits", default_value_t = 4096,
          value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub(super) backlog: u32,
    #[command(flatten)]
    forwarders: ForwarderArgs,
    #[command(flatten)]
    pub(super) admin: AdminArgs,
    #[command(flatten)]
    pub(super) user: UserArgs,
    #[command(flatten)]
    pub(super) log: LogArgs,
    /// Send the field `Server-Timing` with the time from a request to its answer. It tells every
    /// client how long files take, and with that which ones are cached.
    #[arg(long, help_heading = "Operation")]
    server_timing: bool,
    #[command(flatten)]
    pub(super) sandbox: SandboxArgs,
    /// Directory that the sandbox keeps readable besides the roots, for roots that a reload adds. May
    /// be given several times.
    #[arg(long, value_name = "DIR", help_heading = "Sandbox")]
    sandbox_read: Vec<PathBuf>,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Cache and sending")]
struct CacheArgs {
    /// Memory for cached answers, over all workers; no answer takes more than an eighth of a worker's
    /// share. 0 disables the cache.
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20,
          value_parser = clap::value_parser!(u64).range(0..=1 << 40))]
    cache_bytes: u64,
    /// Files above --sendfile-above that are kept open, over all workers: at most half of the limit
    /// of open descriptors. An unused one is closed within a minute.
    #[arg(long, value_name = "N", default_value_t = 1024,
          value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    cache_files: u32,
    /// A changed file is served within this time.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration)]
    cache_valid: Duration,
    /// Larger files are sent by --send; smaller ones from memory, with their head in one send. Up to
    /// 1048576.
    #[arg(long, value_name = "BYTES", default_value_t = 48 * 1024,
          value_parser = clap::value_parser!(u64).range(0..=SENDFILE_ABOVE_MAX))]
    sendfile_above: u64,
    /// How large files are sent: by sendfile(2), or read and sent. With `read`, bytes in transit do not
    /// change when a file is overwritten in place. Files on a filesystem without sendfile are read, and
    /// TLS always reads.
    #[arg(long, value_name = "sendfile|read", default_value = "sendfile")]
    send: SendStrategy,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "HTTP/2")]
struct Http2Args {
    /// Serve HTTP/2 beside HTTP/1.1: over TLS to clients that offer it (ALPN), and without TLS to
    /// clients that begin with it (prior knowledge).
    #[arg(long, value_name = "on|off", default_value = "on", value_parser = on_off,
          action = ArgAction::Set)]
    http2: bool,
    /// Concurrent requests of a connection. The other limits and timeouts hold as well.
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    http2_streams: u32,
}

impl Http2Args {
    fn limits(&self) -> Option<Http2Limits> {
        self.http2.then_some(Http2Limits { streams: self.http2_streams })
    }
}

fn on_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("expected on or off".to_owned()),
    }
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
struct LimitArgs {
    /// Concurrent connections; further ones are accepted and closed immediately.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_connections: Option<u32>,
    /// Concurrent connections per IPv4 address, or IPv6 network of 64 bits.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_connections_per_address: Option<u32>,
    /// Longest head of a request; a longer one gets 431.
    #[arg(long, value_name = "BYTES", default_value_t = 16 * 1024,
          value_parser = clap::value_parser!(u32).range(256..=1 << 20))]
    max_header_bytes: u32,
    /// Longest request target; a longer one gets 414.
    #[arg(long, value_name = "BYTES", default_value_t = 8 * 1024,
          value_parser = clap::value_parser!(u32).range(16..=1 << 19))]
    max_uri_bytes: u32,
    /// Longest body of a request, which is read and dropped; a longer one gets 413.
    #[arg(long, value_name = "BYTES", default_value_t = 64 * 1024,
          value_parser = clap::value_parser!(u64).range(0..=1 << 40))]
    max_body_bytes: u64,
    /// Requests on one connection, pipelined ones included; the last one is answered with
    /// `Connection: close`, or followed by GOAWAY in HTTP/2.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_requests: Option<u64>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Timeouts")]
struct TimeoutArgs {
    /// Timeout from the first byte of a request's head to its last; then 408.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = timeout)]
    header_timeout: Duration,
    /// Timeout from the end of the head to the end of the body; then 408.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = timeout)]
    body_timeout: Duration,
    /// Close a connection without a request for this long, counted from when the peer took the last
    /// answer.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = timeout)]
    idle_timeout: Duration,
    /// Reset a connection whose peer takes less than 1 KiB in this time.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = timeout)]
    send_timeout: Duration,
    /// How long a shutdown waits for peers to take their answers.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    drain_timeout: Duration,
}

impl HttpArgs {
    pub(super) fn drain_timeout(&self) -> Duration {
        self.timeouts.drain_timeout
    }

    /// How TLS is set up, with these virtual hosts.
    pub(super) fn tls_settings(&self, hosts: &[HostArgs]) -> TlsSettings {
        TlsSettings { http2: self.http2.http2, ..self.tls.settings(hosts) }
    }

    /// TLS, if there is to be any.
    ///
    /// # Errors
    /// When certificate or key cannot be used.
    pub(super) fn tls(&self, hosts: &[HostArgs]) -> Result<Option<Tls>, TlsError> {
        let settings = self.tls_settings(hosts);
        match settings.default.is_some() || !settings.hosts.is_empty() {
            true => Tls::new(&settings).map(Some),
            false => Ok(None),
        }
    }

    /// The parts of the runtime that the service uses.
    pub(super) fn uses(&self) -> Uses {
        Uses { accept: true, files: true, ..Uses::default() }
    }

    /// The files that the service needs as long as it runs.
    pub(super) fn paths(&self, hosts: &[HostArgs]) -> Paths {
        let sites = hosts.iter().map(|host| &host.site).chain([&self.site]);
        let roots = sites.clone().filter_map(SiteArgs::root);
        let users = sites.flat_map(SiteArgs::user_files).cloned();
        Paths {
            read: roots.chain(&self.sandbox_read).cloned().collect(),
            // On SIGHUP the configuration file is read again.
            read_files: self
                .tls
                .files(hosts)
                .into_iter()
                .chain(self.config.clone())
                .chain(users)
                .collect(),
            written: self.log.file().into_iter().collect(),
            own_process: self.admin.is_wanted(),
        }
    }

    /// The resulting settings, with these virtual hosts. Unusable directories and files are added to
    /// `problems`, and left out of the settings.
    pub(super) fn settings(&self, hosts: &[HostArgs], problems: &mut Vec<String>) -> HttpSettings {
        let mut sites = Sites::new(self.site.site("", problems));
        for host in hosts {
            let Some(site) = host.site.site(&host.place, problems) else { continue };
            if let Err(name) = sites.add(&host.names, site) {
                problems.push(format!("{}{name} is the name of two hosts", host.place));
            }
        }
        HttpSettings {
            cache: CacheLimits {
                bytes: usize::try_from(self.cache.cache_bytes).unwrap_or(usize::MAX),
                files: self.cache.cache_files as usize,
                valid: self.cache.cache_valid,
            },
            sendfile_above: self.cache.sendfile_above,
            send: self.cache.send,
            server_timing: self.server_timing,
            forwarders: self.forwarders.forwarders(),
            limits: self.limits.limits(),
            http2: self.http2.limits(),
            timeouts: Timeouts {
                handshake: self.tls.tls_handshake_timeout,
                ..self.timeouts.timeouts()
            },
            ..HttpSettings::new(sites)
        }
    }
}

impl LimitArgs {
    fn limits(&self) -> HttpLimits {
        let most = |limit: Option<u32>| limit.map_or(usize::MAX, |limit| limit as usize);
        HttpLimits {
            connections: most(self.max_connections),
            connections_per_address: most(self.max_connections_per_address),
            head: HeadLimits {
                head_bytes: self.max_header_bytes as usize,
                target_bytes: self.max_uri_bytes as usize,
            },
            body_bytes: self.max_body_bytes,
            requests: self.max_requests.unwrap_or(u64::MAX),
        }
    }
}

impl TimeoutArgs {
    fn timeouts(&self) -> Timeouts {
        Timeouts {
            header: self.header_timeout,
            body: self.body_timeout,
            idle: self.idle_timeout,
            send: self.send_timeout,
            drain: self.drain_timeout,
            ..Timeouts::default()
        }
    }
}
