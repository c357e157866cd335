//! Visitors of a file server: clients with blocking calls that check all they get, with and without
//! TLS, on each of its hosts.

use crate::plan::Plan;
use crate::site::{Answers, Page};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

/// Longer than any silence of a network that works.
const PATIENCE: Duration = Duration::from_secs(60);
const REQUESTS_MAX: u64 = 20;
const PIPELINED_MAX: u64 = 8;
const HEAD_LINES_MAX: usize = 100;

/// The target of a visitor, and the protocol.
#[derive(Clone)]
pub(crate) struct Door {
    pub(crate) address: SocketAddr,
    pub(crate) tls: Option<Arc<ClientConfig>>,
}

trait Line: Read + Write {}

impl<T: Read + Write> Line for T {}

impl Door {
    fn enter(&self) -> io::Result<Box<dyn Line>> {
        let stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let Some(config) = &self.tls else { return Ok(Box::new(stream)) };
        let name = ServerName::try_from("localhost").expect("a name");
        let connection = ClientConnection::new(Arc::clone(config), name).expect("a configuration");
        Ok(Box::new(StreamOwned::new(connection, stream)))
    }
}

/// An answer, or the received part of it.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
    /// It is complete.
    pub(crate) whole: bool,
}

/// One visitor. `strict`: no fault here may prevent a right answer, so each must arrive.
pub(crate) fn visit(
    plan: &mut Plan,
    door: Door,
    pages: Vec<Page>,
    strict: bool,
) -> impl FnOnce() + Send + 'static {
    let mut plan = plan.branch();
    move || {
        for _ in 0..plan.about(1, REQUESTS_MAX) {
            let asked: Vec<Page> =
                (0..plan.about(1, PIPELINED_MAX)).map(|_| plan.one_of(&pages).clone()).collect();
            let came = request_pages(&door, &asked);
            if strict && came.as_ref().is_ok_and(|came| *came < asked.len()) || came.is_err() {
                assert!(!strict, "{} answers of {}: {came:?}", asked.len(), door.address);
            }
            sleep(plan.milliseconds(1, 2_000));
        }
    }
}

/// Requests all of them on one connection, and checks the answers; returns how many are complete.
fn request_pages(door: &Door, asked: &[Page]) -> io::Result<usize> {
    let mut line = BufReader::new(door.enter()?);
    let last = asked.len() - 1;
    let requests: Vec<u8> =
        asked.iter().enumerate().flat_map(|(n, page)| page.request(n == last)).collect();
    line.get_mut().write_all(&requests)?;
    line.get_mut().flush()?;
    for (came, page) in asked.iter().enumerate() {
        let Some(answer) = read_answer(&mut line, page.answers == Answers::Head)? else {
            return Ok(came);
        };
        page.check(&answer);
        if !answer.whole {
            return Ok(came);
        }
    }
    Ok(asked.len())
}

/// `None` if the connection ends before an answer begins.
pub(crate) fn read_answer(
    line: &mut impl BufRead,
    without_body: bool,
) -> io::Result<Option<Answer>> {
    let mut head = Vec::new();
    for _ in 0..HEAD_LINES_MAX {
        let before = head.len();
        if line.read_until(b'\n', &mut head)? == 0 {
            return Ok(None);
        }
        if head[before..] == *b"\r\n" {
            break;
        }
    }
    let head = String::from_utf8(head).expect("a head is text");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.unwrap_or_else(|| panic!("no status in {head:?}"));
    let length = head.lines().find_map(|field| field.strip_prefix("Content-Length: "));
    let length: u64 = length.map_or(0, |length| length.parse().expect("a number"));
    let mut body = Vec::new();
    if !without_body {
        line.take(length).read_to_end(&mut body)?;
    }
    let whole = without_body || body.len() as u64 == length;
    Ok(Some(Answer { status, body, whole }))
}
