//! `echo-check PROGRAM [ARGUMENT...]`: runs every check against one echo server.

use std::process::ExitCode;

use clap::Parser;

/// Checks that an echo server loses no byte.
///
/// PROGRAM must take `--listen ADDRESS`, print a line that ends in `listening on ADDRESS`, and end
/// with status 0 on SIGTERM.
#[derive(Parser)]
#[command(version)]
struct Options {
    /// The server and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let command: Vec<&str> = options.command.iter().map(String::as_str).collect();
    let mut failed = 0;
    for (name, check) in echo_check::CHECKS {
        match check(&command) {
            Ok(()) => println!("{name}: ok"),
            Err(why) => {
                failed += 1;
                println!("{name}: FAILED: {why}");
            }
        }
    }
    println!("{} passed, {failed} failed", echo_check::CHECKS.len() - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
