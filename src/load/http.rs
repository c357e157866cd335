//! `twinring load http`.

mod targets;

use super::options::{Output, RequestArgs, addresses, keep_answering};
use super::outcome::{drive, refuse};
use crate::values;
use clap::Args;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use twinring_input::quantity::{count, size};
use twinring_load::address::Probe;
use twinring_load::http::{
    self, BODY_BYTES_MAX, ExpectedBody, ExpectedLength, HeaderName, HeaderValue, Method, Request,
    Settings, Statuses, TlsSettings,
};
use twinring_wire::LoadResult;

#[derive(Debug, Args)]
pub(crate) struct HttpArgs {
    /// URLs to request: http://HOST[:PORT][/PATH] or https://..., all on one server.
    #[arg(value_name = "URL", required_unless_present = "urls")]
    url: Vec<String>,
    /// Further URLs from a file: one per line, each optionally followed by its weight; or, if its name ends in .toml,
    /// `[[request]]` tables with `url`, `weight`, `method`, `headers` and `body`.
    #[arg(long, value_name = "FILE")]
    urls: Option<PathBuf>,
    /// Weight of each URL of the command line [default: 1 each].
    #[arg(long, value_name = "W,...", value_delimiter = ',', value_parser = values::count)]
    weights: Vec<u32>,
    #[command(flatten)]
    requests: RequestArgs,

    /// Requests in flight per connection, at most. With --http2 each is a stream, and the server may
    /// allow fewer.
    #[arg(long, visible_alias = "depth", value_name = "N", default_value = "1",
          value_parser = values::count, help_heading = "Pattern")]
    pipeline: u32,
    /// A connection for each request. Latency then counts from the attempt to connect.
    #[arg(long, help_heading = "Pattern")]
    no_keepalive: bool,
    /// Seed of the choice among several URLs.
    #[arg(long, value_name = "N", default_value = "1", value_parser = count,
          help_heading = "Pattern")]
    seed: u64,

    /// Speak HTTP/2: with https:// as the server agrees in the TLS handshake (ALPN), with http:// from
    /// the first byte (prior knowledge).
    #[arg(long, help_heading = "Request")]
    http2: bool,
    /// Method of the requests [default: GET; POST with a body].
    #[arg(short = 'X', long, value_name = "METHOD", help_heading = "Request")]
    method: Option<Method>,
    /// A header field, `NAME: VALUE`; may be repeated. `Host` replaces that of the URL.
    #[arg(short = 'H', long = "header", value_name = "FIELD", value_parser = Request::field,
          help_heading = "Request")]
    headers: Vec<(HeaderName, HeaderValue)>,
    /// Content of the requests: a text, or `@FILE`.
    #[arg(long, value_name = "TEXT|@FILE", help_heading = "Request")]
    body: Option<String>,

    /// Statuses that count as success, such as `200,206` or `200-299,304`.
    #[arg(long, value_name = "CODES", default_value = "200-299", help_heading = "Verification")]
    expect_status: Statuses,
    /// Required length of every answer's content [default: that of the first answer of the same
    /// URL].
    #[arg(long, value_name = "BYTES", value_parser = size, help_heading = "Verification")]
    expect_length: Option<u64>,
    /// Accept content of any length.
    #[arg(long, conflicts_with = "expect_length", help_heading = "Verification")]
    any_length: bool,
    /// Compare the content of every answer, by length and CRC-32, with FILE; without FILE, with
    /// the first answer of the same URL.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true,
          conflicts_with_all = ["any_length", "expect_length"], help_heading = "Verification")]
    verify_body: Option<Option<PathBuf>>,

    /// Certificates to trust, as PEM, instead of those of the system.
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    tls_ca: Option<PathBuf>,
    /// Accept any certificate.
    #[arg(short = 'k', long, conflicts_with = "tls_ca", help_heading = "TLS")]
    insecure: bool,
    /// Never resume a TLS session.
    #[arg(long, help_heading = "TLS")]
    tls_full_handshake: bool,

    /// Connect to this HOST:PORT instead of the one in the URLs.
    #[arg(long, value_name = "HOST:PORT", help_heading = "Network")]
    connect_to: Option<String>,
    #[command(flatten)]
    output: Output,
}

pub(super) fn run(mut args: HttpArgs) -> Result<ExitCode, Box<dyn Error>> {
    let targets = args.targets()?;
    let of_server = match (&args.connect_to, targets.first()) {
        (Some(server), _) => addresses(server),
        (None, Some(target)) => target.resolve()?,
        (None, None) => Vec::new(),
    };
    let mut settings = Settings {
        http2: args.http2,
        pipeline: args.pipeline,
        keepalive: !args.no_keepalive,
        seed: args.seed,
        statuses: args.expect_status,
        length: match (args.expect_length, args.any_length) {
            (Some(bytes), _) => ExpectedLength::Bytes(bytes),
            (None, true) => ExpectedLength::Any,
            (None, false) => ExpectedLength::First,
        },
        body: match args.verify_body {
            None => ExpectedBody::Any,
            Some(None) => ExpectedBody::First,
            Some(Some(path)) => ExpectedBody::Bytes(read(&path)?),
        },
        tls: TlsSettings {
            ca: args.tls_ca,
            insecure: args.insecure,
            full_handshake: args.tls_full_handshake,
        },
        ..refuse(Settings::new(targets, args.requests.common(of_server)))
    };
    refuse(settings.check());
    keep_answering(&mut settings.common, Probe::Tcp)?;
    let expected = settings.common.duration;
    drive(http::Load::new(settings)?, args.output, (expected, "requests"), |load, observer| {
        load.run(observer).map(Box::new).map(LoadResult::Http)
    })
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    twinring_input::read(path, BODY_BYTES_MAX as u64)
        .map_err(|error| format!("{}: {error}", path.display()))
}
