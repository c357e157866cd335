//! What the load generator of files has that the one of echoes has not.

use std::io::Write;
use std::net::TcpStream;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

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

/// The fields of the result that the one of echoes has not, or has otherwise.
pub(crate) fn result(
    plan: &Plan,
    file: &File,
    answered: u64,
    troubles: &impl Fn(Trouble) -> u64,
) -> Value {
    let none = json!({"min": 0.0, "mean": 0.0, "p50": 0.0, "p90": 0.0, "p99": 0.0, "p99_9": 0.0,
        "p99_99": 0.0, "max": 0.0});
    let verify = (plan.fault != "blind").then_some("file");
    let content = if plan.fault == "shrinks" { file.content.len() - 1 } else { file.content.len() };
    json!({
        "schema": "twinring.load.http/1",
        "target": format!("http://{}", plan.address),
        "settings": {"urls": 1, "method": "GET", "body_bytes": 0, "connections": plan.connections,
            "pipeline": plan.depth, "keepalive": plan.fault != "plain", "threads": plan.connections,
            "mode": "closed", "rate_per_s": null, "requests": null, "seed": 1,
            "expect_status": "200", "length": "first", "verify_body": verify, "tls": null,
            "warmup_s": plan.warmup.as_secs_f64(), "duration_s": plan.window.as_secs_f64()},
        "bytes": {"sent": 0, "received": 0, "bodies": answered * content as u64},
        "ttfb_us": none, "connect_us": none,
        "errors": {"connect": 0, "tls": 0, "reset": 0, "closed_early": troubles(Trouble::Closed),
            "timeout": 0, "malformed": troubles(Trouble::Malformed),
            "status": troubles(Trouble::Status), "length": troubles(Trouble::Length),
            "hash": troubles(Trouble::Mismatch), "other": 0},
        "first_error": null})
}
