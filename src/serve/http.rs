//! `twinring serve http`: static files.

mod arguments;
pub(super) mod config;
mod listen;
mod log;
mod moved;
mod reload;
mod server;
mod site;

pub(super) use arguments::HttpArgs;

use super::both::Both;
use super::notices::{self, print_once};
use super::operate::{Hooks, operate};
use super::problems::{USAGE, refuse, with_remedy};
use super::report::{Subject, engine_name};
use super::sandbox::Sandbox;
use super::sandbox::paths::Paths;
use super::signals::Actions;
use super::user::{self, Identity, Served};
use super::{admin, families};
use crate::output::{complain, print_line, raise_descriptor_limit};
use config::{Configuration, SiteConfig};
use reload::{Reloader, Running};
use signal_hook::consts::{SIGHUP, SIGUSR1};
use site::sites;
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use twinring::confine::Uses;
use twinring::{Runtime, net::ListenOptions};
use twinring_services::http::{HttpService, HttpSettings, Tls, TlsSettings, expired};

pub(super) fn serve(args: HttpArgs) -> Result<ExitCode, Box<dyn Error>> {
    // SIGHUP reloads the configuration and reopens the log. It is handled even without both, because
    // its default effect would end the process.
    let signals = Actions::of(&[SIGHUP, SIGUSR1])?;
    raise_descriptor_limit();
    let configuration = match config::read(&args) {
        Ok(configuration) => configuration,
        Err(problem) => return Ok(refuse(&[problem], USAGE)),
    };
    let mut usage = configuration.usage();
    let mut problems = Vec::new();
    let prepared = Prepared::new(&configuration, &mut problems);
    if args.check {
        problems.extend(log::check(&configuration.server.log));
        problems.extend(configuration.expired());
    }
    let code = if usage.is_empty() { 1 } else { USAGE };
    usage.append(&mut problems);
    match prepared {
        Some(mut prepared) if usage.is_empty() => match args.check {
            true => {
                // This process ends here, so it may switch to the user of the server.
                prepared.change_rights(&args, &configuration, || Ok(()))?;
                let sites = &configuration.sites;
                sites.iter().flat_map(SiteConfig::effective).for_each(|line| print_line(&line));
                print_line("OK");
                Ok(ExitCode::SUCCESS)
            }
            false => run(args, configuration, prepared, signals),
        },
        _ => Ok(refuse(&usage, code)),
    }
}

impl Configuration {
    fn tls_settings(&self) -> TlsSettings {
        let of_site =
            |config: &SiteConfig| Some((config.site.names.clone(), config.certificate()?));
        TlsSettings {
            certificates: self.sites.iter().filter_map(of_site).collect(),
            min_version: self.server.listening.tls_min_version,
            http2: self.server.http.http2,
        }
    }

    fn tls(&self) -> Result<Option<Arc<Tls>>, String> {
        let settings = self.tls_settings();
        match settings.certificates.is_empty() {
            true => Ok(None),
            false => Tls::new(&settings).map(Some),
        }
    }

    /// The settings with the sites; what is wrong with them is added to `problems`.
    fn settings(&self, problems: &mut Vec<String>) -> HttpSettings {
        HttpSettings { sites: sites(&self.sites, problems), ..self.server.http.clone() }
    }

    /// Certificates that clients refuse because of their dates.
    fn expired(&self) -> impl Iterator<Item = String> {
        let files = self.sites.iter().filter_map(SiteConfig::certificate);
        files.filter_map(|files| expired(&files.certificate))
    }

    fn paths(&self, config: Option<&PathBuf>) -> Paths {
        let roots = self.sites.iter().filter_map(|config| config.site.root.clone());
        // A link to the present release will lead to one beside it.
        let releases = roots.clone().filter(|root| root.is_symlink()).filter_map(|root| {
            let target = root.canonicalize().ok()?;
            target.parent().filter(|parent| parent.parent().is_some()).map(Path::to_owned)
        });
        let users = self.sites.iter().flat_map(SiteConfig::user_files).cloned();
        let certificates = self.sites.iter().filter_map(SiteConfig::certificate);
        let certificates = certificates.flat_map(|files| [files.certificate, files.key]);
        Paths {
            read: roots
                .chain(releases)
                .chain(self.server.listening.sandbox_read.iter().cloned())
                .collect(),
            // On SIGHUP the configuration file is read again.
            read_files: certificates.chain(config.cloned()).chain(users).collect(),
            written: log::file(&self.server.log).into_iter().cloned().collect(),
            own_process: self.server.admin.admin.is_some(),
        }
    }
}

/// The result of checking the configuration without binding an address or creating a file.
struct Prepared {
    settings: HttpSettings,
    tls: Option<Arc<Tls>>,
    runtime: Runtime,
    identity: Option<Identity>,
    sandbox: Sandbox,
}

impl Prepared {
    /// `None` if a problem makes it incomplete.
    fn new(configuration: &Configuration, problems: &mut Vec<String>) -> Option<Prepared> {
        let server = &configuration.server;
        let settings = configuration.settings(problems);
        let tls = configuration.tls().map_err(|error| problems.push(error)).ok();
        let identity = server.user.identity().map_err(|problem| problems.push(problem)).ok();
        // The service flushes before it closes; what is then still unsent was cut on purpose.
        let builder = server.engine.runtime().linger(Duration::ZERO).on_event(print_once());
        let uses = Uses { accept: true, files: true, ..Uses::default() };
        let mut sandbox = Sandbox::new(&server.sandbox, uses);
        let identified = identity.as_ref().and_then(Option::as_ref);
        let builder = sandbox.confine(builder, &server.engine, identified);
        let runtime = builder.build().map_err(|error| problems.push(error.to_string())).ok();
        Some(Prepared { settings, tls: tls?, runtime: runtime?, identity: identity?, sandbox })
    }

    /// Drops the rights that the server does not need, opens the log by `open_log` on the way, and
    /// warns about actions that are no longer possible.
    fn change_rights<L>(
        &mut self,
        args: &HttpArgs,
        configuration: &Configuration,
        open_log: impl FnOnce() -> Result<L, String>,
    ) -> Result<L, String> {
        let served: Vec<Served> =
            configuration.sites.iter().filter_map(SiteConfig::served).collect();
        let paths = configuration.paths(args.config.as_ref());
        self.sandbox.enter(&self.runtime, &paths, self.identity.as_ref())?;
        let log = open_log()?;
        let changed = drop_rights(self.identity.as_ref(), &self.sandbox)?;
        if let Some(unreadable) = served.iter().find_map(Served::unreadable) {
            return Err(format!("{} {unreadable}", changed.as_deref().unwrap_or("this user")));
        }
        // With the same rights as before, it has been opened already.
        let Some(who) = changed else { return Ok(log) };
        if let Some(problem) = log::check_rotation(&configuration.server.log) {
            complain(&format!("twinring: as {who}: {problem}"));
        }
        let certificates = self.tls.as_ref().map(|tls| tls.load(&configuration.tls_settings()));
        if let Some(Err(error)) = certificates {
            complain(&format!("twinring: as {who}: {error}; SIGHUP will reload nothing"));
        }
        if let Some(Err(error)) = args.config.as_ref().map(std::fs::File::open) {
            complain(&format!(
                "twinring: as {who}: cannot read --config: {error}; SIGHUP will reload nothing"
            ));
        }
        Ok(log)
    }
}

fn run(
    args: HttpArgs,
    started: Configuration,
    mut prepared: Prepared,
    signals: Actions,
) -> Result<ExitCode, Box<dyn Error>> {
    let server = started.server.clone();
    let (workers, handle) = (prepared.runtime.workers(), prepared.runtime.handle());
    let (settings, tls) = (prepared.settings.clone(), prepared.tls.clone());
    let backlog = server.listening.backlog.map_or(4096, |backlog| backlog.get() as u32);
    let options = ListenOptions { backlog, ..ListenOptions::default() };
    let lists = [&server.listening.listen[..], &server.listening.listen_tls];
    let [listen, listen_tls] = lists.map(listen::addresses);
    let [listen, listen_tls] = families::available([&listen, &listen_tls]);
    let [passed, passed_tls] = listen::passed(lists)?;
    let mut service = HttpService::new(settings, workers, handle);
    let refused = |error: io::Error| with_remedy(&error, "ss -ltnp");
    service.listen(&listen, &options, &None).map_err(refused)?;
    service.adopt(passed, &options, &None)?;
    let plain = service.addresses().len();
    if tls.is_some() {
        service.listen(&listen_tls, &options, &tls).map_err(refused)?;
        service.adopt(passed_tls, &options, &tls)?;
    }
    let both = Both::of(&server.engine, &prepared.runtime, &service)?;
    let admin = server.admin.bind()?;
    if prepared.identity.is_none() && user::is_root() {
        complain("twinring: the server runs with the rights of root; --user NAME drops them");
    }
    let owner = prepared.identity.clone();
    let log = prepared
        .change_rights(&args, &started, || log::open(&server.log, workers, owner.as_ref()))?;
    let Prepared { runtime, sandbox, .. } = prepared;
    let tell = |line| notices::tell(format!("twinring: {line}"));
    let service = service.observed(log.clone(), admin.is_some(), tell);
    let engine = engine_name(runtime.features(), both.is_some());
    let observer = service.observer(engine);
    let mut subject = Subject::new("http", service.addresses(), service.counters());
    if let encrypted @ [_, ..] = &service.addresses()[plain..] {
        let list: Vec<String> = encrypted.iter().map(SocketAddr::to_string).collect();
        let text = format!("TLS on {}", list.join(", "));
        subject = subject.with_details("tls", &encrypted, text);
    }
    let subject = admin::with_details(subject, admin.as_ref());
    let drain_timeout = prepared.settings.drain_timeout;
    let mut hooks = Hooks { drain_timeout, signals, both, ..Hooks::default() };
    for signal in [SIGHUP, SIGUSR1] {
        let log = log.clone();
        hooks.signals.on(signal, move || log.iter().for_each(|log| log.reopen()));
    }
    let (is_confined, settings) = (sandbox.limits_files(), service.settings());
    let reloader = Reloader::start(Running { args, started, settings, tls, is_confined })?;
    hooks.signals.on(SIGHUP, move || reloader.request());
    let end_admin = admin::start(admin, observer)?;
    hooks.at_end = Some(Box::new(move |signals| {
        log.iter().for_each(|log| log::finish(log, signals));
        if let Some(end) = end_admin {
            end(signals);
        }
    }));
    operate(runtime, service, subject, &server.output, hooks, sandbox)
}

/// Drops the rights of root. Returns the identity if it has fewer rights than when files were opened.
fn drop_rights(identity: Option<&Identity>, sandbox: &Sandbox) -> Result<Option<String>, String> {
    if let Some(identity) = identity {
        identity.assume()?;
        return Ok(Some(identity.name().to_owned()));
    }
    let without = user::is_root() && sandbox.gave_up_capabilities();
    Ok(without.then(|| "root without capabilities (--user NAME is better)".to_owned()))
}
