//! Seed after seed on simulated machines, until the time is over: see the library.

use clap::Parser;
use std::collections::BTreeMap;
use std::panic::catch_unwind;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use twinring_soak::{Kind, Outcome, replay_command, run};

/// Interval of progress lines.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Run services and load clients on simulated machines, with faults chosen by seeds
#[derive(Parser)]
#[command(name = "soak")]
struct Arguments {
    /// How long to run
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Run only this seed
    #[arg(long, conflicts_with_all = ["seconds", "first_seed"])]
    seed: Option<u64>,
    /// Begin with this seed; the time of day otherwise
    #[arg(long)]
    first_seed: Option<u64>,
    /// Only echo, udp or http
    #[arg(long)]
    kind: Option<Kind>,
}

/// All seeds together.
#[derive(Default)]
struct Tally {
    seeds: u64,
    failed: Vec<u64>,
    simulated: Duration,
    steps: u64,
    answered: u64,
    received_bytes: u64,
    injected: BTreeMap<String, u64>,
}

impl Tally {
    fn add(&mut self, seed: u64, outcome: Option<Outcome>) {
        self.seeds += 1;
        let Some(outcome) = outcome else { return self.failed.push(seed) };
        self.simulated += outcome.summary.simulated;
        self.steps += outcome.summary.steps;
        self.answered += outcome.answered;
        self.received_bytes += outcome.summary.received_bytes;
        for (fault, count) in outcome.summary.injected {
            *self.injected.entry(fault.to_string()).or_default() += count;
        }
    }

    fn line(&self) -> String {
        let faults: u64 = self.injected.values().sum();
        format!(
            "{} seeds, {:.2} simulated hours, {} steps, {} answers, {} MB received, {faults} faults, \
             {} failed",
            self.seeds,
            self.simulated.as_secs_f64() / 3600.0,
            self.steps,
            self.answered,
            self.received_bytes / 1_000_000,
            self.failed.len()
        )
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut tally = Tally::default();
    if let Some(seed) = arguments.seed {
        tally.add(seed, attempt(seed, arguments.kind));
    } else {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let first = arguments.first_seed.unwrap_or(since_1970.as_millis() as u64);
        println!("first seed: {first}");
        let began = Instant::now();
        let mut reported = began;
        for seed in first.. {
            if began.elapsed() >= Duration::from_secs(arguments.seconds) {
                break;
            }
            tally.add(seed, attempt(seed, arguments.kind));
            if reported.elapsed() >= REPORT_INTERVAL {
                reported = Instant::now();
                println!("{}", tally.line());
            }
        }
    }
    println!("{}", tally.line());
    for (fault, count) in &tally.injected {
        println!("  {fault}: {count}");
    }
    println!("findings: {}", tally.failed.len());
    for seed in &tally.failed {
        println!("FAILED: {}", replay_command(*seed, arguments.kind));
    }
    if tally.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The panic hook has printed the failure, if there was one.
fn attempt(seed: u64, kind: Option<Kind>) -> Option<Outcome> {
    let outcome = catch_unwind(|| run(seed, kind));
    if outcome.is_err() {
        eprintln!("seed {seed} failed; again with: {}", replay_command(seed, kind));
    }
    outcome.ok()
}
