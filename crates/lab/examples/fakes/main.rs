//! Programs with known behaviour, to test the lab with. Each does exactly what its name says, and
//! the load generator reports truthfully what it saw, so a test knows what the lab must find.
//!
//! ```text
//! fakes server MODE ADDR        an echo server: see `server::MODES`
//! fakes client ADDR CONNECTIONS BYTES DEPTH WARMUP_MS WINDOW_MS [FAULT]
//! fakes http-server MODE ADDR ROOT   a server of files: see `http_server::MODES`
//! fakes http-client URL FILE CONNECTIONS DEPTH WARMUP_MS WINDOW_MS [FAULT]
//! fakes udp-server MODE ADDR    a reflector: see `udp_server::MODES`
//! fakes udp-client ADDR STREAMS PPS BYTES WARMUP_MS WINDOW_MS [FAULT]
//! fakes lab EXPERIMENT OUT      runs an experiment as the command does, handling signals
//! fakes probe …                 prints the prices of a machine, all of them made up
//! fakes helper …                the lab's hidden subcommand
//! ```
//!
//! In an experiment file: `command = ["…/examples/fakes", "server", "lossy", "{addr}"]`.

mod client;
mod http_client;
mod http_server;
mod server;
mod udp_client;
mod udp_server;

use std::ffi::OsString;
use std::process::ExitCode;

use twinring_lab::{Experiment, LabError, RunOptions, Stop};

const PRICES: &str = r#"{"event":"probe","prices":{"cpus":[0,1],
    "syscall_ns":{"median":100,"low":90,"high":110},
    "notification_busy_ns":{"median":4000,"low":3900,"high":4200},
    "wakeup_ns":{"median":1500,"low":1400,"high":1600},
    "copy_ns_per_kb":{"unavailable":"made up"}}}"#;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let words: Vec<&str> = arguments.iter().filter_map(|argument| argument.to_str()).collect();
    match words.as_slice() {
        ["helper", ..] => twinring_lab::helper(&arguments[1..]),
        ["server", mode, address] => server::serve(server::ECHO, mode, address),
        ["http-server", mode, address, _] => server::serve(http_server::FILES, mode, address),
        ["http-client", rest @ ..] => http_client::load(rest),
        ["client", rest @ ..] => client::load(rest),
        ["probe", "--measure", "--json", "--cpus", _] => {
            println!("{}", PRICES.replace('\n', ""));
            ExitCode::SUCCESS
        }
        ["udp-server", mode, address] => udp_server::serve(mode, address),
        ["udp-client", rest @ ..] => udp_client::load(rest),
        ["lab", experiment, out] => match lab(experiment, out) {
            Ok(code) => ExitCode::from(code),
            Err(error) => {
                eprintln!("{error}");
                ExitCode::from(error.exit_code())
            }
        },
        _ => {
            eprintln!("usage: fakes server|client|lab|helper …, see the head of the source");
            ExitCode::from(2)
        }
    }
}

fn lab(experiment: &str, out: &str) -> Result<u8, LabError> {
    let binary = std::env::current_exe().map_err(|e| LabError::read("this program", e))?;
    let stop = Stop::on_signals().map_err(LabError::signals)?;
    let options = RunOptions {
        experiment: Experiment::find(experiment)?,
        out: out.into(),
        seed: Some(1),
        helper: vec![binary.clone().into(), "helper".into()],
        binary,
        peers: None,
        prices: false,
        // It runs beside other tests.
        excluded_max: usize::MAX,
        command: std::env::args().collect(),
    };
    let outcome = twinring_lab::run(&options, &stop)?;
    print!("{}", twinring_lab::full(&outcome.bundle, ".", twinring_lab::Style::for_stdout()));
    println!("{}", outcome.directory.display());
    Ok(outcome.exit_code())
}
