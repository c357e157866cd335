//! The `twinring` command: arguments in, library calls out. It is a library only so that `fuzz/` can
//! call its parsers.
//!
//! `Command` lists the subcommands. `serve` runs twinring-services, with signals, reload, sandbox and reports around
//! it; `load` runs twinring-load; `lab` and `compare`, with `advise`, run twinring-lab, which starts this binary again
//! for servers and load generators; `probe` prints `twinring::probe`.

mod compare;
mod inherit;
mod lab;
mod load;
mod output;
mod probe;
mod serve;

#[doc(hidden)]
pub use serve::configuration;

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
        /// What applies the filter.
        format: serve::Format,
    },
    /// Find out which engine suits a workload on this machine, in a few minutes.
    Advise(compare::Advise),
    /// Compare servers under one workload: engines, other servers, or two builds of one.
    Compare(compare::Compare),
    /// Paired experiments, their bundles and reports.
    #[command(subcommand)]
    Lab(lab::Lab),
    /// Print the completion script of a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write the manual pages, one for each command.
    Man {
        /// An existing directory for them.
        directory: PathBuf,
    },
    /// How the lab starts its children.
    #[command(name = lab::HELPER, hide = true)]
    LabHelper {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

/// Runs the command of the process's arguments, and returns its exit code.
pub fn main() -> ExitCode {
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(error) => return ExitCode::from(output::usage(&error)),
    };
    use Command::{Advise, Compare, Load, Serve};
    // These end on SIGTERM in their own way.
    inherit::undo(matches!(
        command,
        Serve(_) | Load(_) | Advise(_) | Compare(_) | Command::Lab(lab::Lab::Run(_))
    ));
    match command {
        Command::Serve(service) => serve::run(service),
        Command::Load(load) => load::run(load),
        Command::Probe(probe) => probe::run(&probe),
        Command::Seccomp { format } => {
            exit_code(serve::profile(format).map(|text| output::show(&text, 0)))
        }
        Command::Advise(options) => lab::finish("advise", compare::advise(&options)),
        Command::Compare(options) => lab::finish("compare", compare::compare(&options)),
        Command::Lab(lab) => lab::run(lab),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "twinring", &mut script);
            ExitCode::from(output::show(&String::from_utf8_lossy(&script), 0))
        }
        Command::Man { directory } => exit_code(manual(&directory)),
        Command::LabHelper { arguments } => twinring_lab::helper(&arguments),
    }
}

/// The exit code, after a complaint if something could not be done.
fn exit_code(done: Result<u8, String>) -> ExitCode {
    ExitCode::from(done.unwrap_or_else(|problem| {
        output::complain(&format!("twinring: {problem}"));
        1
    }))
}

fn manual(directory: &Path) -> Result<u8, String> {
    let written = clap_mangen::generate_to(Cli::command(), directory);
    let wrong = |error| format!("cannot write to {}: {error}", directory.display());
    written.map(|()| 0).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn every_command_has_a_manual_page() {
        Cli::command().debug_assert();
        let directory = tempfile::tempdir().unwrap();
        manual(directory.path()).unwrap();
        for page in ["twinring.1", "twinring-serve-http.1", "twinring-lab-run.1"] {
            let text = std::fs::read_to_string(directory.path().join(page)).unwrap();
            assert!(text.contains(".SH OPTIONS"), "{page}: {text}");
        }
        assert!(!directory.path().join("twinring-lab-helper.1").exists());
    }

    /// That of the log had to be UTF-8.
    #[test]
    fn a_path_may_have_any_bytes() {
        let path = OsStr::from_bytes(b"/tmp/\xff");
        let words = ["twinring", "serve", "http", "--access-log"].map(OsStr::new);
        assert!(Cli::try_parse_from(words.into_iter().chain([path])).is_ok());
    }
}
