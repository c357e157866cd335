//! The content of a file server: hosts with pages, changing files, a certificate.

use crate::plan::Plan;
use crate::visitor::Answer;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread::sleep;
use tempfile::TempDir;
use twinring::fs::Dir;
use twinring_services::http::{CertificateFiles, HostName, MinVersion, Site, Sites, TlsSettings};

const CHANGING_BYTES_MAX: u64 = 300 * 1024;
const CHANGES_MAX: u64 = 40;

/// Files of a run, removed when dropped.
pub(crate) struct Files {
    directory: TempDir,
    content: Arc<Vec<u8>>,
    hosts: Vec<&'static str>,
}

/// Names of hosts and the directory of each; the first is the default host.
const HOSTS: &[(&str, &str)] =
    &[("elsewhere.test", "root"), ("one.test", "one"), ("*.two.test", "two")];

impl Files {
    /// With `content` as the file of the default host.
    pub(crate) fn new(plan: &mut Plan, content: Vec<u8>) -> Files {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let hosts = plan.about(1, HOSTS.len() as u64) as usize;
        let hosts: Vec<&str> = HOSTS[..hosts].iter().map(|(name, _)| *name).collect();
        let files = Files { directory, content: Arc::new(content), hosts };
        for (name, below) in HOSTS {
            let below = files.path(below);
            fs::create_dir(&below).expect("a directory");
            fs::write(below.join("file"), &*files.content).expect("a file");
            fs::write(below.join("name"), name).expect("a file");
        }
        write_version(&files.path("root/changing"), 0, 1_000);
        files
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn sites(&self) -> Sites {
        let site = |below: &str| Site::new(Dir::open(&self.path(below)).expect("a directory"));
        let mut sites = Sites::new(Some(site("root")));
        for (name, below) in HOSTS.iter().skip(1).filter(|(name, _)| self.hosts.contains(name)) {
            let name: HostName = name.parse().expect("a name");
            sites.add(&[name], site(below)).expect("each name once");
        }
        sites
    }

    /// The pages to request.
    pub(crate) fn pages(&self) -> Vec<Page> {
        let mut pages = Vec::new();
        for (name, _) in HOSTS {
            let served_by = if self.hosts.contains(name) { name } else { HOSTS[0].0 };
            let host = name.replace('*', "www");
            let page = |path, answers| Page { host: host.clone(), path, answers };
            let named = Arc::new(served_by.as_bytes().to_vec());
            pages.push(page("/name", Answers::Whole(200, named)));
            pages.push(page("/file", Answers::Whole(200, Arc::clone(&self.content))));
            pages.push(page("/file", Answers::Head));
            pages.push(page("/missing", Answers::Status(404)));
        }
        let host = HOSTS[0].0.to_owned();
        pages.push(Page { host, path: "/changing", answers: Answers::Version });
        pages
    }

    /// A program that replaces, shortens and removes a file while it is served.
    pub(crate) fn meddler(&self, plan: &mut Plan) -> impl FnOnce() + Send + 'static {
        let (mut plan, file) = (plan.branch(), self.path("root/changing"));
        let next = self.path("root/next");
        move || {
            for version in 1..=plan.about(1, CHANGES_MAX) {
                let bytes = plan.about(1, CHANGING_BYTES_MAX);
                match plan.about(0, 3) {
                    0 => {
                        let shortened = File::options().write(true).open(&file);
                        let _gone = shortened
                            .and_then(|file| file.set_len(file.metadata()?.len().min(bytes) / 4));
                    }
                    1 => drop(fs::remove_file(&file)),
                    _ => {
                        write_version(&next, version as u8, bytes);
                        fs::rename(&next, &file).expect("a file");
                    }
                }
                sleep(plan.milliseconds(1, 500));
            }
        }
    }
}

/// The byte of a version of the changing file at `at`.
fn version_byte(version: u8, at: usize) -> u8 {
    (at / 7) as u8 ^ version.wrapping_mul(37)
}

fn write_version(path: &Path, version: u8, bytes: u64) {
    let content: Vec<u8> = (0..bytes as usize).map(|at| version_byte(version, at)).collect();
    fs::write(path, content).expect("a file");
}

/// A page, and its valid answers.
#[derive(Clone)]
pub(crate) struct Page {
    host: String,
    path: &'static str,
    pub(crate) answers: Answers,
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Answers {
    /// This status, and all of this.
    Whole(u16, Arc<Vec<u8>>),
    /// Only a head, because nothing else was requested.
    Head,
    /// This status.
    Status(u16),
    /// Some version of the changing file, or a part of it; or 404.
    Version,
}

impl Page {
    pub(crate) fn request(&self, last: bool) -> Vec<u8> {
        let method = if self.answers == Answers::Head { "HEAD" } else { "GET" };
        let (path, host) = (self.path, &self.host);
        let close = if last { "Connection: close\r\n" } else { "" };
        format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{close}\r\n").into_bytes()
    }

    /// # Panics
    /// When an answer is wrong. A truncated one is not, nor is one with a 5xx status.
    pub(crate) fn check(&self, answer: &Answer) {
        let Answer { status, body, whole } = answer;
        let what = format!("{}{}: {status}, {} bytes", self.host, self.path, body.len());
        if (500..600).contains(status) {
            return;
        }
        match &self.answers {
            Answers::Whole(expected, content) => {
                assert_eq!(status, expected, "{what}");
                assert!(content.starts_with(body), "{what}");
                assert!(!whole || body.len() == content.len(), "{what}");
            }
            Answers::Head => assert_eq!(*status, 200, "{what}"),
            Answers::Status(expected) => assert_eq!(status, expected, "{what}"),
            Answers::Version if *status == 404 => {}
            Answers::Version => {
                assert_eq!(*status, 200, "{what}");
                let first = body.first().copied().unwrap_or_default();
                let same = (0..=u8::MAX).find(|version| version_byte(*version, 0) == first);
                let version = same.expect("37 is odd");
                let wrong =
                    body.iter().zip(0..).position(|(byte, at)| *byte != version_byte(version, at));
                assert_eq!(wrong, None, "{what}: bytes of several versions");
            }
        }
    }
}

/// Certificates for `localhost` with their keys, created once for all runs of a process.
pub(crate) struct Identities {
    certificates: Vec<(String, String)>,
}

impl Identities {
    pub(crate) fn all() -> &'static Identities {
        static ALL: OnceLock<Identities> = OnceLock::new();
        ALL.get_or_init(|| {
            let make = |_| {
                let names = vec!["localhost".to_owned()];
                let made = rcgen::generate_simple_self_signed(names).expect("a certificate");
                (made.cert.pem(), made.signing_key.serialize_pem())
            };
            Identities { certificates: (0..2).map(make).collect() }
        })
    }

    /// Installs one of them into the files that a server reads.
    pub(crate) fn install(&self, number: usize, settings: &TlsSettings) {
        let (certificate, key) = &self.certificates[number % self.certificates.len()];
        let files = settings.default.as_ref().expect("a certificate");
        fs::write(&files.certificate, certificate).expect("a file");
        fs::write(&files.key, key).expect("a file");
    }

    /// The configuration of a client that trusts all of them.
    pub(crate) fn trust(&self) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        for (certificate, _) in &self.certificates {
            let certificate = CertificateDer::from_pem_slice(certificate.as_bytes());
            roots.add(certificate.expect("made above")).expect("a certificate");
        }
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions that exist")
            .with_root_certificates(roots)
            .with_no_client_auth();
        Arc::new(config)
    }
}

/// Where a server finds its certificate and key.
pub(crate) fn tls_settings(files: &Files, plan: &mut Plan) -> TlsSettings {
    let (certificate, key) = (files.path("certificate.pem"), files.path("key.pem"));
    TlsSettings {
        default: Some(CertificateFiles { certificate, key }),
        hosts: Vec::new(),
        min_version: *plan.one_of(&[MinVersion::Tls12, MinVersion::Tls13]),
        http2: false,
    }
}
