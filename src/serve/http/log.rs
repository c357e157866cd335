//! The access log: its opening and closing.

use crate::serve::notices;
use crate::serve::signals::Received;
use crate::serve::user::{Identity, may_replace};
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::{OpenOptionsExt, fchown};
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
            let (user, group) = owner.owner();
            fchown(made, user, Some(group)).map_err(|error| {
                format!("cannot give access-log {target} to {}: {error}", owner.name())
            })?;
        }
    }
    let tell = |notice: &str| notices::tell(format!("twinring: {notice}"));
    let log = AccessLog::open(target.clone(), settings, workers, tell);
    log.map(Some).map_err(|error| format!("cannot open access-log {target}: {error}"))
}

/// Why this process, with its current rights, cannot reopen the log after a rotation.
pub(super) fn check_rotation(settings: &LogSettings) -> Option<String> {
    let path = file(settings)?;
    let remedy = match (unusable(path), may_replace(path)) {
        (Some(error), _) => format!("{error}: after SIGHUP and SIGUSR1 the old file stays open"),
        (None, true) => return None,
        (None, false) => "no file can be created in its directory: the program that rotates it must create it (`create` \
              of logrotate)"
            .to_owned(),
    };
    Some(format!("access log {}: {remedy}", path.display()))
}

/// Why the log could not be opened, found without creating the file.
pub(super) fn check(settings: &LogSettings) -> Option<String> {
    let path = file(settings)?;
    let no_file = || "it does not exist, and no file can be created in its directory".to_owned();
    let cannot_be_made = !path.exists() && !may_replace(path);
    let why = unusable(path).or(cannot_be_made.then(no_file))?;
    Some(format!("cannot open access-log {}: {why}", path.display()))
}

/// Why a log that exists cannot be opened.
fn unusable(path: &Path) -> Option<String> {
    let error = LogTarget::File(path.to_owned()).open(false).err()?;
    (error.kind() != ErrorKind::NotFound).then(|| error.to_string())
}

/// Waits until all lines are written, for a bounded time, and not after a second signal.
pub(super) fn finish(log: &AccessLog, signals: &Received) {
    let started = Instant::now();
    let mut finished = log.finish(Duration::ZERO);
    while !finished && !signals.stops_at_once() && started.elapsed() < PATIENCE {
        finished = log.finish(LOOK_PERIOD);
    }
    if !finished && !signals.stops_at_once() {
        notices::tell(format!(
            "twinring: access log {}: not all lines could be written within {PATIENCE:?}",
            log.target
        ));
    }
}
