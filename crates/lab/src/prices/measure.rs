//! The price list of this machine, from the program that is about to serve.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{PRICES, Price, PriceRecord};
use crate::cpus::Cpus;
use crate::json;
use crate::stop::Stop;

/// How long a program may measure; ours takes 5 seconds at most.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long its output may stay open after its end.
const CLOSE_PATIENCE: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(20);

/// The most that is read of what it prints; ours prints 15 KB.
const OUTPUT_BYTES_MAX: u64 = 1 << 20;

/// Runs `BINARY probe --measure --json --cpus A,B`. A program that cannot measure prices, as older ones
/// cannot, takes nothing else from an experiment: the record says why there are none.
pub(crate) fn measure(binary: &Path, cpus: &Cpus, stop: &Stop) -> PriceRecord {
    if cpus.shared {
        return PriceRecord::none("server and load generator share one CPU");
    }
    let pair = format!("{},{}", cpus.server.first(), cpus.client.first());
    let arguments = ["probe", "--measure", "--json", "--cpus", &pair];
    match output_of(binary, &arguments, stop, PATIENCE) {
        Ok(output) => read(&output),
        Err(why) => PriceRecord::none(format!("`probe --measure` of the measured program {why}")),
    }
}

/// What it prints on standard output, or what went wrong.
fn output_of(
    program: &Path,
    arguments: &[&str],
    stop: &Stop,
    patience: Duration,
) -> Result<String, String> {
    let child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn();
    let mut child = child.map_err(|error| format!("does not start: {error}"))?;
    let stdout = child.stdout.take();
    let reader = thread::spawn(move || {
        let mut text = Vec::new();
        // A program that prints more finds the pipe closed.
        let read = stdout.map(|it| it.take(OUTPUT_BYTES_MAX).read_to_end(&mut text));
        read.is_some_and(|read| read.is_ok()).then_some(text)
    });
    let ended = wait(&mut child, stop, patience);
    // A grandchild may hold the pipe open for ever; a process that another thread forks just now, for a moment.
    let deadline = Instant::now() + CLOSE_PATIENCE;
    while !reader.is_finished() && Instant::now() < deadline {
        thread::sleep(TICK);
    }
    if !reader.is_finished() {
        return Err(ended.err().unwrap_or_else(|| "does not close its output".to_owned()));
    }
    ended?;
    let text = reader.join().ok().flatten().ok_or("prints what cannot be read")?;
    String::from_utf8(text).map_err(|_| "prints what is not UTF-8".to_owned())
}

fn wait(child: &mut Child, stop: &Stop, patience: Duration) -> Result<(), String> {
    let deadline = Instant::now() + patience;
    let why = loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => {
                return Err(format!("failed ({status}): it may be of a version without it"));
            }
            Err(error) => break format!("cannot be waited for: {error}"),
            Ok(None) if stop.signal().is_some() => break "was interrupted".to_owned(),
            Ok(None) if Instant::now() >= deadline => {
                break format!("did not end within {} s", patience.as_secs());
            }
            Ok(None) => thread::sleep(TICK),
        }
    };
    // It may have ended in between.
    let _ = child.kill();
    let _ = child.wait();
    Err(why)
}

/// Those prices that a bundle keeps, of a line of `probe --measure --json`.
fn read(output: &str) -> PriceRecord {
    let line = output.lines().find_map(|line| serde_json::from_str::<Value>(line).ok());
    let Some(prices) = line.as_ref().and_then(|line| line.get("prices")) else {
        return PriceRecord::none("`probe --measure` of the measured program prints no prices");
    };
    let price = |(name, _): &(&str, &str)| {
        let price: Price = json::from_value(prices.get(name)?).ok()?;
        Some(((*name).to_owned(), price))
    };
    PriceRecord { list: PRICES.iter().filter_map(price).collect(), unavailable: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What becomes of the output of this script.
    fn of(script: &str, patience: Duration) -> PriceRecord {
        let output = output_of(Path::new("/bin/sh"), &["-c", script], &Stop::new(), patience);
        output.map_or_else(PriceRecord::none, |output| read(&output))
    }

    #[test]
    fn a_program_without_prices_says_why() {
        let long = Duration::from_secs(60);
        for (script, patience, expected) in [
            ("echo '{\"event\":\"probe\"}'", long, "prints no prices"),
            ("echo nonsense", long, "prints no prices"),
            ("exit 2", long, "failed (exit status: 2): it may be of a version without it"),
            ("sleep 60", Duration::ZERO, "did not end within 0 s"),
            ("exec yes", long, "failed (signal: 13"),
        ] {
            let why = of(script, patience).unavailable.unwrap_or_default();
            assert!(why.contains(expected), "{script}: {why}");
        }
        let missing = output_of(Path::new("/nonexistent"), &[], &Stop::new(), long);
        assert!(missing.unwrap_err().contains("does not start"));
    }

    #[test]
    fn prices_that_are_known_are_kept() {
        let list = "{\"syscall_ns\":{\"median\":80.5,\"low\":79,\"high\":82},\"other\":1,\
                    \"copy_ns_per_kb\":{\"unavailable\":\"no time\"},\"wakeup_ns\":7}";
        let script = format!("echo '{{\"event\":\"probe\",\"prices\":{list}}}'");
        let found = of(&script, Duration::from_secs(60));
        assert_eq!(
            (found.median("syscall_ns"), found.median("copy_ns_per_kb")),
            (Some(80.5), None)
        );
        assert_eq!((found.list.len(), &found.unavailable), (2, &None));
        let text = serde_json::to_string(&found).unwrap();
        assert_eq!(serde_json::from_str::<PriceRecord>(&text).unwrap(), found);
    }
}
