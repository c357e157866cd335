//! The arguments that select the served files and their header fields. A `[[host]]` of the
//! configuration file has the same.

use crate::serve::user::Served;
use clap::Args;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use twinring::fs::{Dir, Symlinks};
use twinring_services::http::encoding::Coding;
use twinring_services::http::{
    Auth, AuthRule, FieldRule, FieldRules, HttpsAddress, ListingFormat, Realm, RedirectRule,
    Redirects, Site, Users,
};

#[derive(Debug, Args)]
pub(super) struct SiteArgs {
    /// Directory whose files are served. Files and directories that begin with a dot are not served,
    /// except for `/.well-known/`. May be left out if the configuration file has a [[host]]; other
    /// hosts then get 421.
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    #[command(flatten)]
    files: FileArgs,
    #[command(flatten)]
    fields: FieldArgs,
    #[command(flatten)]
    redirects: RedirectArgs,
    #[command(flatten)]
    auth: AuthArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Files")]
struct FileArgs {
    /// Names of index files; the first that exists is used.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_value = "index.html",
          value_parser = file_name)]
    index: Vec<String>,
    /// How to list a directory without an index file: as a page, as JSON, or 404.
    #[arg(long, value_name = "html|json|off", default_value = "off", value_parser = autoindex)]
    autoindex: Autoindex,
    /// File beneath the root that is served for paths that do not exist and whose last segment has
    /// no dot: for applications that route in the browser.
    #[arg(long, value_name = "FILE")]
    spa: Option<PathBuf>,
    /// File beneath the root that is the body of status 404.
    #[arg(long, value_name = "FILE")]
    not_found: Option<PathBuf>,
    /// `beneath` follows symbolic links that stay beneath the root; absolute links never do.
    #[arg(long, value_name = "refuse|beneath", default_value = "beneath", value_parser = symlinks)]
    symlinks: Symlinks,
    /// Send precompressed files with these suffixes beside the requested one, if they are not older
    /// than it, to clients that accept their coding; the preferred one comes first.
    #[arg(long, value_name = "br,gz,zst", value_delimiter = ',')]
    precompressed: Vec<Coding>,
    /// Compress text of 1 KiB to 10 MiB for clients that accept one of these codings, the preferred one
    /// first. Precompressed files come before them. Answers are uncompressed until the compressed form
    /// is in the cache, which must have room for it. Off by default: it takes CPU time and memory. Do
    /// not compress files that contain both secrets and text chosen by others (BREACH)
    #[arg(long, value_name = "br,zst,gz", value_delimiter = ',')]
    compress: Vec<Coding>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Header fields")]
struct FieldArgs {
    /// `Cache-Control` for matching paths, such as `*.css=max-age=3600`; the first match counts. `*`
    /// stands for any characters, slashes included. Paths begin with a slash.
    #[arg(long, value_name = "PATTERN=VALUE", value_parser = FieldRule::cache_control)]
    cache_control: Vec<FieldRule>,
    /// A header field for matching paths, such as `*=X-Content-Type-Options:nosniff`; all matches
    /// count. The path is that of the file that is sent; for listings, redirects and errors, that
    /// of the request. Refusals before a path is read have no such field.
    #[arg(long = "header", value_name = "PATTERN=NAME:VALUE")]
    headers: Vec<FieldRule>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Redirects")]
struct RedirectArgs {
    /// Redirect GET and HEAD without TLS to https with status 301: on port 443 of the requested host,
    /// or as given. The path and the query stay as they are.
    #[arg(long, value_name = "PORT|HOST[:PORT]", num_args = 0..=1, require_equals = true,
          default_missing_value = "443")]
    redirect_to_https: Option<HttpsAddress>,
    /// Redirect GET and HEAD of a path, with status 301 unless it is given: `/old=/new`,
    /// `/old/*=/new/*`, `/a=307:/b`, `/*=308:https://example.org/*`. `/old/*` stands for all paths
    /// beneath `/old/`; an exact path counts before it, and a longer one before a shorter one. The
    /// query is kept. May be given several times, up to 1000.
    #[arg(long, value_name = "FROM=[STATUS:]TO")]
    redirect: Vec<RedirectRule>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Passwords")]
struct AuthArgs {
    /// Ask for a user and a password beneath a directory: `/private/*=/etc/twinring/users`. The file
    /// has lines USER:HASH, as `htpasswd -B` writes them (bcrypt, with a cost up to 14). May be given
    /// several times; a longer path counts before a shorter one. Use it with TLS only.
    #[arg(long, value_name = "PATH/*=FILE")]
    basic_auth: Vec<AuthRule>,
    /// The name that clients show when they ask for a password.
    #[arg(long, value_name = "TEXT", default_value = "Restricted")]
    basic_auth_realm: Realm,
}

impl AuthArgs {
    /// The protected directories, with the users of each. Errors are added to `problems`.
    fn auth(&self, place: &str, problems: &mut Vec<String>) -> Auth {
        let read = |rule: &AuthRule| {
            let users = Users::read(&rule.file)?;
            Ok((rule.paths.clone(), Arc::new(users)))
        };
        let rules: Result<Vec<_>, String> = self.basic_auth.iter().map(read).collect();
        let auth = rules.and_then(|rules| Auth::new(self.basic_auth_realm.clone(), rules));
        auth.map_err(|problem| problems.push(format!("{place}{problem}"))).unwrap_or_default()
    }
}

/// The value of `--autoindex`; a separate type because clap reads an `Option` as an optional argument.
#[derive(Clone, Copy, Debug)]
struct Autoindex(Option<ListingFormat>);

fn autoindex(text: &str) -> Result<Autoindex, String> {
    match text {
        "html" => Ok(Autoindex(Some(ListingFormat::Html))),
        "json" => Ok(Autoindex(Some(ListingFormat::Json))),
        "off" => Ok(Autoindex(None)),
        _ => Err("expected html, json or off".to_owned()),
    }
}

fn symlinks(text: &str) -> Result<Symlinks, String> {
    match text {
        "refuse" => Ok(Symlinks::Refuse),
        "beneath" => Ok(Symlinks::Beneath),
        _ => Err("expected refuse or beneath".to_owned()),
    }
}

fn file_name(text: &str) -> Result<String, String> {
    let is_name = !text.is_empty() && !text.starts_with('.') && !text.contains(['/', '\0']);
    is_name.then(|| text.to_owned()).ok_or_else(|| format!("`{text}` is not a file name"))
}

impl SiteArgs {
    /// True if there is anything to serve.
    pub(super) fn has_content(&self) -> bool {
        let RedirectArgs { redirect_to_https, redirect } = &self.redirects;
        self.root.is_some() || redirect_to_https.is_some() || !redirect.is_empty()
    }

    /// The directory whose files are served.
    pub(super) fn root(&self) -> Option<&PathBuf> {
        self.root.as_ref()
    }

    /// The rules in effect, those of the whole included, a line each; and precompressed files that are not sent.
    pub(super) fn effective(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(root) = &self.root {
            lines.push(format!("root {}", root.display()));
            let stale = stale_variants(root, &self.files.precompressed);
            if stale > 0 {
                lines.push(format!(
                    "{stale} precompressed files are older than their originals and not sent"
                ));
            }
        }
        lines.extend(self.auth.basic_auth.iter().map(|rule| format!("basic-auth {}", rule.paths)));
        lines.extend(self.fields.headers.iter().map(|rule| format!("header {rule}")));
        lines.extend(self.fields.cache_control.iter().map(|rule| format!("cache-control {rule}")));
        if !self.redirects.redirect.is_empty() {
            lines.push(format!("{} redirects", self.redirects.redirect.len()));
        }
        lines
    }

    /// The files of users, which a reload reads again.
    pub(super) fn user_files(&self) -> impl Iterator<Item = &PathBuf> {
        self.auth.basic_auth.iter().map(|rule| &rule.file)
    }

    /// The files that the service must be able to read later on.
    pub(super) fn served(&self) -> Option<Served> {
        let named = [&self.files.spa, &self.files.not_found].into_iter().flatten();
        let relative = named.map(|file| file.strip_prefix("/").unwrap_or(file).to_owned());
        let lists = self.files.autoindex.0.is_some();
        Served::open(self.root.as_ref()?, relative.collect(), lists)
    }

    /// The site, if it has content. Adds unusable directories and files to `problems`; `place` is
    /// where they are named.
    pub(super) fn site(&self, place: &str, problems: &mut Vec<String>) -> Option<Site> {
        if !self.has_content() {
            return None;
        }
        let RedirectArgs { redirect_to_https, redirect } = &self.redirects;
        let redirects = Redirects::new(redirect, redirect_to_https.clone())
            .map_err(|problem| problems.push(format!("{place}{problem}")))
            .unwrap_or_default();
        let auth = self.auth.auth(place, problems);
        match &self.root {
            Some(path) => Some(Site { redirects, auth, ..self.files_of(path, place, problems)? }),
            None => Some(Site {
                fields: rules(&self.fields.headers, place, problems),
                redirects,
                ..Site::without_files()
            }),
        }
    }

    /// The site without its redirects.
    fn files_of(&self, path: &Path, place: &str, problems: &mut Vec<String>) -> Option<Site> {
        let root = match Dir::open(path) {
            Ok(root) => root,
            Err(error) => {
                problems.push(format!("{place}cannot serve --root {}: {error}", path.display()));
                return None;
            }
        };
        let mut beneath = |option: &str, file: Option<&Path>| {
            let found = beneath_root(path, option, file?);
            found.map_err(|problem| problems.push(format!("{place}{problem}"))).ok()
        };
        let files = &self.files;
        let (fallback, not_found) = (
            beneath("--spa", files.spa.as_deref()),
            beneath("--not-found", files.not_found.as_deref()),
        );
        let cache_control = rules(&self.fields.cache_control, place, problems);
        let fields = rules(&self.fields.headers, place, problems);
        Some(Site {
            symlinks: files.symlinks,
            index: files.index.clone(),
            autoindex: files.autoindex.0,
            fallback,
            not_found,
            precompressed: files.precompressed.clone(),
            compress: files.compress.clone(),
            cache_control,
            fields,
            ..Site::new(root)
        })
    }
}

/// Files that a look at precompressed ones visits at most.
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

fn rules(rules: &[FieldRule], place: &str, problems: &mut Vec<String>) -> FieldRules {
    let compiled = FieldRules::new(rules.to_vec());
    compiled.map_err(|problem| problems.push(format!("{place}{problem}"))).unwrap_or_default()
}

/// The path of a file in requests. The file must exist.
fn beneath_root(root: &Path, option: &str, file: &Path) -> Result<Vec<u8>, String> {
    let wrong = |why: &str| format!("cannot use {option} {}: {why}", file.display());
    let relative = file.strip_prefix("/").unwrap_or(file);
    let metadata = std::fs::metadata(root.join(relative))
        .map_err(|error| wrong(&format!("{error}; it must be beneath the root")))?;
    if !metadata.is_file() {
        return Err(wrong("it is not a regular file"));
    }
    let path = Path::new("/").join(relative);
    Ok(path.into_os_string().into_encoded_bytes())
}
