//! Talks HTTP over raw sockets, byte by byte under control.

use super::*;
use memchr::memmem;
use std::time::SystemTime;

/// When the files of these tests were last modified: Sun, 06 Nov 1994 08:49:37 GMT.
pub(crate) const MODIFIED_S: u64 = 784_111_777;
pub(crate) const MODIFIED: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

/// A directory of files to serve, removed when dropped.
pub(crate) struct Site(tempfile::TempDir);

impl Site {
    pub(crate) fn new() -> Site {
        Site(tempfile::tempdir().expect("a directory for temporary files"))
    }

    /// Waits until the files count as settled: they may not change again without a new time stamp, so that their
    /// tags are strong and they are compressed.
    pub(crate) fn settle(&self) {
        thread::sleep(Duration::from_millis(2_100));
    }

    /// What most tests need: small and large files, a directory with an index and one without.
    pub(crate) fn usual() -> Site {
        let site = Site::new();
        site.write("index.html", b"<h1>home</h1>\n");
        site.write("hello.txt", b"0123456789abcdefghijklmnopqrstuvwxyz");
        site.write("empty.txt", b"");
        site.write("large.bin", &pattern(7, 700_001));
        site.write("sub/index.html", b"<h1>sub</h1>\n");
        site.write("list/a b.txt", b"spaced");
        site.write("list/deeper/x.txt", b"x");
        site.write(".hidden", b"secret");
        site.write(".git/config", b"secret");
        site
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// The path of a file, as an argument.
    pub(crate) fn file(&self, name: &str) -> String {
        self.0.path().join(name).to_str().expect("UTF-8").to_owned()
    }

    /// Writes a file, with the date of these tests.
    pub(crate) fn write(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(&path, content).expect("a file");
        date(&path, MODIFIED_S);
        path
    }

    /// Puts a file in the place of another at once, as a deployment should.
    pub(crate) fn replace(&self, name: &str, content: &[u8], modified_s: u64) {
        let new = self.0.path().join(".new");
        fs::write(&new, content).expect("a file");
        date(&new, modified_s);
        fs::rename(&new, self.0.path().join(name)).expect("a file to replace");
    }
}

/// A server of the [usual](Site::usual) site.
pub(crate) fn served(arguments: &[&str]) -> (Site, Server) {
    served_on(ENGINE, arguments)
}

/// The same on this engine.
pub(crate) fn served_on(engine: &str, arguments: &[&str]) -> (Site, Server) {
    let site = Site::usual();
    let server = Server::http(engine, site.path(), arguments);
    (site, server)
}

/// Files, and a configuration file in a directory of its own. In its text `ROOT` stands for the directory of the
/// files, `ETC` for its own.
pub(crate) struct Configured {
    pub(crate) site: Site,
    pub(crate) etc: Site,
}

impl Configured {
    pub(crate) fn new(site: Site, text: &str) -> Configured {
        let configured = Configured { site, etc: Site::new() };
        configured.write(text);
        configured
    }

    pub(crate) fn write(&self, text: &str) {
        let path = |site: &Site| site.path().display().to_string();
        let text = text.replace("ROOT", &path(&self.site)).replace("ETC", &path(&self.etc));
        fs::write(self.path(), text).expect("a file");
    }

    pub(crate) fn path(&self) -> String {
        self.etc.file("twinring.toml")
    }

    pub(crate) fn serve(&self) -> Server {
        let config = ["--config", &self.path()];
        Server::spawn(serving(twinring(), "http", ENGINE, &config))
    }

    /// `--check` with these arguments added: exit code, standard output, standard error.
    pub(crate) fn check(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let check = ["serve", "http", "--check", "--config", &self.path()];
        run(&[&check[..], arguments].concat())
    }
}

/// Sends SIGHUP, and waits until the server has said these words once more.
pub(crate) fn reload(server: &Server, words: &str) {
    let count = || server.stderr().matches(words).count();
    let before = count();
    server.signal(Signal::SIGHUP);
    wait_until(words, || count() > before);
}

/// GET of a target of this host.
pub(crate) fn of_host(host: &str, target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n")
}

/// A key of `[server]` in the configuration file.
pub(crate) fn set(key: &str, value: &str) -> String {
    format!("server.{key} = '{value}'")
}

/// Sets when a file was last modified, in seconds since 1970.
pub(crate) fn date(path: &Path, modified_s: u64) {
    let file = File::options().write(true).open(path).expect("a file");
    let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(modified_s);
    file.set_modified(modified).expect("a date");
}

/// Sends `bytes` and FIN, and returns all that comes back until the server ends too.
pub(crate) fn talk(address: SocketAddr, bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let stream = begin(address, bytes);
    stream.shutdown(Shutdown::Write).expect("the server reads");
    read_to_end(&stream).expect("a clean end")
}

/// As [`talk`], but without FIN: the server has to end by itself.
pub(crate) fn talk_until_closed(address: SocketAddr, bytes: impl AsRef<[u8]>) -> Vec<u8> {
    read_to_end(&begin(address, bytes)).expect("a clean end")
}

/// A GET request with further fields, each ended by CR LF.
pub(crate) fn get(target: &str, fields: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: test\r\n{fields}\r\n")
}

/// One answer, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Response {
    /// The value of a header field, which must not occur twice.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        let mut values = lines.filter(|(other, _)| other.eq_ignore_ascii_case(name));
        let value = values.next().map(|(_, value)| value);
        assert!(values.next().is_none(), "{name} twice: {}", self.head);
        value
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Reads one answer off a connection. `to_head` means that it has no body, with any length.
pub(crate) fn read_response(stream: &mut impl Read, to_head: bool) -> Response {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a complete head");
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).expect("text");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    let mut response = Response { status, head, body: Vec::new() };
    let length = response.field("content-length").map(|length| length.parse().expect("a number"));
    if !to_head && status != 204 && status != 304 && status >= 200 {
        let length: usize = length.expect("a length");
        response.body = vec![0; length];
        stream.read_exact(&mut response.body).expect("a complete body");
    }
    response
}

/// Parses all answers in `bytes`, none of them to HEAD.
pub(crate) fn responses(bytes: &[u8]) -> Vec<Response> {
    let mut rest = bytes;
    let next = || (!rest.is_empty()).then(|| read_response(&mut rest, false));
    std::iter::from_fn(next).collect()
}

/// The answer to one request on a connection of its own.
pub(crate) fn ask(server: &Server, request: &str) -> Response {
    let bytes = talk(server.address(), request);
    let mut rest = bytes.as_slice();
    let answer = read_response(&mut rest, request.starts_with("HEAD "));
    assert!(rest.is_empty(), "{request}: more than one answer");
    answer
}

/// What an answer must have.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Is<'a> {
    Field(&'a str, &'a str),
    /// No such field.
    Without(&'a str),
    Text(&'a str),
    /// Content with this text in it.
    Holds(&'a str),
    /// Content of this length.
    Length(usize),
}

/// A request, the status of its answer, and what else that must have.
pub(crate) type Row<'a> = (String, u16, &'a [Is<'a>]);

pub(crate) fn check(answer: &Response, (request, status, is): &Row<'_>) {
    assert_eq!(answer.status, *status, "{request}{}", answer.head);
    for is in *is {
        let holds = match *is {
            Is::Field(name, value) => answer.field(name) == Some(value),
            Is::Without(name) => answer.field(name).is_none(),
            Is::Text(text) => answer.body == text.as_bytes(),
            Is::Holds(text) => answer.text().contains(text),
            Is::Length(length) => answer.body.len() == length,
        };
        assert!(holds, "{request}{}{:.500}\nis not {is:?}", answer.head, answer.text());
    }
}

impl Server {
    /// Checks the answers to these requests, each on a connection of its own.
    pub(crate) fn check_http1(&self, rows: &[Row<'_>]) {
        rows.iter().for_each(|row| check(&ask(self, &row.0), row));
    }

    /// Checks the answers to these requests over HTTP/1.1, and over one connection of HTTP/2.
    pub(crate) fn check_both(&self, rows: &[Row<'_>]) {
        self.check_http1(rows);
        http2::run_client(async {
            let builder = h2::client::Builder::new();
            let client = http2::open(self.address(), None, &builder).await;
            for row in rows {
                check(&http2::ask(&client, &row.0).await, row);
            }
        });
    }
}

/// Sends a request behind which the server has to close, on a connection of its own.
pub(crate) fn ask_last(address: SocketAddr, request: &str) -> Response {
    let mut answers = responses(&talk_until_closed(address, request));
    assert_eq!(answers.len(), 1, "{request:?}: {answers:?}");
    answers.remove(0)
}

/// A server with an admin service, on an address of its own: no other program gets the port when it is free again.
pub(crate) fn with_admin(site: &Site, arguments: &[&str]) -> (Server, SocketAddr) {
    let arguments = [&["--admin", "127.0.0.7:0"], arguments].concat();
    let server = Server::http(ENGINE, site.path(), &arguments);
    let admin = server.admin();
    (server, admin)
}

/// The statuses of all answers on one connection, until the server or these bytes end it.
pub(crate) fn statuses(server: &Server, bytes: &str) -> Vec<u16> {
    let answers = responses(&talk(server.address(), bytes));
    answers.iter().map(|answer| answer.status).collect()
}

/// Sends a request on a connection that stays, and reads the answer.
pub(crate) fn ask_on(stream: &mut (impl Read + Write), request: &str) -> Response {
    say(stream, request);
    read_response(stream, request.starts_with("HEAD "))
}

/// The bytes with every date of the answer itself made the same.
pub(crate) fn undated(bytes: &[u8]) -> Vec<u8> {
    let mut undated = bytes.to_vec();
    for mark in memmem::find_iter(bytes, b"\r\nDate: ") {
        undated[mark + 8..mark + 37].fill(b'x');
    }
    undated
}
