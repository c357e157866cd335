//! Sending answers.
//!
//! What is in memory goes out in one send, but for listings, which may be large: these go out in pieces,
//! and a connection has one of them at a time. A file follows its head by the strategy that the
//! operator chose, in segments, behind a head that was sent with MSG_MORE so that both share their
//! packets. The head is made after a look at the file, which requests that arrived together share.
//! After each segment the file is looked at again: if it was written to, the connection is reset
//! instead of ended in order, because what the peer has may be a mix of two versions. So that a
//! peer never has all of a mix, the last bytes of what takes several segments are read first, and
//! sent after the look.
//!
//! A file that grew is served to the length that was announced, as a log has to be. It counts as grown if
//! it is longer and its last KiB before that length is the same as when it was opened. A file that
//! is written anew in place, but longer, differs there. What nobody sees is a program that changes
//! bytes elsewhere in the file, and makes it longer before the next look.
//!
//! What sendfile(2) and splice(2) queue is the file's own pages. Who writes into a file in place, or cuts it
//! anywhere but at its beginning (the kernel then zeroes the rest of the folio, in which many pages
//! may be), can therefore still change bytes that are on their way, and no look at the file tells.
//! Files that are replaced by rename(2), deleted, or emptied and written anew are safe.
//!
//! A file that is read, because that was chosen or because the connection is encrypted, is read in
//! pieces, and looked at between the reading and the sending of each. So what is on its way does not
//! change any more, and an answer that was begun before a write sends nothing of what is written.
//! An answer that is begun while somebody writes in place has what the file holds at that moment,
//! as for every reader. This goes as far as the file system notes writes: Linux tells two from each
//! other since 6.13 (multigrain time stamps); before that, one within a tick (1 to 10 ms) of the
//! last look may go unnoticed.

use super::connection::Connection;
use super::index::Listing;
use super::open_file::OpenFile;
use super::reply::{FileParts, Reply, Rest};
use std::io;
use std::ops::Range;
use std::rc::Rc;
use twinring::SendBuf;
use twinring::fs::SendStrategy;

/// Bytes that are sent between two looks at the file, and at the progress of the peer.
const SEGMENT_BYTES: u64 = 256 * 1024;

/// Bytes that are read, or encrypted, at once. With the queue of the stream, that is what a connection
/// holds of a file that its peer does not take.
const PIECE_BYTES: u64 = 64 * 1024;

/// Bytes that are held back until the last look at the file.
const TAIL_BYTES: u64 = 1024;

/// Hands an answer over for sending.
///
/// # Errors
/// When the connection broke or has to end; or when the file was changed, and the connection will
/// be reset.
pub(super) async fn send_reply(connection: &Connection, reply: Reply) -> io::Result<()> {
    let Some(rest) = reply.rest else { return connection.send(reply.message).await };
    connection.set_incomplete(true);
    connection.send_more(reply.message).await?;
    match rest {
        Rest::File(rest) => send_parts(connection, *rest).await?,
        Rest::Listing(listing) => send_listing(connection, &listing).await?,
    }
    connection.set_incomplete(false);
    Ok(())
}

/// Returns when the kernel has all of it: until then its memory counts.
async fn send_listing(connection: &Connection, listing: &Listing) -> io::Result<()> {
    let whole = 0..listing.content.len();
    for from in whole.step_by(PIECE_BYTES as usize) {
        let piece = from..from + PIECE_BYTES as usize;
        connection.send(SendBuf::shared(Rc::clone(&listing.content), piece)).await?;
    }
    connection.flush().await
}

async fn send_parts(connection: &Connection, rest: FileParts) -> io::Result<()> {
    for (head, range) in &rest.parts {
        if !head.is_empty() {
            connection.send_more(head.clone()).await?;
        }
        send_part(connection, &rest, range.clone()).await?;
    }
    if rest.end.is_empty() { Ok(()) } else { connection.send(rest.end).await }
}

async fn send_part(connection: &Connection, rest: &FileParts, range: Range<u64>) -> io::Result<()> {
    if connection.file_strategy() == SendStrategy::Read {
        return send_checked(connection, rest, range).await;
    }
    let OpenFile { file, .. } = &*rest.file;
    let tail = if range.end - range.start > SEGMENT_BYTES { TAIL_BYTES } else { 0 };
    let (mut from, to) = (range.start, range.end - tail);
    while from < to {
        let length = SEGMENT_BYTES.min(to - from);
        let sent = connection.send_file(file, from, length).await?;
        if sent < length || !rest.file.is_sound().await? {
            return Err(connection.break_off());
        }
        from += sent;
    }
    if tail == 0 {
        return Ok(());
    }
    let bytes = file.read_at(to, tail as usize).await?;
    if bytes.len() as u64 != tail || !rest.file.is_sound().await? {
        return Err(connection.break_off());
    }
    connection.send(bytes).await
}

/// Sends nothing that was not looked at after it was read.
async fn send_checked(
    connection: &Connection,
    rest: &FileParts,
    range: Range<u64>,
) -> io::Result<()> {
    let OpenFile { file, .. } = &*rest.file;
    let mut from = range.start;
    while from < range.end {
        let length = PIECE_BYTES.min(range.end - from);
        let bytes = file.read_at(from, length as usize).await?;
        if bytes.len() as u64 != length || !rest.file.is_sound().await? {
            return Err(connection.break_off());
        }
        connection.send_read(bytes).await?;
        from += length;
    }
    Ok(())
}
