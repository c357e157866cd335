//! The search for the answer to one request.

use crate::http::auth::{Access, Auth, Busy, Credentials, Users, access};
use crate::http::compression::preferred;
use crate::http::forwarders::Transport;
use crate::http::generation::Generation;
use crate::http::head::{Head, Method};
use crate::http::hosts::Site;
use crate::http::index::{ENTRIES_MAX, render};
use crate::http::open_file::Change;
use crate::http::options::ListingFormat;
use crate::http::path::{Refusal, clean, encode};
use crate::http::reply::{Reply, ResponseContext, Rest, error_page, reply};
use crate::http::resource::{Missing, Resource};
use crate::http::response::{Persistence, begin, content_length, field, message};
use crate::http::status::Status;
use crate::http::target::Target;
use crate::http::variant::{Ruled, Variant};
use crate::http::worker::Worker;
use std::ffi::OsStr;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

/// How often an answer is rebuilt because its file was just written to.
const ANSWER_ATTEMPTS: u32 = 3;

/// Directories that clients without TLS must reach: certificates are renewed there (RFC 8555).
const ACME: &str = "/.well-known/acme-challenge/";

/// What comes before the search for a file.
pub(super) enum Before {
    /// Nothing.
    Files,
    /// An answer, with these fields.
    Refusal(Status, Vec<(&'static str, String)>),
    /// These must accept the credentials.
    Verification(Vec<Arc<Auth>>, Credentials),
    /// Something that is done once, for the final answer.
    Work,
}

/// The search for an answer.
pub(super) struct Answer<'a> {
    pub(super) worker: &'a Rc<Worker>,
    pub(super) generation: Rc<Generation>,
    pub(super) site: usize,
    pub(super) head: &'a Head<'a, 'a>,
    pub(super) persistence: Persistence,
    pub(super) transport: Transport,
    /// There is no other attempt, which may wait, behind this one.
    pub(super) is_last: bool,
}

impl Answer<'_> {
    pub(super) async fn find(&self) -> Reply {
        match (self.head.method, self.head.target) {
            (Method::Get | Method::Head, Target::Resource { path, query }) => {
                match self.before_files() {
                    Before::Files | Before::Work => {}
                    Before::Refusal(status, fields) => return self.refuse(status, &fields).await,
                    Before::Verification(all, credentials) => {
                        for auth in all {
                            let challenge = challenge(auth.challenge());
                            match Users::verify(auth, credentials.clone(), self.client()).await {
                                Ok(true) => {}
                                Ok(false) => {
                                    return self.refuse(Status::UNAUTHORIZED, &challenge).await;
                                }
                                Err(Busy) => return self.refuse(Status::UNAVAILABLE, &[]).await,
                            }
                        }
                    }
                }
                match clean(path.as_bytes()) {
                    Ok(path) => self.file(&path, query).await,
                    Err(Refusal::NotServed) => self.refuse(Status::NOT_FOUND, &[]).await,
                    Err(Refusal::Malformed) => self.message(Status::BAD_REQUEST, &[]),
                }
            }
            (Method::Options, _) => self.message(Status::NO_CONTENT, &[]),
            (_, _) => self.message(Status::METHOD_NOT_ALLOWED, &[]),
        }
    }

    /// What comes before files: addresses and rates; redirects, so that no password is asked for without
    /// TLS if requests are redirected to https; then passwords.
    pub(super) fn before_files(&self) -> Before {
        let site = self.site();
        let Target::Resource { path, query } = self.head.target else { return Before::Files };
        let asked = self.asked();
        let policy = site.rules.policy(&asked);
        if !policy.admits(self.client()) {
            return Before::Refusal(Status::FORBIDDEN, Vec::new());
        }
        match (policy.has_rate(), self.is_last) {
            (true, false) => return Before::Work,
            (true, true) if !policy.is_within_rate(self.client()) => {
                return Before::Refusal(Status::TOO_MANY_REQUESTS, Vec::new());
            }
            _ => {}
        }
        let location = |status, location| Before::Refusal(status, vec![("Location", location)]);
        let path = clean(path.as_bytes());
        let is_acme = path.as_ref().is_ok_and(|path| path.starts_with(ACME.as_bytes()));
        if let Some(address) = site.to_https.as_ref().filter(|_| !is_acme && !self.is_secure()) {
            return match address.location(self.head) {
                Some(found) => location(Status::MOVED_PERMANENTLY, found),
                // HTTP/1.0, or an empty field: a location needs the host.
                None => Before::Refusal(Status::BAD_REQUEST, Vec::new()),
            };
        }
        // Other paths lead to no file.
        let Ok(path) = path else { return Before::Files };
        if let Some((status, found)) = policy.redirect(&path, query) {
            return location(status, found);
        }
        match access(&policy.auth(), self.head) {
            Access::Granted => Before::Files,
            Access::Denied(text) => Before::Refusal(Status::UNAUTHORIZED, challenge(text)),
            Access::Unknown(all, credentials) => Before::Verification(all, credentials),
        }
    }

    /// The answer with the fields that depend on the connection or on the time since `began`.
    pub(super) fn finished(&self, mut reply: Reply, began: Instant) -> Reply {
        if let Some(hsts) = self.site().hsts.as_ref().filter(|_| self.is_secure()) {
            reply = reply.with_field("Strict-Transport-Security", hsts);
        }
        if self.generation.settings.server_timing {
            self.worker.clock.tick();
            let passed = self.worker.clock.now().saturating_duration_since(began);
            let ms = passed.as_secs_f64() * 1e3;
            reply = reply.with_field("Server-Timing", &format!("total;dur={ms:.3}"));
        }
        reply
    }

    /// The client uses TLS.
    fn is_secure(&self) -> bool {
        self.transport.is_secure(&self.generation.settings.forwarders, self.head)
    }

    /// The address that the request comes from, by the word of a trusted proxy if there is one.
    fn client(&self) -> Option<IpAddr> {
        let peer = self.transport.peer?;
        Some(self.generation.settings.forwarders.client(peer, self.head).unwrap_or(peer))
    }

    fn site(&self) -> &Site {
        self.generation.settings.sites.site(self.site)
    }

    async fn file(&self, path: &[u8], query: Option<&str>) -> Reply {
        let site = self.site();
        let asked = self.asked();
        let policy = site.rules.policy(&asked);
        let missing = match self.present(path, None).await {
            Ok(reply) => return reply,
            Err(missing) => missing,
        };
        let missing = match (missing, policy.listing()) {
            (Missing::Index, Some(format)) => match self.listing(path, format).await {
                Ok(reply) => return reply,
                Err(missing) => missing,
            },
            _ => missing,
        };
        match missing {
            Missing::Failed(status) => return self.refuse(status, &[]).await,
            Missing::Exhausted => return self.refuse(Status::UNAVAILABLE, &[]).await,
            Missing::Directory => {
                let query = query.map(|query| format!("?{query}")).unwrap_or_default();
                let location = format!("{}/{query}", encode(path));
                return self.message(Status::MOVED_PERMANENTLY, &[("Location", location)]);
            }
            Missing::Nothing | Missing::Index => {}
        }
        let last_segment = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        if let Some(fallback) = policy.fallback()
            && !last_segment.contains(&b'.')
            && let Ok(reply) = self.present(fallback, Some(&Ruled::of(&policy))).await
        {
            return reply;
        }
        self.refuse(Status::NOT_FOUND, &[]).await
    }

    /// The answer from a file that is there, with these fields of rules instead of those for its path.
    async fn present(&self, path: &[u8], ruled: Option<&Ruled>) -> Result<Reply, Missing> {
        let answer = |resource: &Rc<Resource>, variant: &Variant| {
            self.worker.compress_for(self.head, &self.generation, self.site, path, resource);
            let context = ResponseContext { ruled, ..self.context() };
            let reply = reply(self.head, variant, context);
            self.worker.count_saved(self.head, variant, &reply);
            reply
        };
        self.unchanged(path, |resource| preferred(self.head, resource), answer).await
    }

    /// The result of `answer` for the variant that `choose` selects of an existing file. A file
    /// that was written to since it was opened is looked up again.
    async fn unchanged(
        &self,
        path: &[u8],
        choose: impl Fn(&Resource) -> Option<&Variant>,
        answer: impl Fn(&Rc<Resource>, &Variant) -> Reply,
    ) -> Result<Reply, Missing> {
        for attempt in 0..ANSWER_ATTEMPTS {
            let resource = match attempt {
                0 => self.worker.resource(&self.generation, self.site, path).await?,
                // An existing load may have begun before the write.
                _ => self.worker.fresh_resource(&self.generation, self.site, path).await?,
            };
            let Some(variant) = choose(&resource) else { break };
            let change = match variant.checked_file() {
                Some(file) => file.recent_change().await?,
                None => Change::Nothing,
            };
            // A file that grew is looked up again once. It may grow continuously.
            if change == Change::Nothing || change == Change::Grew && attempt > 0 {
                return Ok(answer(&resource, variant));
            }
            self.generation.cache.remove(self.site, path);
        }
        Err(Missing::Failed(Status::UNAVAILABLE))
    }

    /// True if the content of this error is that of a file.
    pub(super) fn has_error_page(&self, status: Status) -> bool {
        self.site().rules.policy(&self.asked()).error_page(status).is_some()
    }

    /// An error, with the content of its file if it has one.
    async fn refuse(&self, status: Status, fields: &[(&str, String)]) -> Reply {
        let asked = self.asked();
        let policy = self.site().rules.policy(&asked);
        let Some(page) = policy.error_page(status) else { return self.message(status, fields) };
        let answer = |_: &Rc<Resource>, page: &Variant| {
            let own = fields.iter().map(|(name, value)| (*name, value.as_str()));
            let all: Vec<_> = own.chain(policy.headers()).collect();
            error_page(status, page, &all, self.head.method == Method::Head, self.context())
        };
        match self.unchanged(page, Resource::identity, answer).await {
            Ok(reply) => reply,
            Err(_) => self.message(status, fields),
        }
    }

    async fn listing(&self, path: &[u8], format: ListingFormat) -> Result<Reply, Missing> {
        let unavailable = Missing::Failed(Status::UNAVAILABLE);
        let (site, listings) = (self.site(), &self.worker.listings);
        if listings.are_full() {
            return Err(unavailable);
        }
        let relative = match path {
            b"/" => Path::new("."),
            path => Path::new(OsStr::from_bytes(&path[1..])),
        };
        let root = site.root.as_ref().ok_or(Missing::Nothing)?;
        let listed = {
            let _turn = listings.scan().await;
            root.list(relative, site.symlinks, ENTRIES_MAX).await?
        };
        let (content_type, content) = render(format, path, &listed);
        let mut reply = begin(Status::OK, &self.worker.clock, self.persistence);
        field(&mut reply, "Content-Type", content_type);
        field(&mut reply, "Cache-Control", "no-cache");
        for (name, value) in site.rules.policy(&self.asked()).headers() {
            field(&mut reply, name, value);
        }
        content_length(&mut reply, content.len() as u64);
        reply.extend_from_slice(b"\r\n");
        let mut reply = Reply::new(Status::OK, reply);
        if self.head.method == Method::Get {
            reply.rest = Some(Rest::Listing(listings.hold(content).ok_or(unavailable)?));
        }
        Ok(reply)
    }

    pub(super) fn message(&self, status: Status, fields: &[(&str, String)]) -> Reply {
        let to_head = self.head.method == Method::Head;
        let ResponseContext { clock, persistence, .. } = self.context();
        let (asked, site) = (self.asked(), self.site());
        let own = fields.iter().map(|(name, value)| (*name, value.as_str()));
        let all: Vec<_> = own.chain(site.rules.policy(&asked).headers()).collect();
        Reply::new(status, message(status, &all, clock, persistence, to_head))
    }

    /// The requested path, as rules see it; that of the whole if it is invalid.
    fn asked(&self) -> PathBuf {
        let path = match self.head.target {
            Target::Resource { path, .. } => clean(path.as_bytes()).ok(),
            _ => None,
        };
        PathBuf::from(OsStr::from_bytes(path.as_deref().unwrap_or(b"/")))
    }

    fn context(&self) -> ResponseContext<'_> {
        ResponseContext { clock: &self.worker.clock, persistence: self.persistence, ruled: None }
    }
}

fn challenge(text: String) -> Vec<(&'static str, String)> {
    vec![("WWW-Authenticate", text)]
}
