//! The arguments of the HTTP service.

use super::super::{OutputArgs, duration, timeout};
use crate::engine_args::EngineArgs;
use clap::Args;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use twinring::fs::{Dir, Symlinks};
use twinring_services::http::encoding::Coding;
use twinring_services::http::head::HeadLimits;
use twinring_services::http::{
    CacheLimits, FieldRule, HttpLimits, HttpSettings, ListingFormat, SENDFILE_ABOVE_MAX, Timeouts,
};

#[derive(Debug, Args)]
pub(crate) struct HttpArgs {
    /// Directory whose files are served. Files and directories that begin with a dot are not,
    /// except for `/.well-known/`.
    #[arg(long, value_name = "DIR")]
    root: PathBuf,
    /// Address to listen on; may be given several times, for IPv4 and IPv6 (`[::1]:8080`).
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    pub(super) listen: Vec<SocketAddr>,
    #[command(flatten)]
    pub(super) engine: EngineArgs,
    #[command(flatten)]
    files: FileArgs,
    #[command(flatten)]
    fields: FieldArgs,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    timeouts: TimeoutArgs,
    /// Connections the kernel holds before they are accepted; net.core.somaxconn caps it.
    #[arg(long, value_name = "N", help_heading = "Limits", default_value_t = 4096,
          value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub(super) backlog: u32,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Files")]
struct FileArgs {
    /// Names of files that stand for their directory; the first that is there is taken.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_value = "index.html",
          value_parser = file_name)]
    index: Vec<String>,
    /// What to make of a directory without an index file: a page, a JSON array, or 404.
    #[arg(long, value_name = "html|json|off", default_value = "off", value_parser = autoindex)]
    autoindex: Autoindex,
    /// File beneath the root that answers for paths that do not exist and whose last segment has
    /// no dot: the pages of an application that routes by itself.
    #[arg(long, value_name = "FILE")]
    spa: Option<PathBuf>,
    /// File beneath the root whose content goes with status 404.
    #[arg(long, value_name = "FILE")]
    not_found: Option<PathBuf>,
    /// `beneath` follows symbolic links that stay beneath the root; absolute ones never do.
    #[arg(long, value_name = "refuse|beneath", default_value = "beneath", value_parser = symlinks)]
    symlinks: Symlinks,
    /// Send files that lie beside the one asked for, are no older, and end in these suffixes, to
    /// clients that accept their coding; the preferred one comes first.
    #[arg(long, value_name = "br,gz,zst", value_delimiter = ',')]
    precompressed: Vec<Coding>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Header fields")]
struct FieldArgs {
    /// `Cache-Control` for the paths that match, such as `*.css=max-age=3600`; the first match
    /// counts. `*` stands for any characters, slashes included.
    #[arg(long, value_name = "PATTERN=VALUE", value_parser = FieldRule::cache_control)]
    cache_control: Vec<FieldRule>,
    /// A field for the paths that match, such as `*=X-Content-Type-Options:nosniff`; all matches
    /// count.
    #[arg(long = "header", value_name = "PATTERN=NAME:VALUE")]
    headers: Vec<FieldRule>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Cache and sending")]
struct CacheArgs {
    /// Memory for answers that are ready to be sent, over all workers; no answer takes more than
    /// an eighth of a worker's share. 0 keeps none.
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20,
          value_parser = clap::value_parser!(u64).range(0..=1 << 40))]
    cache_bytes: u64,
    /// Files above --sendfile-above that are kept open, over all workers.
    #[arg(long, value_name = "N", default_value_t = 1024,
          value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    cache_files: u32,
    /// A file that is changed is served within this time.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration)]
    cache_valid: Duration,
    /// Files of more bytes are sent with sendfile(2); the others from memory, with their head in
    /// one send. Up to 1048576.
    #[arg(long, value_name = "BYTES", default_value_t = 12 * 1024,
          value_parser = clap::value_parser!(u64).range(0..=SENDFILE_ABOVE_MAX))]
    sendfile_above: u64,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
struct LimitArgs {
    /// Connections served at once; more are accepted and closed at once.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_connections: Option<u32>,
    /// Connections served at once of one IPv4 address, or one IPv6 network of 64 bits.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_connections_per_address: Option<u32>,
    /// Longest head of a request; beyond it is 431.
    #[arg(long, value_name = "BYTES", default_value_t = 16 * 1024,
          value_parser = clap::value_parser!(u32).range(256..=1 << 20))]
    max_header_bytes: u32,
    /// Longest request target; beyond it is 414.
    #[arg(long, value_name = "BYTES", default_value_t = 8 * 1024,
          value_parser = clap::value_parser!(u32).range(16..=1 << 19))]
    max_uri_bytes: u32,
    /// Longest body of a request, which is read and dropped; beyond it is 413.
    #[arg(long, value_name = "BYTES", default_value_t = 64 * 1024,
          value_parser = clap::value_parser!(u64).range(0..=1 << 40))]
    max_body_bytes: u64,
    /// Requests on one connection, pipelined ones included; the last one is answered with
    /// `Connection: close`.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_requests: Option<u64>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Timeouts")]
struct TimeoutArgs {
    /// From the first byte of a request's head to its last; then 408.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = timeout)]
    header_timeout: Duration,
    /// From the end of the head to the end of the body; then 408.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = timeout)]
    body_timeout: Duration,
    /// Close a connection without a request for this long.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = timeout)]
    idle_timeout: Duration,
    /// Reset a connection whose peer takes nothing for this long; 256 KiB are one step.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = timeout)]
    send_timeout: Duration,
    /// How long a shutdown waits for answers to be taken.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    drain_timeout: Duration,
}

/// What `--autoindex` says; a type of its own because to clap an `Option` is an argument that may
/// be missing.
#[derive(Clone, Copy, Debug)]
struct Autoindex(Option<ListingFormat>);

fn autoindex(text: &str) -> Result<Autoindex, String> {
    match text {
        "html" => Ok(Autoindex(Some(ListingFormat::Html))),
        "json" => Ok(Autoindex(Some(ListingFormat::Json))),
        "off" => Ok(Autoindex(None)),
        _ => Err("expected html, json or off".to_owned()),
    }
}

fn symlinks(text: &str) -> Result<Symlinks, String> {
    match text {
        "refuse" => Ok(Symlinks::Refuse),
        "beneath" => Ok(Symlinks::Beneath),
        _ => Err("expected refuse or beneath".to_owned()),
    }
}

fn file_name(text: &str) -> Result<String, String> {
    let is_name = !text.is_empty() && !text.starts_with('.') && !text.contains(['/', '\0']);
    is_name.then(|| text.to_owned()).ok_or_else(|| format!("`{text}` is no name of a file"))
}

impl HttpArgs {
    /// The settings they amount to.
    ///
    /// # Errors
    /// When a directory or a file that they name cannot be used; the message names it.
    pub(super) fn settings(&self) -> Result<HttpSettings, String> {
        let root = Dir::open(&self.root)
            .map_err(|error| format!("cannot serve --root {}: {error}", self.root.display()))?;
        let files = &self.files;
        Ok(HttpSettings {
            symlinks: files.symlinks,
            index: files.index.clone(),
            autoindex: files.autoindex.0,
            fallback: self.beneath_root("--spa", files.spa.as_deref())?,
            not_found: self.beneath_root("--not-found", files.not_found.as_deref())?,
            precompressed: files.precompressed.clone(),
            cache_control: self.fields.cache_control.clone(),
            fields: self.fields.headers.clone(),
            cache: CacheLimits {
                bytes: usize::try_from(self.cache.cache_bytes).unwrap_or(usize::MAX),
                files: self.cache.cache_files as usize,
                valid: self.cache.cache_valid,
            },
            sendfile_above: self.cache.sendfile_above,
            limits: self.limits.limits(),
            timeouts: self.timeouts.timeouts(),
            ..HttpSettings::new(root)
        })
    }

    /// The path that names a file in requests, made sure that it is there.
    fn beneath_root(&self, option: &str, file: Option<&Path>) -> Result<Option<Vec<u8>>, String> {
        let Some(file) = file else { return Ok(None) };
        let wrong = |why: &str| format!("cannot use {option} {}: {why}", file.display());
        let relative = file.strip_prefix("/").unwrap_or(file);
        let metadata = std::fs::metadata(self.root.join(relative))
            .map_err(|error| wrong(&format!("{error}; it has to be beneath the root")))?;
        if !metadata.is_file() {
            return Err(wrong("it is no regular file"));
        }
        let path = Path::new("/").join(relative);
        Ok(Some(path.into_os_string().into_encoded_bytes()))
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
        }
    }
}
