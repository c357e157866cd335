//! From the keys of a site to what is served.

use super::config::{RuleConfig, SiteConfig};
use super::keys::{Charset, FileName, MediaType, ToHttps};
use super::values::{List, Text};
use crate::serve::user::Served;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use twinring::fs::{Dir, Symlinks};
use twinring_services::http::encoding::Coding;
use twinring_services::http::{
    Auth, CertificateFiles, MediaTypes, Rule, Rules, Site, Sites, TlsSettings, Users,
};

impl SiteConfig {
    /// What holds for it, a line each: first its hosts, then keys and rules, and at last precompressed files that are
    /// not sent.
    pub(super) fn effective(&self) -> Vec<String> {
        let names: Vec<String> = self.keys.names.0.iter().map(ToString::to_string).collect();
        let mut lines = vec![match names.as_slice() {
            [] => "any other host:".to_owned(),
            names => format!("{}:", names.join(", ")),
        }];
        lines.extend(self.shown.iter().map(|line| format!("  {line}")));
        let root = self.keys.root.as_deref();
        let stale = root.map_or(0, |root| stale_variants(root, &self.keys.precompressed.0));
        if stale > 0 {
            lines.push(format!(
                "  {stale} precompressed files are older than their originals and not sent"
            ));
        }
        lines
    }

    /// The files of users, which a reload reads again.
    pub(super) fn user_files(&self) -> impl Iterator<Item = &PathBuf> {
        self.rules.iter().filter_map(|rule| rule.keys.auth.as_ref())
    }

    pub(super) fn certificate(&self) -> Option<CertificateFiles> {
        let (certificate, key) = (self.keys.tls_cert.clone()?, self.keys.tls_key.clone()?);
        Some(CertificateFiles { certificate, key })
    }

    /// The files that the service must be able to read later on.
    pub(super) fn served(&self) -> Option<Served> {
        let of_rule = |rule: &RuleConfig| {
            let pages = rule.keys.error_pages.values().cloned();
            pages.chain(rule.keys.fallback.clone()).collect::<Vec<_>>()
        };
        let named = self.rules.iter().flat_map(of_rule);
        let relative =
            named.map(|file| file.strip_prefix("/").map(Path::to_owned).unwrap_or(file.clone()));
        let lists = self.rules.iter().any(|rule| rule.rule.listing == Some(true));
        Served::open(self.keys.root.as_ref()?, relative.collect(), lists)
    }

    /// The site. Adds unusable directories and files to `problems`.
    fn site(&self, problems: &mut Vec<String>) -> Option<Site> {
        let before = problems.len();
        let mut complain = |place: &str, what: String| problems.push(format!("{place}{what}"));
        let keys = &self.keys;
        let root = match keys.root.as_ref().map(|path| (path, Dir::open(path))) {
            Some((path, Err(error))) => {
                complain(&self.place, format!("cannot serve root {}: {error}", path.display()));
                None
            }
            Some((_, Ok(root))) => Some(root),
            None => None,
        };
        let mut rules = Vec::new();
        for config in &self.rules {
            // Without a root, files beneath it are not looked for.
            match config.complete(keys.root.as_deref().filter(|_| root.is_some())) {
                Ok(rule) => rules.push(rule),
                Err(why) => complain(&config.place, why),
            }
        }
        let rules = Rules::new(rules).map_err(|why| complain(&self.place, why));
        let text = |media_type: &Text<MediaType>| media_type.0.0.clone();
        let own = keys.types.iter().map(|(name, media_type)| {
            (name.trim_start_matches('.').to_ascii_lowercase(), text(media_type))
        });
        let mut site = Site { root, ..Site::default() };
        site.symlinks = keys.symlinks.unwrap_or(Symlinks::Beneath);
        if let Some(List(names)) = &keys.index {
            site.index = names.iter().map(|FileName(name)| name.clone()).collect();
        }
        site.clean_urls = keys.clean_urls;
        site.precompressed = keys.precompressed.0.clone();
        site.compress = keys.compress.0.clone();
        site.types = MediaTypes {
            own: own.collect(),
            default: keys.default_type.as_ref().map(text),
            charset: keys.charset.clone().map(|Text(Charset(name))| name),
        };
        site.to_https = keys.redirect_to_https.clone().and_then(|Text(ToHttps(address))| address);
        site.hsts = keys.hsts.clone().map(|Text(hsts)| hsts.0);
        site.rules = rules.ok()?;
        (problems.len() == before).then_some(site)
    }
}

/// The sites of a server. What cannot be used is added to `problems`, and left out.
pub(super) fn sites(all: &[SiteConfig], problems: &mut Vec<String>) -> Sites {
    let others: Vec<&SiteConfig> = all.iter().filter(|site| site.is_for_others()).collect();
    if let [_, second, ..] = others.as_slice() {
        problems.push(format!(
            "{}two sites have no names: only one is for all other hosts",
            second.place
        ));
    }
    let mut sites = Sites::new(others.first().and_then(|site| site.site(problems)));
    for config in all.iter().filter(|site| !site.is_for_others()) {
        let Some(site) = config.site(problems) else { continue };
        if let Err(name) = sites.add(&config.keys.names.0, site) {
            problems.push(format!("{}{name} is the name of two sites", config.place));
        }
    }
    // Rules of all sites are wrong in each of them.
    problems.sort();
    problems.dedup();
    sites
}

pub(super) fn certificates(all: &[SiteConfig]) -> TlsSettings {
    let of_site = |site: &SiteConfig| Some((site.keys.names.0.clone(), site.certificate()?));
    let (named, others): (Vec<_>, Vec<_>) = all.iter().partition(|site| !site.is_for_others());
    TlsSettings {
        default: others.iter().find_map(|site| site.certificate()),
        hosts: named.into_iter().filter_map(of_site).collect(),
        ..TlsSettings::default()
    }
}

impl RuleConfig {
    /// The rule, with what is in files.
    fn complete(&self, root: Option<&Path>) -> Result<Rule, String> {
        let keys = &self.keys;
        let mut rule = self.rule.clone();
        if let Some(file) = &keys.auth {
            let realm = keys.realm.as_deref().unwrap_or("Restricted");
            rule.auth = Some(Arc::new(Auth::new(realm, Users::read(file)?)?));
        }
        if let Some(root) = root {
            let beneath = |key: &str, file: &PathBuf| beneath_root(root, key, file);
            rule.fallback =
                keys.fallback.as_ref().map(|file| beneath("fallback", file)).transpose()?;
            for (Text(status), file) in &keys.error_pages {
                let key = format!("error-pages.{status}");
                rule.error_pages.insert(*status, beneath(&key, file)?);
            }
        }
        Ok(rule)
    }
}

const VISITED_MAX: usize = 100_000;

/// How many precompressed files beneath `root` are older than the files beside them.
fn stale_variants(root: &Path, codings: &[Coding]) -> usize {
    let (mut stale, mut visited, mut directories) = (0, 0, vec![root.to_owned()]);
    let modified_s = |path: &Path| {
        std::fs::metadata(path).map(|file| std::os::unix::fs::MetadataExt::mtime(&file))
    };
    while let Some(directory) = directories.pop().filter(|_| !codings.is_empty()) {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            visited += 1;
            if visited > VISITED_MAX {
                return stale;
            }
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                directories.push(entry.path());
                continue;
            }
            for coding in codings {
                let mut beside = entry.path().into_os_string();
                beside.push(coding.suffix());
                if let (Ok(file), Ok(other)) =
                    (modified_s(&entry.path()), modified_s(Path::new(&beside)))
                {
                    stale += usize::from(other < file);
                }
            }
        }
    }
    stale
}

/// The path of a file in requests. The file must exist.
fn beneath_root(root: &Path, key: &str, file: &Path) -> Result<Vec<u8>, String> {
    let wrong = |why: &str| format!("cannot use {key} {}: {why}", file.display());
    let relative = file.strip_prefix("/").unwrap_or(file);
    let metadata = std::fs::metadata(root.join(relative))
        .map_err(|error| wrong(&format!("{error}; it must be beneath the root")))?;
    if !metadata.is_file() {
        return Err(wrong("it is not a regular file"));
    }
    let path = Path::new("/").join(relative);
    Ok(path.into_os_string().into_encoded_bytes())
}
