//! From a configuration to what is served, and what is told of it.

use super::config::{Configuration, SiteConfig};
use super::log_file;
use crate::serve::sandbox::paths::Paths;
use nix::fcntl::{AtFlags, OFlag};
use nix::unistd::{AccessFlags, faccessat};
use std::fs::{File, metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use twinring_services::http::encoding::Coding;
use twinring_services::http::{CertificateFiles, HttpSettings, Sites, Tls, TlsSettings};

impl Configuration {
    /// The settings with the sites; what is wrong with them is added to `problems`.
    pub(super) fn settings(&self, problems: &mut Vec<String>) -> HttpSettings {
        let mut sites = Sites::default();
        for SiteConfig { place, rule_places, site, .. } in &self.sites {
            for (rule, why) in sites.add(site.clone()).err().into_iter().flatten() {
                let place = rule.and_then(|number| rule_places.get(number)).unwrap_or(place);
                problems.push(format!("{place}{why}"));
            }
        }
        // Rules of all sites are wrong in each of them.
        problems.sort();
        problems.dedup();
        HttpSettings { sites, ..self.http.clone() }
    }

    pub(super) fn tls(&self) -> Result<Option<Arc<Tls>>, String> {
        let settings = self.tls_settings();
        (!settings.certificates.is_empty()).then(|| Tls::new(&settings)).transpose()
    }

    pub(super) fn tls_settings(&self) -> TlsSettings {
        let of_site =
            |config: &SiteConfig| Some((config.site.names.clone(), config.certificate()?));
        TlsSettings {
            certificates: self.sites.iter().filter_map(of_site).collect(),
            min_version: self.listening.tls_min_version,
            http2: self.http.http2,
        }
    }

    /// The files that the server reads and writes, at a reload once more.
    pub(super) fn paths(&self) -> Paths {
        let roots = self.sites.iter().filter_map(|config| config.site.root.clone());
        // A link to the present release will lead to one beside it.
        let releases = roots.clone().filter(|root| root.is_symlink()).filter_map(|root| {
            let target = root.canonicalize().ok()?;
            target.parent().filter(|parent| parent.parent().is_some()).map(Path::to_owned)
        });
        let rules = self.sites.iter().flat_map(|config| &config.site.rules.all);
        let users = rules.filter_map(|rule| rule.auth.clone());
        let certificates = self.sites.iter().filter_map(SiteConfig::certificate);
        let certificates = certificates.flat_map(|files| [files.certificate, files.key]);
        let more = self.listening.sandbox_read.iter().cloned();
        Paths {
            read: roots.chain(releases).chain(more).collect(),
            read_files: certificates.chain(self.given.config.clone()).chain(users).collect(),
            written: log_file(&self.log).into_iter().cloned().collect(),
            own_process: self.args.admin.is_some(),
        }
    }
}

impl SiteConfig {
    /// What holds for it, a line each: first its hosts, then keys and rules, and at last precompressed files that are
    /// not sent.
    pub(super) fn effective(&self) -> Vec<String> {
        let names: Vec<String> = self.site.names.iter().map(ToString::to_string).collect();
        let mut lines = vec![match names.as_slice() {
            [] => "any other host:".to_owned(),
            names => format!("{}:", names.join(", ")),
        }];
        lines.extend(self.shown.iter().map(|line| format!("  {line}")));
        let root = self.site.root.as_deref();
        let stale = root.map_or(0, |root| stale_variants(root, &self.site.precompressed));
        if stale > 0 {
            lines.push(format!(
                "  {stale} precompressed files are older than their originals and not sent"
            ));
        }
        lines
    }

    pub(super) fn certificate(&self) -> Option<CertificateFiles> {
        let (certificate, key) = (self.site.tls_cert.clone()?, self.site.tls_key.clone()?);
        Some(CertificateFiles { certificate, key })
    }

    /// Its root, kept open until it is known whether a new user may read it.
    pub(super) fn open_root(&self) -> Option<File> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
        File::options().read(true).custom_flags(flags.bits()).open(self.site.root.as_ref()?).ok()
    }

    /// The first file that the service must be able to read, and this process may not with its current rights.
    pub(super) fn unreadable(&self, root: &File) -> Option<String> {
        let (path, rules) = (self.site.root.as_ref()?, &self.site.rules.all);
        let refusal = |name: &Path, mode| {
            faccessat(root, name, mode, AtFlags::AT_EACCESS).map_err(io::Error::from).err()
        };
        if let Some(error) = refusal(Path::new("."), AccessFlags::X_OK) {
            return Some(format!("may not search --root {}: {error}", path.display()));
        }
        let lists = rules.iter().any(|rule| rule.listing == Some(true));
        if let Some(error) = refusal(Path::new("."), AccessFlags::R_OK).filter(|_| lists) {
            return Some(format!("may not list --root {}: {error}", path.display()));
        }
        let files = rules.iter().flat_map(|rule| rule.error_pages.values().chain(&rule.fallback));
        files.map(|file| file.strip_prefix("/").unwrap_or(file)).find_map(|file| {
            let error = refusal(file, AccessFlags::R_OK)?;
            Some(format!("may not read {}: {error}", path.join(file).display()))
        })
    }
}

const VISITED_MAX: usize = 100_000;

/// How many precompressed files beneath `root` are older than the files beside them.
fn stale_variants(root: &Path, codings: &[Coding]) -> usize {
    let modified_s = |path: &Path| metadata(path).map(|file| file.mtime()).ok();
    let is_stale = |file: &Path, coding: &Coding| {
        let mut beside = file.as_os_str().to_owned();
        beside.push(coding.suffix());
        modified_s(Path::new(&beside)).is_some_and(|it| Some(it) < modified_s(file))
    };
    let (mut stale, mut left, mut directories) = (0, VISITED_MAX, vec![root.to_owned()]);
    while let Some(directory) = directories.pop().filter(|_| !codings.is_empty()) {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten().take(left) {
            left -= 1;
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                directories.push(path);
            } else {
                stale += codings.iter().filter(|coding| is_stale(&path, coding)).count();
            }
        }
    }
    stale
}
