//! The `twinring` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    twinring_cli::main()
}
