//! Twinring keeps all rules, on both engines; and the rules find what is broken.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use testing::{Test, engine_tests};
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

    fn run<T>(&self, main: impl Future<Output = T>) -> T {
        let runtime = Runtime::builder().engine(self.engine).stop_on_panic(true).build();
        runtime.expect("tried before").block_on(main).expect("the engine works")
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

/// One after the other, because descriptors and freed buffers are those of the process.
static ALONE: Mutex<()> = Mutex::new(());

const TESTS: &[Test] = engine_tests![keeps_the_rules_and_careless_use_does_not];

fn main() -> std::process::ExitCode {
    testing::run(&[TESTS])
}

fn keeps_the_rules_and_careless_use_does_not(engine: &str) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let engine = if engine == "epoll" { EngineChoice::Epoll } else { EngineChoice::IoUring };
    let findings = check(&Twinring { engine, careless: false });
    assert_eq!(broken(&findings), [], "{engine:?}: {findings:?}");
    let findings = check(&Twinring { engine, careless: true });
    let expected = [Rule::ReceivedBytes, Rule::AcceptedConnections, Rule::SentBytes];
    assert_eq!(broken(&findings), expected, "{engine:?}, careless: {findings:?}");
}
