//! The reload on SIGHUP: all sites with their rules, files of users and certificates, or nothing.

use super::arguments::HttpArgs;
use super::config::{self, Configuration, SiteConfig};
use crate::serve::user::Served;
use crate::serve::{manager, notices};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use twinring_services::http::{HttpSettings, LiveSettings, Tls, TlsUpdate};
use twinring_services::take_no_signals;

/// Errors that the message of a failed reload has; further ones are counted.
const PROBLEMS_TOLD_MAX: usize = 10;

/// What a reload replaces, and what it is compared with.
pub(super) struct Running {
    pub(super) args: HttpArgs,
    pub(super) started: Configuration,
    pub(super) settings: Arc<LiveSettings>,
    pub(super) tls: Option<Arc<Tls>>,
    /// Landlock limits the directories that can be read.
    pub(super) is_confined: bool,
}

/// Reloads on request, on a separate thread: the filesystem of the files may never answer.
pub(super) struct Reloader(SyncSender<()>);

impl Reloader {
    pub(super) fn start(running: Running) -> io::Result<Reloader> {
        // One request waits behind the one under way, and stands for all that come meanwhile.
        let (requests, received) = sync_channel(1);
        std::thread::Builder::new().name("reload".to_owned()).spawn(move || {
            take_no_signals();
            received.iter().for_each(|()| running.reload());
        })?;
        Ok(Reloader(requests))
    }

    /// Returns at once.
    pub(super) fn request(&self) {
        let _one_waits_already = self.0.try_send(());
    }
}

impl Running {
    /// Replaces everything or nothing, and tells the operator in one message.
    fn reload(&self) {
        manager::reloading();
        let message = match self.load() {
            Ok((settings, certificates)) => {
                let mut what = String::from("sites");
                if let (Some(tls), Some(certificates)) = (&self.tls, certificates) {
                    tls.install(certificates);
                    what.push_str(", certificates");
                }
                self.settings.replace(settings);
                format!("{what} were reloaded")
            }
            Err(problems) => {
                self.settings.refuse();
                let told = &problems[..problems.len().min(PROBLEMS_TOLD_MAX)];
                let mut text = told.join("; ");
                if let more @ 1.. = problems.len() - told.len() {
                    text.push_str(&format!("; and {more} more"));
                }
                format!("nothing was reloaded, the previous configuration stays in use: {text}")
            }
        };
        notices::tell(format!("twinring: {message}"));
        manager::reloaded(&message);
    }

    /// Reads and checks everything, without a change.
    fn load(&self) -> Result<(HttpSettings, Option<TlsUpdate>), Vec<String>> {
        let configuration = config::read(&self.args).map_err(|problem| vec![problem])?;
        let mut problems = configuration.usage();
        let fixed = self.started.differences(&configuration);
        if !fixed.is_empty() {
            let fixed = fixed.join(", ");
            problems
                .push(format!("[server] {fixed}: cannot change while the server runs; restart it"));
        }
        let settings = configuration.settings(&mut problems);
        problems.extend(unreadable(&configuration.sites, self.is_confined));
        let certificates = match &self.tls {
            Some(tls) => tls.load(&configuration.tls_settings()).map(Some),
            None => Ok(None),
        };
        let certificates = certificates.map_err(|error| problems.push(error));
        match certificates {
            Ok(certificates) if problems.is_empty() => Ok((settings, certificates)),
            _ => Err(problems),
        }
    }
}

/// The roots that the server may not read with the rights that it has kept.
fn unreadable(sites: &[SiteConfig], is_confined: bool) -> Vec<String> {
    let mut problems = Vec::new();
    for site in sites {
        // A root that does not exist is an error of the settings already.
        let Some(root) = site.site.root.as_ref().filter(|root| root.exists()) else { continue };
        // Landlock refuses to open the directories that it hides.
        let is_hidden = || {
            let opened = std::fs::File::open(root);
            opened.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
        };
        if is_confined && is_hidden() {
            problems.push(format!(
                "the sandbox keeps the server from reading root {}: restart it, or list the \
                 directory in sandbox-read",
                root.display()
            ));
        } else if let Some(why) = site.served().and_then(|served| Served::unreadable(&served)) {
            problems.push(format!("this user {why}"));
        }
    }
    problems.sort();
    problems.dedup();
    problems
}
