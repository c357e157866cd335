//! The keys of the configuration file, table by table. docs/file-server.md explains each.

use super::listen::ListenOn;
use super::values::{List, Text};
use crate::engine_args::{EngineArgs, Mode, UsableCpus};
use crate::serve::allow::Network;
use crate::serve::sandbox::Selection;
use crate::values::{ListenAddress, MOST, PerSecond, Timeout, Wait};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use toml::Spanned;
use twinring::config::{EpollOptions, UringOptions};
use twinring::fs::Symlinks;
use twinring_input::quantity::{Count, Size};
use twinring_services::http::encoding::Coding;
use twinring_services::http::request::HeadLimits;
use twinring_services::http::{
    Addresses, Forwarders, HostName, HttpSettings, HttpsAddress, LogFormat, MinVersion, PathGlob,
    Protection, Redirect, RequestRate, Rule, SENDFILE_ABOVE_MAX, SendStrategy, Sites,
    cache_control, header_field,
};

pub(super) type Streams = Count<1, 10_000>;

/// Bytes that no memory holds.
const BYTES_MAX: u64 = 1 << 40;

/// `[server]`: what holds until a restart.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct ServerKeys {
    pub(super) listen: List<ListenOn>,
    pub(super) listen_tls: List<ListenOn>,
    pub(super) backlog: Option<Text<Count<1, 65_535>>>,
    engine: Option<Text<Mode>>,
    workers: Option<Text<Count<1, 1024>>>,
    pin: Option<Text<UsableCpus>>,
    uring: Option<Text<UringOptions>>,
    epoll: Option<Text<EpollOptions>>,
    pub(super) http2: Option<bool>,
    pub(super) http2_streams: Option<Text<Streams>>,
    tls_min_version: Option<MinVersion>,
    tls_handshake_timeout: Option<Text<Timeout>>,
    header_timeout: Option<Text<Timeout>>,
    body_timeout: Option<Text<Timeout>>,
    idle_timeout: Option<Text<Timeout>>,
    send_timeout: Option<Text<Timeout>>,
    drain_timeout: Option<Text<Wait>>,
    max_connections: Option<Text<Count<1, MOST>>>,
    max_connections_per_address: Option<Text<Count<1, MOST>>>,
    max_header_bytes: Option<Text<Size<256, { 1 << 20 }>>>,
    max_uri_bytes: Option<Text<Size<16, { 1 << 19 }>>>,
    max_body_bytes: Option<Text<Size<0, BYTES_MAX>>>,
    max_requests: Option<Text<Count<1, { u64::MAX }>>>,
    cache_bytes: Option<Text<Size<0, BYTES_MAX>>>,
    cache_files: Option<Text<Count<0, 1_000_000>>>,
    cache_valid: Option<Text<Wait>>,
    sendfile_above: Option<Text<Size<0, SENDFILE_ABOVE_MAX>>>,
    send: Option<SendStrategy>,
    proxy_protocol_from: List<Network>,
    forwarded_from: List<Network>,
    pub(super) admin: Option<Text<ListenAddress>>,
    pub(super) user: Option<String>,
    pub(super) group: Option<String>,
    pub(super) sandbox: Option<Text<Selection>>,
    pub(super) sandbox_read: List<PathBuf>,
    pub(super) access_log: Option<PathBuf>,
    pub(super) access_log_format: Option<LogFormat>,
    pub(super) access_log_buffer: Option<Text<Size<65_536, { 1 << 30 }>>>,
    pub(super) stats: Option<Text<Count<1, 86_400>>>,
    pub(super) json: bool,
}

impl ServerKeys {
    pub(super) fn engine(&self) -> EngineArgs {
        EngineArgs {
            engine: self.engine.map(|Text(engine)| engine),
            workers: self.workers.map(|Text(workers)| workers),
            pin: self.pin.clone().map(|Text(pin)| pin),
            uring: self.uring.clone().map(|Text(uring)| uring),
            epoll: self.epoll.clone().map(|Text(epoll)| epoll),
        }
    }

    pub(super) fn min_version(&self) -> MinVersion {
        self.tls_min_version.unwrap_or_default()
    }

    pub(super) fn settings(&self, sites: Sites) -> HttpSettings {
        let d = HttpSettings::new(sites);
        let networks = |List(list): &List<Network>| list.iter().map(|network| network.0).collect();
        let most = |most: Option<Text<Count<1, MOST>>>| {
            most.map_or(usize::MAX, |Text(most)| most.get() as usize)
        };
        let time = |time: Option<Text<Timeout>>, default: Duration| {
            time.map_or(default, |Text(Timeout(time))| time)
        };
        let HeadLimits { head_bytes, target_bytes } = d.head;
        let streams = self.http2_streams.map(|Text(n)| n.get() as u32).or(d.http2_streams);
        HttpSettings {
            cache_bytes: self.cache_bytes.map_or(d.cache_bytes, |Text(n)| n.get() as usize),
            cache_files: self.cache_files.map_or(d.cache_files, |Text(n)| n.get() as usize),
            cache_valid: self.cache_valid.map_or(d.cache_valid, |Text(Wait(wait))| wait),
            sendfile_above: self.sendfile_above.map_or(d.sendfile_above, |Text(n)| n.get()),
            send: self.send.unwrap_or(d.send),
            max_connections: most(self.max_connections),
            max_connections_per_address: most(self.max_connections_per_address),
            head: HeadLimits {
                head_bytes: self.max_header_bytes.map_or(head_bytes, |Text(n)| n.get() as usize),
                target_bytes: self.max_uri_bytes.map_or(target_bytes, |Text(n)| n.get() as usize),
            },
            max_body_bytes: self.max_body_bytes.map_or(d.max_body_bytes, |Text(n)| n.get()),
            max_requests: self.max_requests.map_or(d.max_requests, |Text(n)| n.get()),
            handshake_timeout: time(self.tls_handshake_timeout, d.handshake_timeout),
            header_timeout: time(self.header_timeout, d.header_timeout),
            body_timeout: time(self.body_timeout, d.body_timeout),
            idle_timeout: time(self.idle_timeout, d.idle_timeout),
            send_timeout: time(self.send_timeout, d.send_timeout),
            drain_timeout: self.drain_timeout.map_or(d.drain_timeout, |Text(Wait(wait))| wait),
            http2_streams: streams.filter(|_| self.http2.unwrap_or(true)),
            forwarders: Forwarders {
                proxy_protocol: networks(&self.proxy_protocol_from),
                trusted: networks(&self.forwarded_from),
            },
            ..d
        }
    }
}

/// `[[site]]`, and `[default]` for what a site does not say.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct SiteKeys {
    pub(super) names: List<HostName>,
    pub(super) root: Option<PathBuf>,
    pub(super) symlinks: Option<Symlinks>,
    pub(super) index: Option<List<FileName>>,
    pub(super) clean_urls: bool,
    pub(super) precompressed: List<Coding>,
    pub(super) compress: List<Coding>,
    pub(super) types: BTreeMap<String, Text<MediaType>>,
    pub(super) default_type: Option<Text<MediaType>>,
    pub(super) charset: Option<Text<Charset>>,
    pub(super) redirect_to_https: Option<Text<ToHttps>>,
    pub(super) hsts: Option<Text<Hsts>>,
    pub(super) tls_cert: Option<PathBuf>,
    pub(super) tls_key: Option<PathBuf>,
    pub(super) rule: Vec<Spanned<RuleKeys>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RuleKeys {
    #[serde(rename = "match")]
    paths: List<PathGlob>,
    headers: BTreeMap<String, List<String>>,
    cache_control: Option<String>,
    redirect: Option<String>,
    status: Option<Text<u16>>,
    /// The file of users.
    pub(super) auth: Option<PathBuf>,
    pub(super) realm: Option<String>,
    allow: List<Network>,
    deny: List<Network>,
    pub(super) fallback: Option<PathBuf>,
    listing: Option<Text<Listing>>,
    pub(super) error_pages: BTreeMap<Text<u16>, PathBuf>,
    rate: Option<Text<PerSecond<1_000_000>>>,
    burst: Option<Text<Count<1, 1_000_000>>>,
    replace: List<Protection>,
}

/// Redirects without a status have this one.
const MOVED: u16 = 301;

impl RuleKeys {
    /// The rule, without what is in files.
    pub(super) fn rule(&self) -> Result<Rule, String> {
        let List(paths) = self.paths.clone();
        let mut headers = Vec::new();
        for (name, List(values)) in &self.headers {
            for value in values {
                let field = header_field(name, value);
                headers.push(field.map_err(|why| format!("headers: {why}"))?);
            }
        }
        for (is_there, key, needed, needs) in [
            (self.status.is_some(), "status", self.redirect.is_some(), "redirect"),
            (self.burst.is_some(), "burst", self.rate.is_some(), "rate"),
            (self.realm.is_some(), "realm", self.auth.is_some(), "auth"),
        ] {
            if is_there && !needed {
                return Err(format!("{key} needs {needs} in the same rule"));
            }
        }
        const WITH_PAGES: [u16; 6] = [401, 403, 404, 429, 500, 503];
        let mut pages = self.error_pages.keys();
        if let Some(Text(other)) = pages.find(|Text(status)| !WITH_PAGES.contains(status)) {
            return Err(format!("error-pages: `{other}`: expected one of {WITH_PAGES:?}"));
        }
        let status = self.status.map_or(MOVED, |Text(status)| status);
        let redirect = self.redirect.as_deref();
        let redirect = redirect.map(|to| Redirect::new(to, status, &paths)).transpose();
        let cache_control = self.cache_control.as_deref().map(cache_control);
        let networks = |List(list): &List<Network>| list.iter().map(|network| network.0).collect();
        let addresses = Addresses { allow: networks(&self.allow), deny: networks(&self.deny) };
        let has_addresses = !self.allow.0.is_empty() || !self.deny.0.is_empty();
        let rate = self.rate.map(|Text(PerSecond(rate))| {
            let burst = self.burst.map_or(rate, |Text(burst)| burst.get() as u32);
            RequestRate::new(rate, burst).into()
        });
        Ok(Rule {
            paths,
            headers,
            cache_control: cache_control.transpose()?,
            redirect: redirect.map_err(|why| format!("redirect: {why}"))?,
            addresses: has_addresses.then_some(addresses),
            rate,
            listing: self.listing.map(|Text(Listing(listed))| listed),
            replace: self.replace.0.clone(),
            ..Rule::default()
        })
    }
}

/// Whether directories are listed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listing(pub(super) bool);

impl FromStr for Listing {
    type Err = String;

    fn from_str(text: &str) -> Result<Listing, String> {
        match text {
            "html" => Ok(Listing(true)),
            "off" => Ok(Listing(false)),
            _ => Err(format!("`{text}`: expected html or off")),
        }
    }
}

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0 { "html" } else { "off" })
    }
}

#[derive(Clone, Debug)]
pub(super) struct FileName(pub(super) String);

impl FromStr for FileName {
    type Err = String;

    fn from_str(text: &str) -> Result<FileName, String> {
        let is_name = !text.is_empty() && !text.starts_with('.') && !text.contains(['/', '\0']);
        is_name
            .then(|| FileName(text.to_owned()))
            .ok_or_else(|| format!("`{text}` is not a file name"))
    }
}

/// `true` stands for port 443 of the requested host.
#[derive(Clone, Debug)]
pub(super) struct ToHttps(pub(super) Option<HttpsAddress>);

impl FromStr for ToHttps {
    type Err = String;

    fn from_str(text: &str) -> Result<ToHttps, String> {
        match text {
            "false" => Ok(ToHttps(None)),
            "true" => "443".parse().map(|address| ToHttps(Some(address))),
            text => text.parse().map(|address| ToHttps(Some(address))),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct MediaType(pub(super) String);

impl FromStr for MediaType {
    type Err = String;

    fn from_str(text: &str) -> Result<MediaType, String> {
        let is_type = text.split_once('/').is_some_and(|(kind, rest)| {
            !kind.is_empty() && !rest.is_empty() && !rest.contains('/')
        }) && header_field("X", text).is_ok();
        is_type
            .then(|| MediaType(text.to_owned()))
            .ok_or_else(|| format!("`{text}` is not a media type: expected one such as text/plain"))
    }
}

/// `off` declares none.
#[derive(Clone, Debug)]
pub(super) struct Charset(pub(super) String);

impl FromStr for Charset {
    type Err = String;

    fn from_str(text: &str) -> Result<Charset, String> {
        let is_name = !text.is_empty()
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        match is_name {
            true if text == "off" => Ok(Charset(String::new())),
            true => Ok(Charset(text.to_owned())),
            false => Err(format!("`{text}` is not a charset: expected one such as utf-8, or off")),
        }
    }
}

/// The value of `Strict-Transport-Security`.
#[derive(Clone, Debug)]
pub(super) struct Hsts(pub(super) String);

impl FromStr for Hsts {
    type Err = String;

    fn from_str(text: &str) -> Result<Hsts, String> {
        let has_age = text.to_ascii_lowercase().starts_with("max-age=");
        match has_age && header_field("X", text).is_ok() {
            true => Ok(Hsts(text.to_owned())),
            false => Err(format!("`{text}`: expected such as max-age=31536000; includeSubDomains")),
        }
    }
}
