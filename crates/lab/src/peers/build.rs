//! Building the peers whose source is in the checkout.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::{Build, Peer};
use crate::error::LabError;
use crate::progress::say;
use crate::stop::Stop;

/// The longest that one build may take. All crates of the workspace take a few minutes on a slow
/// machine with two CPUs.
const BUILD_PATIENCE: Duration = Duration::from_secs(3600);

/// How often a build is looked at.
const TICK: Duration = Duration::from_millis(50);

/// What became of a build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Built {
    /// The command, in the directory of the checkout.
    pub command: String,
    /// The peers that it builds.
    pub peers: Vec<&'static str>,
    /// Why it failed, if it did.
    pub failure: Option<String>,
}

/// Builds the peers of the checkout in `directory`. What the compilers say goes to standard error.
/// A build that fails does not keep the others from being tried.
///
/// # Errors
/// [`LabError::Machine`] when the directory is no checkout.
pub fn build(directory: &Path, stop: &Stop) -> Result<Vec<Built>, LabError> {
    let manifest = directory.join("peers/Cargo.toml");
    if !manifest.is_file() {
        let why = format!("{} is not there: run it in a checkout of twinring", manifest.display());
        return Err(LabError::Machine { why });
    }
    let built_by = |by: Build| Peer::known().iter().filter(move |peer| peer.build == Some(by));
    let of_cargo: Vec<&Peer> = built_by(Build::Cargo).collect();
    let mut cargo: Vec<String> =
        ["build", "--release", "--manifest-path", "peers/Cargo.toml", "--target-dir"]
            .iter()
            .chain(&["peers/target"])
            .map(|word| (*word).to_owned())
            .collect();
    for peer in &of_cargo {
        cargo.extend(["--bin".to_owned(), peer.program.clone()]);
    }
    let needs = "Rust 1.95 or newer, and the crates in its registry or cache";
    let peers = of_cargo.iter().map(|peer| peer.name.as_str()).collect();
    let mut built = vec![run(directory, "cargo", &cargo, peers, needs, stop)];
    for peer in built_by(Build::Go) {
        let output = format!("../target/release/{}", peer.program);
        let words = ["-C", &format!("peers/{}", peer.name), "build", "-o", &output, "."];
        let words = words.map(str::to_owned);
        let needs = "Go 1.24 or newer, and its module golang.org/x/sys";
        built.push(run(directory, "go", &words, vec![peer.name.as_str()], needs, stop));
    }
    Ok(built)
}

fn run(
    directory: &Path,
    program: &str,
    words: &[String],
    peers: Vec<&'static str>,
    needs: &str,
    stop: &Stop,
) -> Built {
    let command = format!("{program} {}", words.join(" "));
    say(&command);
    let failure = carry_out(directory, program, words, stop).err();
    let failure = failure.map(|why| format!("{why}; it needs {needs}"));
    Built { command, peers, failure }
}

fn carry_out(directory: &Path, program: &str, words: &[String], stop: &Stop) -> Result<(), String> {
    if stop.signal().is_some() {
        return Err("it was interrupted".to_owned());
    }
    let mut child = Command::new(program)
        .args(words)
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        // Compilers are children of the child: all of them are to end together.
        .process_group(0)
        .spawn()
        .map_err(|error| format!("`{program}` cannot be started ({error})"))?;
    let deadline = Instant::now() + BUILD_PATIENCE;
    loop {
        let ended = child.try_wait().map_err(|error| format!("`{program}` is lost: {error}"))?;
        match ended {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(format!("`{program}` ended with {status}")),
            None if stop.signal().is_some() || Instant::now() > deadline => {
                let stopped = stop.signal().is_some();
                // It is not reaped yet, so the group is still its own.
                let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
                let _ = child.wait();
                let late = format!("it took more than {} minutes", BUILD_PATIENCE.as_secs() / 60);
                return Err(if stopped { "it was interrupted".to_owned() } else { late });
            }
            None => std::thread::sleep(TICK),
        }
    }
}
