//! `twinring advise`: which engine suits a workload here.

use crate::lab::{HELPER, tell};
use crate::output::complain;
use crate::values;
use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, BufRead, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use twinring::probe::Capabilities;
use twinring_lab::advise::{self, Local, Workload};
use twinring_lab::{Advice, Estimate, LabError, NetChoice, Protocol, RunOptions, Stop, Style};

/// The longest line that is read as an answer.
const ANSWER_BYTES_MAX: u64 = 256;

/// What a server does.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Service {
    /// Messages over TCP that are answered.
    Echo,
    /// Files over HTTP.
    Http,
    /// Datagrams over UDP that are answered.
    Udp,
}

#[derive(Debug, Args)]
pub(crate) struct Advise {
    /// What your server is most like.
    service: Option<Service>,
    /// Connections (or UDP streams) of one worker at once.
    #[arg(short, long, value_name = "N")]
    connections: Option<u32>,
    /// Size of a message, a file or a datagram, such as 128 or 4K.
    #[arg(short, long, value_name = "BYTES", value_parser = values::size)]
    size: Option<u32>,
    /// Requests per second of one worker; 0 is as many as it can answer.
    #[arg(short, long, value_name = "R")]
    rate: Option<u32>,
    /// HTTP over TLS.
    #[arg(long)]
    tls: bool,
    /// Networks to measure on: lo, rps (which interrupts the server), napi (which the server polls),
    /// all of them, or auto: rps where rights allow, else lo.
    #[arg(long, default_value = "all")]
    net: NetChoice,
    /// How long to measure. More time gives narrower intervals and more cells close to yours.
    #[arg(long, value_name = "MINUTES", default_value_t = 5.0, value_parser = minutes)]
    minutes: f64,
    /// Ask nothing: what is not given takes its default (echo, 100 connections, 1024 bytes, rate 0).
    #[arg(long)]
    no_questions: bool,
    /// Also write the page as HTML to this file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print the page as one JSON line.
    #[arg(long)]
    json: bool,
    /// Directory for the bundle with the raw data.
    #[arg(long, default_value = "bundles", value_name = "DIR")]
    out: PathBuf,
}

fn minutes(text: &str) -> Result<f64, String> {
    let minutes = text.parse().ok().filter(|minutes| (0.1..=240.0).contains(minutes));
    minutes.ok_or_else(|| "expected minutes between 0.1 and 240".to_owned())
}

pub(crate) fn run(options: &Advise) -> ExitCode {
    match advise(options) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            complain(&format!("twinring advise: {error}"));
            ExitCode::from(error.exit_code())
        }
    }
}

fn advise(options: &Advise) -> Result<u8, LabError> {
    let workload = workload(options);
    let experiment = workload.experiment(options.minutes * 60.0)?;
    let local = local();
    let (advice, code) = if local.refused.is_some() {
        (Advice::unmeasured(&workload, local), 0)
    } else {
        complain(&format!("measuring, {}", Estimate::of(&experiment).words()));
        let binary =
            std::env::current_exe().map_err(|e| LabError::read("the running binary", e))?;
        let outcome = twinring_lab::run(
            &RunOptions {
                experiment,
                out: options.out.clone(),
                seed: None,
                helper: vec![OsString::from(&binary), HELPER.into()],
                binary,
                peers: None,
                prices: true,
                command: std::env::args().collect(),
            },
            &Stop::on_signals().map_err(LabError::signals)?,
        )?;
        let directory = outcome.directory.display().to_string();
        (Advice::of(&workload, &outcome.bundle, &directory, local), outcome.exit_code())
    };
    let page = match options.json {
        true => format!("{}\n", advice.json_line()),
        false => advise::text(&advice, Style::for_stdout()),
    };
    let code = tell(&page, code);
    // Behind the page: if the file cannot be written, minutes of measuring are not lost.
    if let Some(file) = &options.html {
        write(file, &advise::html(&advice)).map_err(|error| LabError::write(file, error))?;
    }
    Ok(code)
}

/// Writes a file. A FIFO without a reader is an error, and not waited for.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut open = OpenOptions::new();
    open.write(true).create(true).truncate(true).custom_flags(libc::O_NONBLOCK);
    open.open(path)?.write_all(text.as_bytes())
}

/// What was asked for. What the options leave open is asked on a terminal.
fn workload(options: &Advise) -> Workload {
    let asks = !options.no_questions && !options.json && io::stdin().is_terminal();
    let service = options.service.unwrap_or_else(|| {
        let question = "What is your server most like: echo, http or udp?";
        let read = |text: &str| Service::from_str(text, true).ok();
        ask(asks, question, "echo", read).unwrap_or(Service::Echo)
    });
    let protocol = match service {
        Service::Echo => Protocol::Tcp,
        Service::Http => Protocol::Http,
        Service::Udp => Protocol::Udp,
    };
    let number = |given: Option<u32>, question: &str, default: u32| {
        // Units are for sizes; a thousand connections may be written as 1K all the same.
        let read = |text: &str| values::size(text).ok();
        given.or_else(|| ask(asks, question, &default.to_string(), read)).unwrap_or(default)
    };
    let (many, size) = match service {
        Service::Echo => ("Connections of one worker at once?", "Bytes of a message?"),
        Service::Http => ("Connections of one worker at once?", "Bytes of a file?"),
        Service::Udp => ("Streams of one worker at once?", "Bytes of a datagram?"),
    };
    Workload {
        protocol,
        connections: number(options.connections, many, 100),
        bytes: number(options.size, size, if protocol == Protocol::Udp { 172 } else { 1024 }),
        rate_per_s: number(
            options.rate,
            "Requests per second of one worker? 0 is as many as it can answer.",
            0,
        ),
        tls: options.tls && protocol == Protocol::Http,
        net: options.net,
    }
}

/// Asks until the answer can be read; nothing at the end of input, or if standard input is no terminal.
fn ask<T>(
    asks: bool,
    question: &str,
    default: &str,
    read: impl Fn(&str) -> Option<T>,
) -> Option<T> {
    if !asks {
        return None;
    }
    loop {
        let _reader_is_gone = write!(io::stderr(), "{question} [{default}] ");
        let mut answer = String::new();
        let input = io::Read::take(io::stdin().lock(), ANSWER_BYTES_MAX);
        if io::BufReader::new(input).read_line(&mut answer).ok()? == 0 {
            return None;
        }
        let answer = answer.trim();
        if let Some(value) = read(if answer.is_empty() { default } else { answer }) {
            return Some(value);
        }
    }
}

/// What this kernel and container say about io_uring.
fn local() -> Local {
    let found = Capabilities::detect();
    let refused = found.refusal.as_ref().map(|it| format!("{}: {}", it.what, it.fix));
    let mut against = Vec::new();
    let missing: Vec<&str> = found.missing().iter().map(|feature| feature.kernel_name).collect();
    if !missing.is_empty() && refused.is_none() {
        against.push(format!("this kernel lacks {}", missing.join(", ")));
    }
    if found.uring.as_ref().is_some_and(|uring| uring.memlock_charged) {
        against.push("rings are charged to RLIMIT_MEMLOCK: raise `ulimit -l`".to_owned());
    }
    if found.environment.container.is_none() {
        against.push(
            "the default seccomp profiles of Docker and containerd forbid io_uring; it has to be \
             allowed where you deploy"
                .to_owned(),
        );
    }
    let features = found.chosen.as_ref().map(crate::probe::describe);
    Local { refused, against, features }
}
