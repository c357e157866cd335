//! The operator of a file server: reads its metrics, reopens its log, and replaces its certificate,
//! all while it runs.

use crate::plan::Plan;
use crate::site::Identities;
use crate::visitor::{Answer, read_answer};
use std::fs;
use std::io::{self, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;
use twinring_services::http::{AccessLog, HttpCounters, Tls, TlsSettings};

const ROUNDS_MAX: u64 = 20;
const PATIENCE: Duration = Duration::from_secs(60);

/// The parts to operate.
#[derive(Clone)]
pub(crate) struct Instruments {
    /// The admin port.
    pub(crate) admin: Option<SocketAddr>,
    pub(crate) log: Option<(AccessLog, PathBuf)>,
    pub(crate) tls: Option<(Tls, TlsSettings)>,
}

impl Instruments {
    /// Operates in rounds. `strict`: no fault here prevents the admin port from answering.
    pub(crate) fn operate(self, plan: &mut Plan, strict: bool) -> impl FnOnce() + Send + 'static {
        let mut plan = plan.branch();
        move || {
            let mut before = 0;
            for round in 0..plan.about(1, ROUNDS_MAX) {
                match plan.about(0, 3) {
                    0 => self.rotate(round),
                    1 => self.renew(round as usize),
                    _ => self.ask(&mut before, strict),
                }
                sleep(plan.milliseconds(1, 2_000));
            }
        }
    }

    fn rotate(&self, round: u64) {
        if let Some((log, path)) = &self.log {
            // It may not have been reopened since the last time.
            if fs::rename(path, path.with_extension(format!("{round}"))).is_ok() {
                log.reopen();
            }
        }
    }

    fn renew(&self, round: usize) {
        if let Some((tls, settings)) = &self.tls {
            Identities::all().install(round, settings);
            tls.install(tls.load(settings).expect("a certificate and its key"));
        }
    }

    /// Reads the metrics, whose counters never decrease.
    fn ask(&self, before: &mut u64, strict: bool) {
        let Some(address) = self.admin else { return };
        let answers = ["/healthz", "/readyz", "/metrics"].map(|path| get(address, path));
        for answer in answers {
            match answer {
                Ok(Some(answer)) if answer.whole => {
                    assert_eq!(answer.status, 200, "the admin port says that something is wrong");
                    let text = String::from_utf8(answer.body).expect("text");
                    let sum = sum_of(&text, "twinring_http_responses_total");
                    if let Some(sum) = sum {
                        assert!(sum >= *before, "counters went back from {before} to {sum}");
                        *before = sum;
                    }
                }
                Ok(_) => assert!(!strict, "no answer of the admin port"),
                Err(error) => assert!(!strict, "the admin port: {error}"),
            }
        }
    }
}

fn get(address: SocketAddr, path: &str) -> io::Result<Option<Answer>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: admin\r\n\r\n").as_bytes())?;
    read_answer(&mut BufReader::new(stream), false)
}

/// The sum of all series of a family in a text of metrics, if it has it.
fn sum_of(text: &str, family: &str) -> Option<u64> {
    let series = text.lines().filter(|line| line.starts_with(family));
    let values = series.map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    values.reduce(|sum, value| Some(sum? + value?))?
}

/// Checks the log of a service that has ended against its counters: each line is complete, and no
/// line is missing that was not counted as dropped.
pub(crate) fn check_log(path: &Path, counted: &HttpCounters) {
    let directory = path.parent().expect("a file in a directory");
    let stem = path.file_stem().expect("a name");
    let mut lines = 0;
    for entry in fs::read_dir(directory).expect("a directory") {
        let found = entry.expect("an entry").path();
        if found.file_stem() != Some(stem) {
            continue;
        }
        let text = fs::read_to_string(&found).expect("a log is text");
        assert!(text.is_empty() || text.ends_with('\n'), "a line without its end");
        for line in text.lines() {
            assert!(line.starts_with("127.0.0.1 - - [") || line.starts_with("::1 - - ["), "{line}");
            lines += 1;
        }
    }
    assert_eq!(lines, counted.log_lines, "lines in the files, and lines counted");
    let logged = counted.log_lines + counted.log_dropped;
    let answered = counted.responses_2xx
        + counted.responses_3xx
        + counted.responses_4xx
        + counted.responses_5xx;
    assert!(logged >= answered, "{logged} lines for {answered} answers");
}
