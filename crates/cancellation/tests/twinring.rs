//! Twinring keeps all rules, on both engines; and the rules find what is broken.

#[path = "../../runtime/tests/contract/may_skip.rs"]
mod may_skip;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use twinring::{EngineChoice, Runtime, TcpListener, TcpStream};
use twinring_cancellation::{Finding, Quarantine, RECV_BUFFER_BYTES, Rule, Subject, check};

#[global_allocator]
static ALLOCATOR: Quarantine = Quarantine::new();

struct Twinring {
    engine: EngineChoice,
    /// Receives and accepts hold what they have got across an await, as careless wrappers do.
    careless: bool,
}

impl Subject for Twinring {
    type Stream = TcpStream;
    type Listener = TcpListener;

    fn run(&self, main: impl Future<Output = ()>) {
        let runtime = Runtime::builder().engine(self.engine).stop_on_panic(true).build();
        runtime.expect("tried before").block_on(main).expect("the engine works");
    }

    fn listener(&self, listener: std::net::TcpListener) -> io::Result<TcpListener> {
        TcpListener::from_std(listener)
    }

    fn stream(&self, stream: std::net::TcpStream) -> io::Result<TcpStream> {
        TcpStream::from_std(stream)
    }

    async fn accept(&self, listener: &TcpListener) -> io::Result<TcpStream> {
        let stream = listener.accept().await?;
        self.dawdle().await;
        Ok(stream)
    }

    async fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        TcpStream::connect(address).await
    }

    async fn recv(&self, stream: &mut TcpStream) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0; RECV_BUFFER_BYTES];
        let bytes = stream.recv_into(&mut buffer).await?;
        self.dawdle().await;
        Ok(buffer[..bytes].to_vec())
    }

    async fn send(&self, stream: &mut TcpStream, bytes: Vec<u8>) -> io::Result<()> {
        if !self.careless {
            return stream.send(bytes).await;
        }
        for chunk in bytes.chunks(10_000) {
            stream.send(chunk.to_vec()).await?;
        }
        Ok(())
    }

    async fn sleep(&self, duration: Duration) {
        twinring::sleep(duration).await;
    }
}

impl Twinring {
    async fn dawdle(&self) {
        if self.careless {
            twinring::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn broken(findings: &[Finding]) -> Vec<Rule> {
    findings.iter().filter(|finding| !finding.holds).map(|finding| finding.rule).collect()
}

/// One test, because descriptors and freed buffers are those of the process.
#[test]
fn both_engines_keep_the_rules_and_careless_use_does_not() {
    for engine in [EngineChoice::Epoll, EngineChoice::IoUring] {
        if let Err(error) = Runtime::builder().engine(engine).build() {
            may_skip::skip("io_uring", error);
            continue;
        }
        let findings = check(&Twinring { engine, careless: false });
        findings.iter().for_each(|finding| println!("{engine:?} {finding}"));
        assert_eq!(broken(&findings), [], "{engine:?}");
        let findings = check(&Twinring { engine, careless: true });
        findings.iter().for_each(|finding| println!("{engine:?}, careless: {finding}"));
        let expected = [Rule::ReceivedBytes, Rule::AcceptedConnections, Rule::SentBytes];
        assert_eq!(broken(&findings), expected, "{engine:?}");
    }
}
