//! Sending answers that are not sent at once (`http1`): files, listings, and what had to wait.
//!
//! An answer in memory is one send; a listing, which may be large, is sent in parts. A file follows its head in segments;
//! the head is sent with MSG_MORE, so that both share their packets. The file is checked before its head is built, and
//! after each segment: if it was written to, the connection is reset, because the peer's data may mix two versions. So
//! that a peer never has a complete mix, the last bytes of several segments are read first, and sent after the last check.
//!
//! A file that grew is served up to the announced length, as logs require: it is longer, and the last KiB before that
//! length is the same. One case goes unnoticed: a program that changes bytes before that KiB, and makes the file longer
//! before the next check.
//!
//! sendfile(2) queues the file's own pages. A program that writes into a file in place, or truncates it anywhere but at
//! its beginning (the kernel then zeroes the rest of the folio), can therefore change bytes in transit, and no check
//! shows that. Files that are replaced by rename(2), deleted, or emptied and rewritten are safe.
//!
//! A file that is read, by configuration or because the connection is encrypted, is checked between reading and sending
//! each part, so no byte that was written later is sent. This is as precise as the file system records writes: Linux
//! distinguishes any two since 6.13 (multigrain time stamps), before that those in different ticks (1 to 10 ms).

use super::connection::Connection;
use super::exchange::Exchange;
use super::index::Listing;
use super::options::SendStrategy;
use super::resource::OpenFile;
use super::response::{Body, Persistence, Response, render};
use super::worker::Worker;
use std::io;
use std::ops::Range;
use std::rc::Rc;
use twinring::SendBuf;

/// Bytes sent between two checks of the file, and of the peer's progress.
const SEGMENT_BYTES: u64 = 256 * 1024;

/// Bytes that are read, or encrypted, at once. Together with the queue of the stream, a connection
/// holds this much of a file that its peer does not read.
const CHUNK_BYTES: u64 = 64 * 1024;

/// Bytes that are held back until the last check of the file.
const TAIL_BYTES: u64 = 1024;

pub(super) async fn send_response(
    connection: &Connection,
    worker: &Worker,
    exchange: &mut Exchange,
    response: Response,
    persistence: Persistence,
) -> io::Result<()> {
    let (message, head_bytes) = render(&response, &worker.clock, persistence);
    exchange.answered(worker, &response, head_bytes, persistence.stays());
    let before = connection.answer_bytes.get();
    let outcome = send_message(connection, message, response.body).await;
    exchange.sent(connection.answer_bytes.get() - before);
    outcome
}

async fn send_message(connection: &Connection, message: SendBuf, body: Body) -> io::Result<()> {
    if !matches!(body, Body::File(..) | Body::Listing(_)) {
        return connection.send(message).await;
    }
    connection.incomplete.set(true);
    connection.send_corked(message).await?;
    match body {
        Body::File(file, range) => send_file(connection, &file, range).await?,
        Body::Listing(listing) => send_listing(connection, &listing).await?,
        Body::Empty | Body::Bytes(_) | Body::Stored => {}
    }
    connection.incomplete.set(false);
    Ok(())
}

/// Returns when the kernel has all of it: until then its memory counts.
async fn send_listing(connection: &Connection, listing: &Listing) -> io::Result<()> {
    let whole = 0..listing.content.len();
    for from in whole.step_by(CHUNK_BYTES as usize) {
        let chunk = from..from + CHUNK_BYTES as usize;
        connection.send(SendBuf::shared(Rc::clone(&listing.content), chunk)).await?;
    }
    connection.flush().await
}

async fn send_file(connection: &Connection, file: &OpenFile, range: Range<u64>) -> io::Result<()> {
    if connection.file_strategy == SendStrategy::Read {
        return send_checked(connection, file, range).await;
    }
    let tail = if range.end - range.start > SEGMENT_BYTES { TAIL_BYTES } else { 0 };
    let (mut from, to) = (range.start, range.end - tail);
    while from < to {
        let length = SEGMENT_BYTES.min(to - from);
        let sent = connection.send_file(&file.file, from, length).await?;
        if sent < length || !file.is_sound().await? {
            return Err(connection.break_off());
        }
        from += sent;
    }
    if tail == 0 {
        return Ok(());
    }
    let bytes = file.read_checked(to, tail as usize).await;
    connection.send(bytes.ok_or_else(|| connection.break_off())?).await
}

/// Sends no data that was not checked after reading it.
async fn send_checked(
    connection: &Connection,
    file: &OpenFile,
    range: Range<u64>,
) -> io::Result<()> {
    let mut from = range.start;
    while from < range.end {
        let length = CHUNK_BYTES.min(range.end - from);
        let bytes = file.read_checked(from, length as usize).await;
        connection.send(bytes.ok_or_else(|| connection.break_off())?).await?;
        connection.counters.sent_file_bytes.add(length);
        from += length;
    }
    Ok(())
}
