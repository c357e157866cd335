//! The placeholders of HTTP beside the numbers of its axes.

use std::path::PathBuf;

use super::HttpPoint;
use crate::error::LabError;
use crate::values::{Place, Values};

/// Streams that `twinring serve http` allows on a connection of HTTP/2 unless told otherwise.
const STREAMS_DEFAULT: u32 = 100;

impl HttpPoint {
    /// # Errors
    /// When a file that a command names cannot be written.
    pub(crate) fn fill(&self, values: &mut Values, place: &Place<'_>) -> Result<(), LabError> {
        let Some(site) = place.host.site(place.site) else { return Ok(()) };
        let text = |path: PathBuf| path.display().to_string();
        let (certificate, key) = (text(site.certificate()), text(site.key()));
        let address = place.address.to_string();
        let listen: &[&str] = match self.tls {
            true => &["--listen-tls", &address, "--tls-cert", &certificate, "--tls-key", &key],
            false => &["--listen", &address],
        };
        let mut listen: Vec<String> = listen.iter().map(|word| (*word).to_owned()).collect();
        if self.http2 && self.depth > STREAMS_DEFAULT {
            listen.extend(["--http2-streams".to_owned(), self.depth.to_string()]);
        }
        values.list("{listen}", listen);
        // They may have to be written to a file there.
        if place.template.iter().any(|word| word == "{urls}") {
            values.list("{urls}", place.host.urls(site, *self, place.address)?);
        }
        let mut options = vec![site.verify_body(*self)];
        if self.tls {
            options.extend(["--tls-ca".to_owned(), certificate.clone()]);
        }
        if self.http2 {
            options.push("--http2".to_owned());
        }
        if !self.keepalive {
            options.push("--no-keepalive".to_owned());
        }
        options.extend(place.pace_options());
        values.list("{options}", options);
        for (name, value) in [
            ("{work}", text(site.directory().to_owned())),
            ("{config}", text(site.configuration())),
            ("{root}", text(site.root())),
            ("{certificate}", certificate),
            ("{key}", key),
        ] {
            values.text(name, value);
        }
        Ok(())
    }
}
