//! A load generator that is connected and waits for the moment to begin: several of them, on any hosts, then
//! begin together.

use std::io::{self, BufRead, Read};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};
use twinring::monotonic_ns;
use twinring_load::observer::Begin;

/// How long it waits, and how far ahead the moment may be.
const HOLD_MAX: Duration = Duration::from_secs(60);

/// The longest line that is read.
const LINE_BYTES_MAX: u64 = 64;

/// What is known of the moment.
#[derive(Default)]
pub(super) struct Hold {
    asked: Option<(Instant, Receiver<Result<u64, String>>)>,
    said: Option<Result<u64, String>>,
}

impl Hold {
    /// Reads standard input from now on; false if it does already.
    pub(super) fn begin_asking(&mut self) -> bool {
        if self.asked.is_some() {
            return false;
        }
        let (sender, said) = channel();
        // It ends with the process: a read of standard input cannot be interrupted.
        std::thread::spawn(move || {
            let mut line = String::new();
            let read = io::stdin().lock().take(LINE_BYTES_MAX).read_line(&mut line);
            // Nobody listens once the run has ended.
            let _ended =
                sender.send(read.map_err(|error| error.to_string()).and_then(|_| moment_of(&line)));
        });
        self.asked = Some((Instant::now(), said));
        true
    }

    /// When to begin, as far as it is known.
    pub(super) fn moment(&mut self) -> Begin {
        if let Some((since, said)) = self.asked.as_ref().filter(|_| self.said.is_none()) {
            self.said = match said.try_recv() {
                Ok(said) => Some(said),
                Err(TryRecvError::Empty) if since.elapsed() < HOLD_MAX => None,
                Err(_) => Some(Err(format!("nothing within {} s", HOLD_MAX.as_secs()))),
            };
        }
        match &self.said {
            None => Begin::NotYet,
            Some(Ok(ns)) => Begin::At(*ns),
            Some(Err(_)) => Begin::Never,
        }
    }

    /// Why there was no traffic, if that is the reason.
    pub(super) fn why_not_begun(&self) -> Option<String> {
        let why = self.said.as_ref()?.as_ref().err()?;
        Some(format!(
            "--hold: standard input does not say when to begin: {why}; expected a moment of CLOCK_MONOTONIC in \
             nanoseconds, at most {} s ahead",
            HOLD_MAX.as_secs()
        ))
    }
}

fn moment_of(line: &str) -> Result<u64, String> {
    let text = line.trim();
    let ns: u64 = text.parse().map_err(|_| match text {
        "" => "it ended".to_owned(),
        _ => format!("`{text}`"),
    })?;
    let latest_ns = monotonic_ns().saturating_add(HOLD_MAX.as_nanos() as u64);
    if ns > latest_ns {
        Err(format!("{ns} is more than {} s ahead", HOLD_MAX.as_secs()))
    } else {
        Ok(ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_a_number_within_a_minute() {
        let now_ns = monotonic_ns();
        assert_eq!(moment_of(&format!(" {now_ns}\n")), Ok(now_ns));
        assert_eq!(moment_of("0"), Ok(0));
        for (line, why) in [
            ("", "it ended"),
            ("soon\n", "`soon`"),
            ("-1", "`-1`"),
            (&(now_ns + 3_600_000_000_000).to_string(), "more than 60 s ahead"),
        ] {
            assert!(moment_of(line).unwrap_err().contains(why), "{line}");
        }
    }
}
