//! `echo-check PROGRAM [ARGUMENT...]`: checks that an echo server loses no byte.
//!
//! PROGRAM must take `--listen ADDRESS`, print a line that ends in `listening on ADDRESS`, and end
//! with status 0 on SIGTERM.

use std::process::ExitCode;

fn main() -> ExitCode {
    let command: Vec<String> = std::env::args().skip(1).collect();
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
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
