//! The `twinring` command: arguments in, library calls out. It is a library only so that `fuzz/` can
//! call its parsers.
//!
//! [`Command`] lists the subcommands, each with a module of its name. `serve` runs twinring-services, with
//! signals, reload, sandbox and reports around it; `load` runs twinring-load; `lab`, `compare` and `advise` run
//! twinring-lab, which starts this binary again for servers and load generators; `probe` prints `twinring::probe`.

mod advise;
mod compare;
mod engine_args;
mod inherit;
mod lab;
mod load;
mod output;
mod probe;
mod serve;
mod values;

#[doc(hidden)]
pub use serve::fuzzing;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// One network service on two engines, io_uring and epoll, and evidence for which one suits your
/// workload.
#[derive(Debug, Parser)]
#[command(name = "twinring", version, arg_required_else_help = true, max_term_width = 80)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a server.
    #[command(subcommand)]
    Serve(serve::Service),
    /// Put a server under load and measure it.
    #[command(subcommand)]
    Load(load::Load),
    /// Show what this system allows, what it refuses, and how to fix it.
    Probe(probe::Probe),
    /// Print the filter of system calls that a container or a service manager needs for
    /// `twinring serve`, on both engines.
    ///
    /// By default, container engines forbid io_uring. Save the output and name its file:
    /// `docker run --security-opt seccomp=FILE`, likewise podman; for Kubernetes,
    /// `seccompProfile: {type: Localhost, localhostProfile: FILE}`, with the file below
    /// /var/lib/kubelet/seccomp on the nodes.
    Seccomp {
        /// Who applies it.
        format: serve::Format,
    },
    /// Find out which engine suits a workload on this machine, in a few minutes.
    Advise(advise::Advise),
    /// Compare servers under one workload: engines, other servers, or two builds of one.
    Compare(compare::Compare),
    /// Paired experiments, their bundles and reports.
    #[command(subcommand)]
    Lab(lab::Lab),
    /// Print the completions of a shell, for its directory of completions.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write the manual pages, one for each command.
    Man {
        /// The directory for them, which exists.
        directory: PathBuf,
    },
    /// How the lab starts its children.
    #[command(name = lab::HELPER, hide = true)]
    LabHelper {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

impl Command {
    /// True if it ends on SIGTERM in its own way.
    fn handles_term(&self) -> bool {
        match self {
            Command::Serve(_) | Command::Load(_) | Command::Advise(_) => true,
            Command::Lab(lab) => lab.handles_term(),
            _ => false,
        }
    }
}

/// Runs the command of the process's arguments, and returns its exit code.
pub fn main() -> ExitCode {
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(error) => return ExitCode::from(output::usage(&error)),
    };
    inherit::undo(command.handles_term());
    match command {
        Command::Serve(service) => serve::run(service),
        Command::Load(load) => load::run(load),
        Command::Probe(probe) => probe::run(&probe),
        Command::Seccomp { format } => {
            exit_code(serve::profile(format).and_then(|text| output::print(&text)))
        }
        Command::Advise(options) => advise::run(&options),
        Command::Compare(options) => compare::run(&options),
        Command::Lab(lab) => lab::run(lab),
        Command::Completions { shell } => completions(shell),
        Command::Man { directory } => manual(&directory),
        Command::LabHelper { arguments } => twinring_lab::helper(&arguments),
    }
}

/// The code of a result that was printed or written, or a complaint.
fn exit_code(done: Result<(), String>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            output::complain(&format!("twinring: {problem}"));
            ExitCode::FAILURE
        }
    }
}

fn completions(shell: Shell) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "twinring", &mut script);
    exit_code(output::print(&String::from_utf8_lossy(&script)))
}

fn manual(directory: &Path) -> ExitCode {
    let written = clap_mangen::generate_to(Cli::command(), directory);
    exit_code(written.map_err(|error| format!("cannot write to {}: {error}", directory.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_manual_page_and_completions() {
        Cli::command().debug_assert();
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(manual(directory.path()), ExitCode::SUCCESS);
        for page in
            ["twinring.1", "twinring-serve-http.1", "twinring-lab-run.1", "twinring-advise.1"]
        {
            let text = std::fs::read_to_string(directory.path().join(page)).unwrap();
            assert!(text.contains(".SH OPTIONS"), "{page}: {text}");
        }
        assert!(!directory.path().join("twinring-lab-helper.1").exists());
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "twinring", &mut script);
            assert!(String::from_utf8(script).unwrap().contains("advise"), "{shell}");
        }
    }
}
