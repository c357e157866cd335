//! `twinring load http`.

mod arguments;

pub(crate) use self::arguments::HttpArgs;

use super::observe::{JsonMarks, Live};
use super::outcome::{finish, prepare, print, refuse};
use super::signals;
use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;
use twinring_load::{hgrm, http};
use twinring_wire::HttpResult;

pub(super) fn run(args: HttpArgs) -> Result<ExitCode, Box<dyn Error>> {
    let ((json, start_at), hgrm) = (args.json_and_start(), args.hgrm.clone());
    let settings = args.settings()?;
    refuse(settings.check());
    let expected = settings.duration;
    let load = http::Load::new(settings)?;
    prepare(load.fallback_reason());
    let stopper = load.stopper();
    let signals = signals::watch(move || stopper.stop())?;
    let mut observer = Live::new(expected, "requests", json.then_some(JsonMarks), start_at);
    let report = load.run(&mut observer);
    observer.finish()?;
    let report = report?;
    print(&report, http::Table(&report), json)?;
    if let Some(path) = hgrm {
        write_hgrm(&report, &path).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(finish(signals.first(), report.failure(), &report.all.gates, &report.shortfall()))
}

fn write_hgrm(report: &HttpResult, path: &Path) -> std::io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    let latencies_ns = report.all.histogram.decode().map_err(std::io::Error::other)?;
    hgrm::write(&latencies_ns, &mut file)?;
    file.flush()
}
