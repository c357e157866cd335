//! Talks HTTP/2: by the h2 crate, or frame by frame.

use super::begin;
use super::http::Response;
use bytes::Bytes;
use h2::RecvStream;
use h2::client::{self, ResponseFuture, SendRequest};
use http::Request;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::future::{Future, poll_fn};
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use twinring::{EngineChoice, Runtime, spawn};
use twinring_compat::Compat;

/// Runs a client to its end.
pub(crate) fn run_client<R>(client: impl Future<Output = R>) -> R {
    let runtime = Runtime::builder().engine(EngineChoice::Epoll).build().expect("a runtime");
    runtime.block_on(client).expect("a runtime")
}

/// Opens a connection, with TLS if there is something to trust.
pub(crate) async fn open(
    address: SocketAddr,
    trust: Option<&Arc<ClientConfig>>,
    builder: &client::Builder,
) -> SendRequest<Bytes> {
    let stream = twinring::TcpStream::connect(address).await.expect("the server accepts");
    let stream = Compat::new(stream);
    let Some(config) = trust else { return shake_hands(stream, builder).await };
    let mut config = ClientConfig::clone(config);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let name = ServerName::try_from("localhost").expect("a name");
    let connector = TlsConnector::from(Arc::new(config));
    let stream = connector.connect(name, stream).await.expect("a handshake");
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    shake_hands(stream, builder).await
}

async fn shake_hands<T>(stream: T, builder: &client::Builder) -> SendRequest<Bytes>
where
    T: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let (client, connection) = builder.handshake(stream).await.expect("HTTP/2");
    spawn(async move {
        // Its errors are those of the requests.
        let _ended = connection.await;
    });
    client
}

/// Sends a request that is written as in HTTP/1.1.
pub(crate) async fn send(client: &SendRequest<Bytes>, text: &str) -> ResponseFuture {
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    let mut lines = head.split("\r\n");
    let mut line = lines.next().expect("a request line").split(' ');
    let (method, target) = (line.next().expect("a method"), line.next().expect("a target"));
    let fields: Vec<_> = lines.map(|line| line.split_once(": ").expect("a field")).collect();
    let host = fields.iter().find(|(name, _)| *name == "Host").map_or("test", |(_, host)| host);
    let mut uri = http::uri::Parts::default();
    uri.scheme = Some(http::uri::Scheme::HTTP);
    uri.authority = Some(host.parse().expect("a host"));
    uri.path_and_query = Some(target.parse().expect("a target"));
    let uri = http::Uri::from_parts(uri).expect("a URI");
    let mut request = Request::builder().method(method).uri(uri);
    for (name, value) in fields.iter().filter(|(name, _)| *name != "Host") {
        request = request.header(*name, *value);
    }
    let mut client = client.clone().ready().await.expect("the connection stays");
    let request = request.body(()).expect("a request");
    let (response, mut sender) =
        client.send_request(request, body.is_empty()).expect("the connection stays");
    if !body.is_empty() {
        // The server may have answered already.
        let _sent = sender.send_data(Bytes::copy_from_slice(body.as_bytes()), true);
    }
    response
}

/// Receives the whole answer.
pub(crate) async fn receive(response: ResponseFuture) -> Result<Response, h2::Error> {
    let (parts, mut body) = response.await?.into_parts();
    let mut head = format!("HTTP/2.0 {}\r\n", parts.status.as_u16());
    for (name, value) in &parts.headers {
        head.push_str(&format!("{name}: {}\r\n", value.to_str().expect("text")));
    }
    let body = content(&mut body).await?;
    Ok(Response { status: parts.status.as_u16(), head, body })
}

/// Receives the rest of the content.
pub(crate) async fn content(body: &mut RecvStream) -> Result<Vec<u8>, h2::Error> {
    let mut content = Vec::new();
    while let Some(data) = body.data().await {
        let data = data?;
        content.extend_from_slice(&data);
        body.flow_control().release_capacity(data.len())?;
    }
    Ok(content)
}

/// The answer to a request that is written as in HTTP/1.1.
pub(crate) async fn ask(client: &SendRequest<Bytes>, text: &str) -> Response {
    receive(send(client, text).await).await.expect("an answer")
}

/// Waits until the server has ended the connection or said that it will.
pub(crate) async fn ended(client: SendRequest<Bytes>) -> Result<(), h2::Error> {
    let mut client = client;
    loop {
        poll_fn(|cx| client.poll_ready(cx)).await?;
        twinring::sleep(std::time::Duration::from_millis(5)).await;
    }
}

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
pub(crate) const NO_ERROR: u32 = 0;
pub(crate) const ENHANCE_YOUR_CALM: u32 = 11;

/// A frame, and its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    pub(crate) fn new(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Frame {
        Frame { kind, flags, stream, payload: payload.to_vec() }
    }

    /// GET of a path, complete.
    pub(crate) fn get(stream: u32, path: &str) -> Frame {
        Frame::new(HEADERS, END_HEADERS | END_STREAM, stream, &fields(path))
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let length = u32::try_from(self.payload.len()).expect("short").to_be_bytes();
        let head = [&length[1..], &[self.kind, self.flags], &self.stream.to_be_bytes()].concat();
        [head, self.payload.clone()].concat()
    }

    /// The error code of GOAWAY.
    pub(crate) fn goaway(&self) -> Option<u32> {
        let code = self.payload.get(4..8).filter(|_| self.kind == GOAWAY)?;
        Some(u32::from_be_bytes(code.try_into().expect("four bytes")))
    }
}

/// The fields of GET, encoded by hand (RFC 7541): method and scheme from the static table, path and
/// authority as literals.
pub(crate) fn fields(path: &str) -> Vec<u8> {
    let path = [&[0x04, u8::try_from(path.len()).expect("short")], path.as_bytes()].concat();
    [&[0x82, 0x86][..], &path, &[0x01, 4], b"test"].concat()
}

/// The beginning of a connection whose windows limit nothing.
pub(crate) fn unlimited() -> Vec<u8> {
    const WINDOW: [u8; 4] = (1_u32 << 30).to_be_bytes();
    let initial_window = [&[0, 4][..], &WINDOW].concat();
    let settings = Frame::new(SETTINGS, 0, 0, &initial_window).bytes();
    [PREFACE, &settings, &Frame::new(WINDOW_UPDATE, 0, 0, &WINDOW).bytes()].concat()
}

/// A connection that has sent preface and settings.
pub(crate) fn raw(address: SocketAddr) -> TcpStream {
    begin(address, [PREFACE, &Frame::new(SETTINGS, 0, 0, b"").bytes()].concat())
}

/// The next frame; `None` at the end of the connection, in order or by a reset.
pub(crate) fn next_frame(stream: &mut impl Read) -> Option<Frame> {
    let mut head = [0; 9];
    if let Err(error) = stream.read_exact(&mut head) {
        let ends = [std::io::ErrorKind::UnexpectedEof, std::io::ErrorKind::ConnectionReset];
        assert!(ends.contains(&error.kind()), "{error}");
        return None;
    }
    let [high, middle, low, kind, flags, id @ ..] = head;
    let mut payload = vec![0; u32::from_be_bytes([0, high, middle, low]) as usize];
    stream.read_exact(&mut payload).ok()?;
    Some(Frame { kind, flags, stream: u32::from_be_bytes(id), payload })
}

/// All frames until the end of the connection.
pub(crate) fn frames(stream: &mut impl Read) -> Vec<Frame> {
    std::iter::from_fn(|| next_frame(stream)).collect()
}
