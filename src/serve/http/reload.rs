//! The reload on SIGHUP: all sites with their rules, files of users and certificates, or nothing.

use super::config::{self, Configuration, SiteConfig};
use crate::serve::notices;
use std::fs::File;
use std::io::{self, ErrorKind::PermissionDenied};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use twinring::measure::monotonic_ns;
use twinring_services::http::{HttpSettings, LiveSettings, Tls, TlsUpdate};
use twinring_services::take_no_signals;

/// Errors that the message of a failed reload has; further ones are counted.
const PROBLEMS_TOLD_MAX: usize = 10;

/// What a reload replaces, and what it is compared with.
pub(super) struct Running {
    pub(super) started: Configuration,
    pub(super) settings: Arc<LiveSettings>,
    pub(super) tls: Option<Arc<Tls>>,
    /// Landlock limits the directories that can be read.
    pub(super) is_confined: bool,
}

impl Running {
    /// What requests a reload, and returns at once. It is done on a separate thread: the filesystem of the files may
    /// never answer.
    pub(super) fn reloader(self) -> io::Result<impl Fn() + Send> {
        // One request waits behind the one under way, and stands for all that come meanwhile.
        let (requests, received) = sync_channel(1);
        std::thread::Builder::new().name("reload".to_owned()).spawn(move || {
            take_no_signals();
            received.iter().for_each(|()| self.reload());
        })?;
        Ok(move || {
            let _one_waits_already = requests.try_send(());
        })
    }

    /// Replaces everything or nothing, and tells the operator in one message.
    fn reload(&self) {
        let us = monotonic_ns() / 1000;
        notices::tell_manager(&format!("RELOADING=1\nMONOTONIC_USEC={us}"));
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
            Err(mut problems) => {
                self.settings.refuse();
                if problems.len() > PROBLEMS_TOLD_MAX {
                    let more = problems.split_off(PROBLEMS_TOLD_MAX).len();
                    problems.push(format!("and {more} more"));
                }
                let text = problems.join("; ");
                format!("nothing was reloaded, the previous configuration stays in use: {text}")
            }
        };
        notices::tell(format!("twinring: {message}"));
        notices::tell_manager(&format!("READY=1\nSTATUS={}", message.replace('\n', " ")));
    }

    /// Reads and checks everything, without a change.
    fn load(&self) -> Result<(HttpSettings, Option<TlsUpdate>), Vec<String>> {
        let configuration = config::read(&self.started.given).map_err(|problem| vec![problem])?;
        let mut problems = configuration.usage();
        let fixed = self.started.differences(&configuration);
        if !fixed.is_empty() {
            let fixed = fixed.join(", ");
            problems
                .push(format!("[server] {fixed}: cannot change while the server runs; restart it"));
        }
        let settings = configuration.settings(&mut problems);
        problems.extend(configuration.sites.iter().filter_map(|site| self.unreadable(site)));
        let certificates = match &self.tls {
            Some(tls) => tls.load(&configuration.tls_settings()).map(Some),
            None => Ok(None),
        };
        let certificates = certificates.map_err(|error| problems.push(error));
        problems.sort();
        problems.dedup();
        match certificates {
            Ok(certificates) if problems.is_empty() => Ok((settings, certificates)),
            _ => Err(problems),
        }
    }

    /// Why the server may not read a root with the rights that it has kept.
    fn unreadable(&self, site: &SiteConfig) -> Option<String> {
        // A root that does not exist is an error of the settings already.
        let root = site.site.root.as_ref().filter(|root| root.exists())?;
        let refused = File::open(root).is_err_and(|error| error.kind() == PermissionDenied);
        // Landlock refuses to open the directories that it hides.
        if self.is_confined && refused {
            return Some(format!(
                "the sandbox keeps the server from reading root {}: restart it, or list the \
                 directory in sandbox-read",
                root.display()
            ));
        }
        site.unreadable(&site.open_root()?).map(|why| format!("this user {why}"))
    }
}
