//! From the sites of a configuration to what is served, and what is told of them.

use super::config::SiteConfig;
use crate::serve::user::Served;
use std::path::{Path, PathBuf};
use twinring_services::http::encoding::Coding;
use twinring_services::http::{Rule, Sites};

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

    /// The files of users, which a reload reads again.
    pub(super) fn user_files(&self) -> impl Iterator<Item = &PathBuf> {
        self.site.rules.all.iter().filter_map(|rule| rule.auth.as_ref())
    }

    /// The files that the service must be able to read later on.
    pub(super) fn served(&self) -> Option<Served> {
        let rules = &self.site.rules.all;
        let of_rule = |rule: &'_ Rule| {
            let files = rule.error_pages.values().chain(&rule.fallback);
            files.map(|file| file.strip_prefix("/").unwrap_or(file).to_owned()).collect::<Vec<_>>()
        };
        let lists = rules.iter().any(|rule| rule.listing == Some(true));
        Served::open(self.site.root.as_ref()?, rules.iter().flat_map(of_rule).collect(), lists)
    }
}

/// The sites of a server. What is wrong with them is added to `problems`.
pub(super) fn sites(all: &[SiteConfig], problems: &mut Vec<String>) -> Sites {
    let mut sites = Sites::default();
    for SiteConfig { place, rule_places, site, .. } in all {
        for (rule, why) in sites.add(site.clone()).err().into_iter().flatten() {
            let place = rule.and_then(|number| rule_places.get(number)).unwrap_or(place);
            problems.push(format!("{place}{why}"));
        }
    }
    // Rules of all sites are wrong in each of them.
    problems.sort();
    problems.dedup();
    sites
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
