//! The access log: its opening and closing.

use crate::serve::notices;
use crate::serve::signals::Received;
use crate::serve::user::{Identity, may_replace};
use nix::unistd::fchown;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use twinring_services::http::{AccessLog, LogSettings, LogTarget};

/// How long the end of the command waits for the access log to be written.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often it checks meanwhile for a second signal.
const LOOK_PERIOD: Duration = Duration::from_millis(20);

/// The file of a log, if it goes to one.
pub(super) fn file(settings: &LogSettings) -> Option<&PathBuf> {
    match settings.access_log.as_ref()? {
        LogTarget::File(path) => Some(path),
        LogTarget::Stdout => None,
    }
}

/// Opens the log, if one is configured. A new file belongs to `owner`, so that it can be reopened.
pub(super) fn open(
    settings: &LogSettings,
    workers: usize,
    owner: Option<&Identity>,
) -> Result<Option<Arc<AccessLog>>, String> {
    let Some(target) = settings.access_log.clone() else { return Ok(None) };
    if let (LogTarget::File(path), Some(owner)) = (&target, owner) {
        let mut options = File::options();
        // If it is there already, or cannot be made, what comes next shows.
        if let Ok(made) = options.append(true).create_new(true).mode(0o640).open(path) {
            fchown(&made, owner.user, Some(owner.group)).map_err(|error| {
                format!("cannot give access-log {target} to {}: {error}", owner.name)
            })?;
        }
    }
    let tell = |notice: &str| notices::tell(format!("twinring: {notice}"));
    let log = AccessLog::open(target.clone(), settings, workers, tell);
    log.map(Some).map_err(|error| format!("cannot open access-log {target}: {error}"))
}

/// Why this process, with its current rights, cannot open the log, or once more after a rotation if it `is_open`. Found
/// without creating the file.
pub(super) fn check(settings: &LogSettings, is_open: bool) -> Option<String> {
    let path = file(settings)?;
    let refusal = LogTarget::open_existing(path).err();
    let why = match refusal.filter(|error| error.kind() != ErrorKind::NotFound) {
        Some(error) if is_open => {
            format!("{error}: after SIGHUP and SIGUSR1 the old file stays open")
        }
        Some(error) => error.to_string(),
        None if may_replace(path) || !is_open && path.exists() => return None,
        None => "no file can be created in its directory: create it beforehand, as `create` of logrotate does".to_owned(),
    };
    Some(format!("cannot open access-log {}: {why}", path.display()))
}

/// Waits until all lines are written, for a bounded time, and not after a second signal.
pub(in crate::serve) fn finish(log: &AccessLog, signals: &Received) {
    let started = Instant::now();
    while !log.finish(LOOK_PERIOD) && !signals.stops_at_once() {
        if started.elapsed() > PATIENCE {
            return notices::tell(format!(
                "twinring: access log {}: not all lines could be written within {PATIENCE:?}",
                log.target()
            ));
        }
    }
}
