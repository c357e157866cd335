//! A server of files over HTTP/1.1 with one thread per connection, and one fault.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;

use crate::server::{Service, count, pause};

pub(crate) const FILES: Service = Service { name: "http", modes: MODES, handle: serve_files };

/// What the server does beside serving files.
const MODES: &[(&str, &str)] = &[
    ("files", "nothing: it is clean, and speaks the JSON contract"),
    ("foreign", "nothing, and it says nothing either"),
    ("burn", "uses 500 us of CPU more for every answer"),
    ("status", "answers every 10th request of a connection with 503"),
    ("short", "leaves out the last byte of every 10th file, and says so in Content-Length"),
    ("garble", "changes a byte of every 10th file"),
    ("malformed", "makes every 10th answer one that is no HTTP"),
    ("breaks", "closes the connection in the middle of every 10th answer"),
    ("dies", "ends with code 7 after 100 answers"),
    ("admits-64", "serves 64 connections and leaves the others in the backlog"),
];

/// The directory of the files is the last argument of the program.
fn serve_files(mut stream: TcpStream, mode: &str) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let root = std::env::args().next_back().unwrap_or_default();
    let mut requests = BufReader::new(stream.try_clone()?);
    for number in 1_u64.. {
        let Some(Request { path, close }) = read_request(&mut requests)? else { break };
        let mut content = std::fs::read(Path::new(&root).join(path.trim_start_matches('/')))?;
        let mut first = "HTTP/1.1 200 OK";
        let faulty = number % 10 == 0;
        pause(mode);
        match mode {
            "status" if faulty => first = "HTTP/1.1 503 Service Unavailable",
            "malformed" if faulty => first = "HTTQ/1.1 200 OK",
            "short" if faulty => drop(content.pop()),
            "garble" if faulty => content[0] ^= 0x40,
            _ => {}
        }
        let connection = if close { "close" } else { "keep-alive" };
        let length = content.len();
        let head =
            format!("{first}\r\nContent-Length: {length}\r\nConnection: {connection}\r\n\r\n");
        let mut answer = head.into_bytes();
        answer.append(&mut content);
        if mode == "breaks" && faulty {
            stream.write_all(&answer[..answer.len() - length / 2])?;
            return stream.shutdown(Shutdown::Both);
        }
        stream.write_all(&answer)?;
        count(mode);
        if close {
            break;
        }
    }
    stream.shutdown(Shutdown::Write)?;
    // A client that has more to say is listened to, so that what it was sent is not lost by a reset.
    stream.read_to_end(&mut Vec::new()).map(drop)
}

struct Request {
    path: String,
    close: bool,
}

/// The next request, if there is one.
fn read_request(requests: &mut impl BufRead) -> std::io::Result<Option<Request>> {
    let mut first = String::new();
    requests.read_line(&mut first)?;
    let Some(path) = first.split(' ').nth(1) else { return Ok(None) };
    let mut request = Request { path: path.to_owned(), close: false };
    loop {
        let mut line = String::new();
        requests.read_line(&mut line)?;
        if line.trim_end().is_empty() {
            return Ok(Some(request));
        }
        request.close |= line.trim_end().eq_ignore_ascii_case("connection: close");
    }
}
