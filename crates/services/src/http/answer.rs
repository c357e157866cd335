//! The answer to a request: one path for both protocols. What can be answered without waiting, is ([`Call::begin`]);
//! the rest goes on from there ([`Call::resume`]).

use super::Status;
use super::access_log::error_line;
use super::auth::{Auth, Credentials};
use super::compression::preferred;
use super::hosts::Site;
use super::index::{ENTRIES_MAX, render};
use super::proxies::{Transport, client};
use super::redirect::to_https;
use super::request::{Method, Request};
use super::resource::{Change, Missing, Resource};
use super::response::{Body, Reason, Response, value};
use super::rules::Policy;
use super::target::{Refusal, as_path, clean, encode};
use super::variant::Variant;
use super::worker::{Generation, Worker};
use http::HeaderValue;
use std::borrow::Cow;
use std::cell::OnceCell;
use std::net::IpAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// How often an answer is rebuilt because its file was just written to.
const ANSWER_ATTEMPTS: u32 = 3;

/// Directories that clients without TLS must reach: certificates are renewed there (RFC 8555).
const ACME: &[u8] = b"/.well-known/acme-challenge/";

pub(super) enum Wait {
    /// These must accept the credentials.
    Verification(Vec<Arc<Auth>>, Credentials),
    /// The file of a clean path must be looked for.
    File(Vec<u8>),
    /// The file with the content of this error must be looked for.
    Page(Response),
}

/// A request to a site, which is being answered.
pub(super) struct Call<'w, 'r> {
    pub(super) worker: &'w Rc<Worker>,
    pub(super) generation: Rc<Generation>,
    pub(super) transport: Transport,
    pub(super) request: &'r Request<'r>,
    /// The number of its site, if the host has one.
    pub(super) site: Option<usize>,
    /// The rules for its path, which is compared with theirs once.
    matching: OnceCell<Vec<usize>>,
}

impl<'w, 'r> Call<'w, 'r> {
    pub(super) fn new(
        worker: &'w Rc<Worker>,
        generation: Rc<Generation>,
        transport: Transport,
        request: &'r Request<'r>,
    ) -> Call<'w, 'r> {
        let site = generation.settings.sites.find(request);
        Call { worker, generation, transport, request, site, matching: OnceCell::new() }
    }

    pub(super) async fn answer(&self) -> Response {
        match self.begin() {
            Ok(response) => response,
            Err(wait) => Box::pin(self.resume(wait)).await,
        }
    }

    /// The answer, if it can be built without waiting: it is a redirect, a request for a password, or a file that
    /// is in memory, or open and unchanged.
    pub(super) fn begin(&self) -> Result<Response, Wait> {
        let Some(site) = self.site() else {
            return Ok(match &self.worker.http.observer {
                Some(observer) => self.finished(observer.answer(self.request)),
                None => self.refuse(Status::MISDIRECTED_REQUEST),
            });
        };
        match self.begin_in(site) {
            // Most errors have no file.
            Err(Wait::Page(error)) if self.policy(site).error_page(error.status).is_none() => {
                Ok(self.finished(error))
            }
            begun => begun.map(|response| self.finished(response)),
        }
    }

    fn begin_in(&self, site: &Site) -> Result<Response, Wait> {
        let policy = site.comes_before_files().then(|| self.policy(site));
        if let Some(policy) = &policy {
            self.admit(policy)?;
        }
        match self.request.method {
            Method::Get | Method::Head => {}
            Method::Options => return Ok(Response::message(Status::NO_CONTENT)),
            Method::Other => return Ok(Response::message(Status::METHOD_NOT_ALLOWED)),
        }
        let path = clean(self.request.path.as_bytes());
        if let Some(policy) = &policy {
            let path = path.as_deref().map_err(|refusal| *refusal);
            self.before_files(site, policy, path)?;
        }
        match path {
            Ok(path) => self.cached(&path).ok_or_else(|| Wait::File(path.into_owned())),
            Err(Refusal::NotServed) => Err(Wait::Page(Response::message(Status::NOT_FOUND))),
            Err(Refusal::Malformed) => Ok(Response::message(Status::BAD_REQUEST)),
        }
    }

    /// Addresses and rates, for all methods. (The target of one that is not allowed is not read, and counts as `/`.)
    fn admit(&self, policy: &Policy<'_>) -> Result<(), Wait> {
        if !policy.admits(self.client()) {
            let reason = Reason::Limit("the address is not allowed");
            return Err(Wait::Page(Response::failure(Status::FORBIDDEN, reason)));
        }
        if policy.has_rate() && !policy.is_within_rate(self.client()) {
            return Err(Wait::Page(Response::message(Status::TOO_MANY_REQUESTS)));
        }
        Ok(())
    }

    /// Redirects, so that no password is asked for without TLS if requests are redirected to https; then passwords.
    fn before_files(
        &self,
        site: &Site,
        policy: &Policy<'_>,
        path: Result<&[u8], Refusal>,
    ) -> Result<(), Wait> {
        let refuse = |response| Err(Wait::Page(response));
        let is_acme = path.is_ok_and(|path| path.starts_with(ACME));
        if let Some(port) = site.redirect_to_https.filter(|_| !is_acme && !self.is_secure()) {
            return refuse(match to_https(port, self.request) {
                Some(found) => Response::redirect(Status::MOVED_PERMANENTLY, &found),
                // HTTP/1.0, or an empty field: a location needs the host.
                None => Response::message(Status::BAD_REQUEST),
            });
        }
        // Other paths lead to no file.
        let Ok(path) = path else { return Ok(()) };
        if let Some((status, found)) = policy.redirect(path, self.request.query) {
            return refuse(Response::redirect(status, &found));
        }
        let all = policy.auth();
        let Some(first) = all.first() else { return Ok(()) };
        let credentials = self.request.field("authorization").and_then(Credentials::parse);
        let Some(credentials) = credentials else { return refuse(challenge(first)) };
        let unknown = all.into_iter().filter(|auth| !auth.are_verified(&credentials));
        let unknown: Vec<Arc<Auth>> = unknown.cloned().collect();
        match unknown.is_empty() {
            true => Ok(()),
            false => Err(Wait::Verification(unknown, credentials)),
        }
    }

    /// The answer from the cache, if nothing has to be asked of the file system.
    fn cached(&self, path: &[u8]) -> Option<Response> {
        let resource = self.worker.cached(&self.generation, self.site?, path)?;
        let variant = preferred(self.request, &resource)?;
        if variant.checked_file().is_some_and(|file| !file.is_unchanged()) {
            return None;
        }
        self.worker.counters.cache_hits.add(1);
        Some(self.respond(path, &resource, variant, false))
    }

    pub(super) async fn resume(&self, wait: Wait) -> Response {
        let Some(site) = self.site() else { return self.refuse(Status::MISDIRECTED_REQUEST) };
        let response = match wait {
            Wait::Page(response) => response,
            Wait::File(path) => self.file(site, &path).await,
            Wait::Verification(all, credentials) => match self.verify(all, credentials).await {
                Ok(()) => self.file(site, &self.asked()).await,
                Err(refusal) => refusal,
            },
        };
        self.finished(self.with_page(site, response).await)
    }

    async fn verify(&self, all: Vec<Arc<Auth>>, credentials: Credentials) -> Result<(), Response> {
        for auth in all {
            let challenge = challenge(&auth);
            match auth.verify(credentials.clone(), self.client()).await {
                Some(true) => {}
                Some(false) => return Err(challenge),
                None => {
                    let reason = Reason::Limit("too many passwords are being verified");
                    return Err(Response::failure(Status::SERVICE_UNAVAILABLE, reason));
                }
            }
        }
        Ok(())
    }

    async fn file(&self, site: &Site, path: &[u8]) -> Response {
        let policy = self.policy(site);
        let mut found = self.present(path, false).await;
        if matches!(found, Err(Missing::Index)) && policy.listing() {
            found = self.listing(site, path).await;
        }
        let reason = match found {
            Ok(response) => return response,
            Err(Missing::Failed(status, reason)) => return Response::failure(status, reason),
            Err(Missing::Directory) => {
                let query = self.request.query;
                let query = query.map(|query| format!("?{query}")).unwrap_or_default();
                let location = format!("{}/{query}", encode(path));
                return Response::redirect(Status::MOVED_PERMANENTLY, &location);
            }
            Err(Missing::Link(errno)) => Some(Reason::System(errno)),
            Err(Missing::Nothing | Missing::Index) => None,
        };
        let last_segment = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        if let Some(fallback) = policy.fallback()
            && !last_segment.contains(&b'.')
            && let Ok(response) = self.present(fallback, true).await
        {
            return response;
        }
        Response { reason, ..Response::message(Status::NOT_FOUND) }
    }

    async fn present(&self, path: &[u8], is_fallback: bool) -> Result<Response, Missing> {
        let choose = |resource: &Rc<Resource>| preferred(self.request, resource).cloned();
        let (resource, variant) = self.unchanged(path, choose).await?;
        Ok(self.respond(path, &resource, &variant, is_fallback))
    }

    fn respond(
        &self,
        path: &[u8],
        resource: &Rc<Resource>,
        variant: &Rc<Variant>,
        is_fallback: bool,
    ) -> Response {
        if let Some(site) = self.site {
            self.worker.compress_for(self.request, &self.generation, site, path, resource);
        }
        let response = variant.respond(self.request, is_fallback);
        if variant.saved > 0 && self.request.method == Method::Get && response.status == Status::OK
        {
            self.worker.counters.compression_saved_bytes.add(variant.saved);
        }
        response
    }

    /// An existing file, and the variant of it that `choose` selects. One that was written to since it was opened
    /// is looked up again.
    async fn unchanged(
        &self,
        path: &[u8],
        choose: impl Fn(&Rc<Resource>) -> Option<Rc<Variant>>,
    ) -> Result<(Rc<Resource>, Rc<Variant>), Missing> {
        let site = self.site.ok_or(Missing::Nothing)?;
        let valid = self.generation.settings.cache_valid;
        for attempt in 0..ANSWER_ATTEMPTS {
            let cached = match attempt {
                0 => self.worker.cached(&self.generation, site, path),
                _ => None,
            };
            let resource = match cached {
                Some(resource) => {
                    self.worker.counters.cache_hits.add(1);
                    resource
                }
                None => {
                    // A load that is under way may have begun before the write.
                    let valid = if attempt == 0 { valid } else { Duration::ZERO };
                    self.worker.resource(&self.generation, site, path, valid).await?
                }
            };
            let Some(variant) = choose(&resource) else { break };
            let change = match variant.checked_file() {
                Some(file) => file.recent_change().await?,
                None => Change::Nothing,
            };
            // A file that grew is looked up again once. It may grow continuously.
            if change == Change::Nothing || change == Change::Grew && attempt > 0 {
                return Ok((resource, variant));
            }
            self.generation.cache.remove(site, path);
        }
        Err(Missing::CHANGING)
    }

    /// An error has the content of its file, if it has one.
    async fn with_page(&self, site: &Site, error: Response) -> Response {
        let policy = self.policy(site);
        let Some(page) = policy.error_page(error.status) else { return error };
        match self.unchanged(page, |resource| resource.identity().cloned()).await {
            Ok((_, page)) => page.as_content_of(error),
            Err(_) => error,
        }
    }

    async fn listing(&self, site: &Site, path: &[u8]) -> Result<Response, Missing> {
        const FULL: Missing =
            Missing::Failed(Status::SERVICE_UNAVAILABLE, Reason::Limit("too many listings"));
        let listings = &self.worker.listings;
        if listings.are_full() {
            return Err(FULL);
        }
        let relative = match path {
            b"/" => Path::new("."),
            path => as_path(&path[1..]),
        };
        let root = site.directory.as_ref().ok_or(Missing::Nothing)?;
        let listed = {
            // It is never closed.
            let _turn = listings.scans.acquire().await.ok();
            root.list(relative, site.symlinks, ENTRIES_MAX).await?
        };
        let content = render(path, &listed);
        let length = Some(content.len() as u64);
        let body = match self.request.method {
            Method::Get => Body::Listing(listings.hold(content).ok_or(FULL)?),
            _ => Body::Empty,
        };
        let response = Response::new(Status::OK)
            .with("Content-Type", HeaderValue::from_static("text/html; charset=utf-8"))
            .with("Cache-Control", HeaderValue::from_static("no-cache"));
        Ok(Response { length, body, ..response })
    }

    /// The answer to a request that is refused without a look at its target.
    pub(super) fn refuse(&self, status: Status) -> Response {
        self.finished(Response::message(status))
    }

    /// With what all answers have in common.
    fn finished(&self, mut response: Response) -> Response {
        if let Some(site) = self.site() {
            if response.stored.is_none() {
                let policy = self.policy(site);
                let cache_control = policy.cache_control().filter(|_| response.is_file);
                response.fields.extend(cache_control.cloned());
                response.fields.extend(policy.headers().into_iter().cloned());
            }
            if let Some(hsts) = site.hsts.as_ref().filter(|_| self.is_secure()) {
                response.add("Strict-Transport-Security", hsts.clone());
            }
        }
        if self.request.method == Method::Head {
            response.body = Body::Empty;
        }
        if let (Some(reason), Some(errors)) = (response.reason, &self.worker.http.errors) {
            errors(error_line(response.status, reason, self));
        }
        response
    }

    fn is_secure(&self) -> bool {
        self.transport.is_secure(&self.generation.settings.forwarded_from, self.request)
    }

    /// The address that the request comes from, by the word of a trusted proxy if there is one.
    pub(super) fn client(&self) -> Option<IpAddr> {
        let peer = self.transport.peer?.ip();
        let trusted = &self.generation.settings.forwarded_from;
        Some(client(trusted, peer, self.request).unwrap_or(peer))
    }

    /// The requested path, as rules see it; that of the whole if it is invalid.
    fn asked(&self) -> Cow<'_, [u8]> {
        clean(self.request.path.as_bytes()).unwrap_or(Cow::Borrowed(b"/"))
    }

    fn policy<'s>(&self, site: &'s Site) -> Policy<'s> {
        let matching = self.matching.get_or_init(|| site.rules.matching(as_path(&self.asked())));
        site.rules.of(matching)
    }

    fn site(&self) -> Option<&Site> {
        self.site.map(|site| self.generation.settings.sites.site(site))
    }
}

fn challenge(auth: &Auth) -> Response {
    Response::message(Status::UNAUTHORIZED).with("WWW-Authenticate", value(&auth.challenge))
}
