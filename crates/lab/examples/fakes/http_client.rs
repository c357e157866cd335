//! What the load generator of files has that the one of echoes has not.

use std::io::Write;
use std::net::TcpStream;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use twinring_wire::{HttpResult, RequestResult, http};

use crate::client::{self, Plan, Trouble, read_until};

/// What is asked for.
#[derive(Clone)]
pub(crate) struct File {
    path: String,
    content: Vec<u8>,
}

pub(crate) fn load(words: &[&str]) -> ExitCode {
    match parse(words) {
        Some(plan) => client::run(&plan),
        None => {
            eprintln!(
                "fakes http-client URL FILE CONNECTIONS DEPTH WARMUP_MS WINDOW_MS [FAULT], with \
                 the FILE that is at the URL"
            );
            ExitCode::from(2)
        }
    }
}

fn parse(words: &[&str]) -> Option<Plan> {
    let number = |index: usize| words.get(index)?.parse::<u64>().ok();
    let (address, path) = words.first()?.strip_prefix("http://")?.split_once('/')?;
    let file = File { path: format!("/{path}"), content: std::fs::read(words.get(1)?).ok()? };
    Some(Plan {
        address: address.parse().ok()?,
        connections: number(2)?,
        bytes: file.content.len(),
        depth: number(3)?,
        warmup: Duration::from_millis(number(4)?),
        window: Duration::from_millis(number(5)?),
        fault: words.get(6).copied().unwrap_or_default().to_owned(),
        file: Some(file),
    })
}

/// Sends `depth` requests and takes their answers, comparing every byte.
pub(crate) fn exchange(
    plan: &Plan,
    file: &File,
    stream: &mut TcpStream,
    end: Instant,
) -> Result<(), Trouble> {
    let request = format!("GET {} HTTP/1.1\r\nHost: {}\r\n\r\n", file.path, plan.address);
    let requests = request.repeat(plan.depth as usize);
    stream.write_all(requests.as_bytes()).map_err(|_| Trouble::Closed)?;
    let mut came: Vec<u8> = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    for _ in 0..plan.depth {
        while take_answer(&mut came, file)?.is_none() {
            let read = read_until(stream, &mut buffer, end)?;
            came.extend_from_slice(&buffer[..read]);
        }
    }
    Ok(())
}

/// Takes a whole answer out of what came, if there is one.
fn take_answer(came: &mut Vec<u8>, file: &File) -> Result<Option<()>, Trouble> {
    let Some(head_bytes) = came.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Ok(None);
    };
    let head = String::from_utf8_lossy(&came[..head_bytes]).into_owned();
    let status = head.strip_prefix("HTTP/1.1 ").ok_or(Trouble::Malformed)?;
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    let length: usize = length.and_then(|length| length.parse().ok()).ok_or(Trouble::Malformed)?;
    let content = head_bytes + 4;
    if came.len() < content + length {
        return Ok(None);
    }
    let answer: Vec<u8> = came.drain(..content + length).collect();
    match () {
        () if !status.starts_with("200 ") => Err(Trouble::Status),
        () if length != file.content.len() => Err(Trouble::Length),
        () if answer[content..] != file.content => Err(Trouble::Mismatch),
        () => Ok(Some(())),
    }
}

/// The result, with what it has in common with that of echoes.
pub(crate) fn result(
    plan: &Plan,
    file: &File,
    all: RequestResult,
    troubles: &impl Fn(Trouble) -> u64,
) -> HttpResult {
    let content = if plan.fault == "shrinks" { file.content.len() - 1 } else { file.content.len() };
    HttpResult {
        head: client::head(http::SCHEMA, format!("http://{}", plan.address)),
        settings: http::Settings {
            urls: 1,
            method: "GET".to_owned(),
            connections: plan.connections,
            pipeline: plan.depth,
            keepalive: plan.fault != "plain",
            threads: plan.connections,
            mode: "closed".to_owned(),
            seed: 1,
            expect_status: "200".to_owned(),
            length: Some(http::Length::Rule("first".to_owned())),
            verify_body: (plan.fault != "blind").then(|| "file".to_owned()),
            warmup_s: plan.warmup.as_secs_f64(),
            duration_s: plan.window.as_secs_f64(),
            ..http::Settings::default()
        },
        bytes: http::Bytes {
            bodies: all.requests.answered * content as u64,
            ..http::Bytes::default()
        },
        errors: http::Errors {
            closed_early: troubles(Trouble::Closed),
            malformed: troubles(Trouble::Malformed),
            status: troubles(Trouble::Status),
            length: troubles(Trouble::Length),
            hash: troubles(Trouble::Mismatch),
            ..http::Errors::default()
        },
        all,
        ..HttpResult::default()
    }
}
