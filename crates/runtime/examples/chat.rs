//! A chat room by lines: `cargo run -p twinring --example chat -- 127.0.0.1:7001 [auto|io_uring|epoll]`, then
//! `nc 127.0.0.1 7001` in several terminals. Type `quit` into the server to end it.
//!
//! It shows the parts of a service: a task for each connection, sends to connections of other
//! tasks, deadlines for idle and slow peers, and a shutdown that lets all connections finish.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use twinring::{
    Either, Handle, Runtime, TcpListener, TcpStream, race, shutdown_requested, spawn, timeout,
};

/// A peer that is silent for this long is disconnected.
const IDLE: Duration = Duration::from_secs(600);
/// A peer that does not read for this long, with all buffers full, is disconnected.
const SLOW: Duration = Duration::from_secs(1);
/// How long the shutdown waits for the last words to be read.
const FAREWELL: Duration = Duration::from_secs(5);
/// Bytes of the longest line; it bounds the memory of a peer's input.
const LINE_BYTES_MAX: usize = 1024;

/// All connected peers. All tasks run on one thread, so no lock is needed.
type Room = Rc<RefCell<BTreeMap<SocketAddr, Rc<TcpStream>>>>;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or("127.0.0.1:7001".into()).parse()?;
    let engine = arguments.next().unwrap_or("auto".into()).parse()?;
    let runtime = Runtime::builder().engine(engine).build()?;
    let handle = runtime.handle();
    std::thread::spawn(move || quit_when_told(&handle));
    println!("chat on {address} ({})", runtime.features().engine());
    runtime.block_on(serve(address))??;
    Ok(())
}

fn quit_when_told(handle: &Handle) {
    for line in io::stdin().lines().map_while(Result::ok) {
        if line.trim() == "quit" {
            return handle.shutdown();
        }
    }
}

async fn serve(address: SocketAddr) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    let room = Room::default();
    let mut visits = Vec::new();
    while let Either::Left(stream) = race(listener.accept(), shutdown_requested()).await {
        visits.retain(|visit: &twinring::JoinHandle<()>| !visit.is_finished());
        visits.push(spawn(visit(Rc::clone(&room), Rc::new(stream?))));
    }
    let farewell = async {
        for visit in visits {
            // An error means that the task was aborted, which does not happen here.
            let _ended = visit.await;
        }
    };
    // Peers that still do not read are cut off when the runtime ends.
    timeout(FAREWELL, farewell).await.or(Ok(()))
}

/// One connection, from its first to its last line.
async fn visit(room: Room, stream: Rc<TcpStream>) {
    let Ok(name) = stream.peer_addr() else { return };
    room.borrow_mut().insert(name, Rc::clone(&stream));
    tell_others(&room, name, "has come").await;
    let reason = match serve_lines(&room, name, &stream).await {
        Ok(reason) => reason.to_owned(),
        Err(error) => error.to_string(),
    };
    room.borrow_mut().remove(&name);
    tell_others(&room, name, &format!("has left: {reason}")).await;
    let goodbye = format!("Goodbye: {reason}\n");
    // The connection itself may have broken.
    let _best_effort = timeout(SLOW, stream.send(goodbye)).await;
}

/// Passes lines on until there are no more; returns why.
async fn serve_lines(
    room: &Room,
    name: SocketAddr,
    stream: &TcpStream,
) -> io::Result<&'static str> {
    let mut unfinished = Vec::new();
    loop {
        let received = race(timeout(IDLE, stream.recv()), shutdown_requested());
        let chunk = match received.await {
            Either::Left(Ok(chunk)) => chunk?,
            Either::Left(Err(_elapsed)) => return Ok("idle for too long"),
            Either::Right(()) => return Ok("the server closes"),
        };
        if chunk.is_empty() {
            return Ok("end of stream");
        }
        unfinished.extend_from_slice(&chunk);
        while let Some(end) = unfinished.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = unfinished.drain(..=end).collect();
            tell_others(room, name, &format!("says: {}", String::from_utf8_lossy(&line).trim()))
                .await;
        }
        if unfinished.len() > LINE_BYTES_MAX {
            return Ok("line too long");
        }
    }
}

async fn tell_others(room: &Room, name: SocketAddr, what: &str) {
    let line: Rc<[u8]> = format!("{name} {what}\n").into_bytes().into();
    // Copied first: the room changes while this waits.
    let others: Vec<_> = room.borrow().iter().map(|(who, it)| (*who, Rc::clone(it))).collect();
    for (who, stream) in others.into_iter().filter(|(who, _)| *who != name) {
        if !matches!(timeout(SLOW, stream.send(Rc::clone(&line))).await, Ok(Ok(()))) {
            // Ends the receive of that connection, which then says goodbye.
            room.borrow_mut().remove(&who);
            stream.cancel();
        }
    }
}
