//! An echo on several threads: `cargo run -p twinring --example workers -- 127.0.0.1:7000 2`.
//!
//! Each worker has its own socket on the same port, and the kernel distributes the connections. A
//! connection stays with its worker. The end of standard input (Ctrl-D) shuts down.
use std::io::Read;
use std::sync::Mutex;
use twinring::{
    Either, Runtime, TcpListener, TcpStream, net::ListenOptions, race, shutdown_requested,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:7000".into()).parse()?;
    let workers = std::env::args().nth(2).unwrap_or("2".into()).parse()?;
    let runtime = Runtime::builder().workers(workers).build()?;
    let handle = runtime.handle();
    std::thread::spawn(move || {
        while std::io::stdin().read(&mut [0; 64]).is_ok_and(|bytes| bytes > 0) {}
        handle.shutdown();
    });
    // Bound here, because listeners can be moved to their workers before they are used.
    let bound = Mutex::new(ListenOptions::default().bind(address, workers)?);
    let served = runtime.run(|worker| {
        let bound = bound.lock().expect("no thread panics here").pop();
        async move {
            let listener = TcpListener::from_bound(bound.ok_or(std::io::ErrorKind::NotFound)?)?;
            let mut connections = 0;
            while let Either::Left(stream) = race(listener.accept(), shutdown_requested()).await {
                twinring::spawn(echo(stream?));
                connections += 1;
            }
            Ok::<_, std::io::Error>((worker, connections))
        }
    })?;
    for (worker, connections) in served.into_iter().flatten().flatten() {
        println!("worker {worker}: {connections} connections");
    }
    Ok(())
}

async fn echo(stream: TcpStream) {
    while let Ok(chunk) = stream.recv().await
        && !chunk.is_empty()
        && stream.send(chunk).await.is_ok()
    {}
}
