//! `twinring serve http`: static files.

mod config;
mod moved;
mod reload;
mod site;

pub use config::configuration;

use super::Ended;
use super::arguments::ServerArgs;
use super::listen::{self, ListenOn, with_remedy};
use super::notices;
use super::operate::Prepared;
use super::report::Reporter;
use super::sandbox::{CAPABILITIES, LANDLOCK};
use super::signals::Received;
use super::user::{self, Identity, may_replace};
use crate::output::{complain, or_usage, print_line, raise_descriptor_limit};
use clap::Args;
use config::{Configuration, SiteConfig};
use nix::unistd::fchown;
use reload::Running;
use signal_hook::consts::{SIGHUP, SIGUSR1};
use signal_hook::iterator::Signals;
use std::fs::File;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use twinring::confine::Uses;
use twinring::net::ListenOptions;
use twinring_input::quantity::Count;
use twinring_services::http::{
    AccessLog, HttpService, HttpSettings, LogSettings, LogTarget, Tls, expired, listing,
};

/// What people type. Everything else is a key of the configuration file.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct HttpArgs {
    /// TOML file with [server], [[site]] and [[site.rule]]: sites, header fields, redirects, passwords, limits,
    /// timeouts. The command line takes precedence. SIGHUP reloads the sites, all or nothing.
    #[arg(long, value_name = "FILE", help_heading = "Operation")]
    config: Option<PathBuf>,
    /// Check arguments, configuration file, directories, certificates and rights, as the user of the running server,
    /// print the effective rules of each site, and exit.
    #[arg(long, help_heading = "Operation")]
    check: bool,
    /// Directory whose files are served to hosts without a [[site]] of their own. Files and directories that begin
    /// with a dot are not served, except for `/.well-known/`.
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// List directories without an index file.
    #[arg(long, value_name = "html|off", value_parser = listing)]
    listing: Option<bool>,
    /// Address to listen on; may be given several times, for IPv4 and IPv6 (`[::1]:8080`). `fd:NAME` is
    /// a socket that systemd passes, by its FileDescriptorName, and `systemd` are all passed ones
    /// that no option names. [default: 127.0.0.1:8080, without --listen-tls]
    #[arg(long, value_name = "ADDR|systemd|fd:NAME", help_heading = "Listening")]
    listen: Vec<ListenOn>,
    /// Address to listen on with TLS; may be given several times.
    #[arg(long, value_name = "ADDR|systemd|fd:NAME", help_heading = "Listening")]
    listen_tls: Vec<ListenOn>,
    /// PEM file with the certificate, followed by its chain to one that clients trust. SIGHUP reloads it and the key,
    /// for new connections.
    #[arg(long, value_name = "FILE", help_heading = "Listening")]
    tls_cert: Option<PathBuf>,
    /// PEM file with its private key.
    #[arg(long, value_name = "FILE", help_heading = "Listening")]
    tls_key: Option<PathBuf>,
    /// Concurrent requests of a connection of HTTP/2. [default: 100]
    #[arg(long, value_name = "N", help_heading = "Listening")]
    http2_streams: Option<Count<1, 10_000>>,
    /// Append a line for each request to this file, or to standard output (`-`). SIGHUP and SIGUSR1
    /// reopen the file, after it was renamed.
    #[arg(long, value_name = "FILE|-", help_heading = "Operation")]
    access_log: Option<PathBuf>,
    #[command(flatten)]
    server: ServerArgs,
}

pub(super) fn serve(args: HttpArgs) -> Ended {
    // SIGHUP reloads the configuration and reopens the log. It is handled even without both, because
    // its default effect would end the process.
    let signals = Signals::new([SIGHUP, SIGUSR1])?;
    raise_descriptor_limit();
    let configuration = or_usage(config::read(&args));
    // No address is bound and no file is created before all is checked.
    let mut problems = configuration.usage();
    // A wrong configuration is a wrong argument.
    let code = if problems.is_empty() { 1 } else { 2 };
    let settings = configuration.settings(&mut problems);
    let tls = configuration.tls().map_err(|error| problems.push(error)).ok();
    let uses = Uses { accept: true, files: true, ..Uses::default() };
    let prepared = configuration.args.prepare(uses);
    let prepared = prepared.map_err(|them| problems.extend(them)).ok();
    if args.check {
        problems.extend(check_log(&configuration.log, false));
        // Clients refuse certificates because of their dates.
        let certificates = configuration.sites.iter().filter_map(SiteConfig::certificate);
        problems.extend(certificates.filter_map(|files| expired(&files.certificate)));
    }
    let (Some(mut prepared), Some(tls), []) = (prepared, tls, &problems[..]) else {
        problems.iter().for_each(|problem| complain(&format!("twinring: {problem}")));
        return Ok(ExitCode::from(code));
    };
    if !args.check {
        prepared.signals = Some(signals);
        return run(configuration, prepared, settings, tls);
    }
    // This process ends here, so it may switch to the user of the server.
    configuration.change_rights(&mut prepared, tls.as_deref(), || Ok(()))?;
    configuration.sites.iter().flat_map(SiteConfig::effective).for_each(|line| print_line(&line));
    print_line("OK");
    Ok(ExitCode::SUCCESS)
}

fn run(
    started: Configuration,
    mut prepared: Prepared,
    settings: HttpSettings,
    tls: Option<Arc<Tls>>,
) -> Ended {
    let (workers, handle) = (prepared.runtime.workers(), prepared.runtime.handle());
    prepared.drain_timeout = settings.drain_timeout;
    let mut service = HttpService::new(settings, workers, handle);
    let encrypted = started.bind(&mut service, &tls)?;
    prepared.bind_admin()?;
    if prepared.identity.is_none() && user::is_root() {
        complain("twinring: the server runs with the rights of root; --user NAME drops them");
    }
    let owner = prepared.identity.clone();
    let open = || open_log(&started.log, workers, owner.as_ref());
    prepared.log = started.change_rights(&mut prepared, tls.as_deref(), open)?;
    let tell = |line| notices::ERRORS.print(format!("twinring: {line}"));
    let service = service.observed(prepared.log.clone(), prepared.admin.is_some(), tell);
    let mut reporter = Reporter::new(&prepared, &service);
    if !encrypted.is_empty() {
        let list: Vec<String> = encrypted.iter().map(SocketAddr::to_string).collect();
        reporter.add("tls", &encrypted, format!("TLS on {}", list.join(", ")));
    }
    for signal in [SIGHUP, SIGUSR1] {
        let log = prepared.log.clone();
        let reopen = move || log.iter().for_each(|log| log.reopen());
        prepared.actions.push((signal, Box::new(reopen)));
    }
    let (is_confined, settings) = (prepared.sandbox.report.has(LANDLOCK), service.settings());
    let running = Running { started, settings, tls, is_confined };
    prepared.actions.push((SIGHUP, Box::new(running.reloader()?)));
    prepared.run(service, reporter)
}

impl Configuration {
    /// Binds all addresses, and takes the passed sockets. Returns the addresses with TLS.
    fn bind(
        &self,
        service: &mut HttpService,
        tls: &Option<Arc<Tls>>,
    ) -> Result<Vec<SocketAddr>, String> {
        let backlog = self.listening.backlog.map_or(4096, |backlog| backlog.get() as u32);
        let options = ListenOptions { backlog };
        let lists = [&self.listening.listen[..], &self.listening.listen_tls];
        let addresses = lists.map(listen::addresses);
        let available = listen::available(&addresses.concat());
        let mut plain = 0;
        for (number, (mut addresses, passed)) in
            addresses.into_iter().zip(listen::passed(lists)?).enumerate()
        {
            let tls = if number == 0 { &None } else { tls };
            plain = service.addresses().len();
            addresses.retain(|address| available.contains(address));
            service
                .listen(&addresses, &options, tls)
                .map_err(|error| with_remedy(&error, "ss -ltnp"))?;
            service.adopt(passed, &options, tls).map_err(|error| error.to_string())?;
        }
        Ok(service.addresses()[plain..].to_vec())
    }

    /// Drops the rights that the server does not need, opens the log by `open_log` on the way, and
    /// warns about actions that are no longer possible.
    fn change_rights<L>(
        &self,
        prepared: &mut Prepared,
        tls: Option<&Tls>,
        open_log: impl FnOnce() -> Result<L, String>,
    ) -> Result<L, String> {
        let roots: Vec<Option<File>> = self.sites.iter().map(SiteConfig::open_root).collect();
        let Prepared { runtime, identity, sandbox, .. } = prepared;
        sandbox.enter(runtime, &self.paths(), identity.as_ref())?;
        let log = open_log()?;
        let changed = match identity {
            Some(identity) => {
                identity.assume()?;
                Some(identity.name.as_str())
            }
            None if user::is_root() && sandbox.report.has(CAPABILITIES) => {
                Some("root without capabilities (--user NAME is better)")
            }
            None => None,
        };
        let mut sites = self.sites.iter().zip(&roots);
        if let Some(unreadable) = sites.find_map(|(site, root)| site.unreadable(root.as_ref()?)) {
            return Err(format!("{} {unreadable}", changed.unwrap_or("this user")));
        }
        // With the same rights as before, it has been opened already.
        let Some(who) = changed else { return Ok(log) };
        let certificates = tls.and_then(|tls| tls.load(&self.tls_settings()).err());
        let config = self.given.config.as_ref().and_then(|path| File::open(path).err());
        for problem in [
            check_log(&self.log, true),
            certificates.map(|error| format!("{error}; SIGHUP will reload nothing")),
            config.map(|e| format!("cannot read --config: {e}; SIGHUP will reload nothing")),
        ] {
            problem.iter().for_each(|why| complain(&format!("twinring: as {who}: {why}")));
        }
        Ok(log)
    }
}

/// How long the end of the command waits for the access log to be written.
const PATIENCE: Duration = Duration::from_secs(5);

/// The file of a log, if it goes to one.
fn log_file(settings: &LogSettings) -> Option<&PathBuf> {
    match settings.access_log.as_ref()? {
        LogTarget::File(path) => Some(path),
        LogTarget::Stdout => None,
    }
}

/// Opens the log, if one is configured. A new file belongs to `owner`, so that it can be reopened.
fn open_log(
    settings: &LogSettings,
    workers: usize,
    owner: Option<&Identity>,
) -> Result<Option<Arc<AccessLog>>, String> {
    let Some(target) = settings.access_log.clone() else { return Ok(None) };
    if let (LogTarget::File(path), Some(owner)) = (&target, owner) {
        let mut options = File::options();
        // If it is there already, or cannot be made, what comes next shows.
        if let Ok(made) = options.append(true).create_new(true).mode(0o640).open(path) {
            fchown(&made, owner.user, Some(owner.group)).map_err(|error| {
                format!("cannot give access-log {target} to {}: {error}", owner.name)
            })?;
        }
    }
    let tell = |notice: &str| notices::tell(format!("twinring: {notice}"));
    let log = AccessLog::open(target.clone(), settings, workers, tell);
    log.map(Some).map_err(|error| format!("cannot open access-log {target}: {error}"))
}

/// Why this process, with its current rights, cannot open the log, or once more after a rotation if it `is_open`. Found
/// without creating the file.
fn check_log(settings: &LogSettings, is_open: bool) -> Option<String> {
    let path = log_file(settings)?;
    let refusal = LogTarget::File(path.clone()).open(false).err();
    let why = match refusal.filter(|error| error.kind() != ErrorKind::NotFound) {
        Some(error) if is_open => {
            format!("{error}: after SIGHUP and SIGUSR1 the old file stays open")
        }
        Some(error) => error.to_string(),
        None if may_replace(path) || !is_open && path.exists() => return None,
        None => "no file can be created in its directory: create it beforehand, as `create` of logrotate does".to_owned(),
    };
    Some(format!("cannot open access-log {}: {why}", path.display()))
}

/// Waits until all lines are written, for a bounded time, and not after a second signal.
pub(super) fn finish_log(log: &AccessLog, signals: &Received) {
    let started = Instant::now();
    while !log.finish(Duration::from_millis(20)) && !signals.stops_at_once() {
        if started.elapsed() > PATIENCE {
            return notices::tell(format!(
                "twinring: access log {}: not all lines could be written within {PATIENCE:?}",
                log.target
            ));
        }
    }
}
