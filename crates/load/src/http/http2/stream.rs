//! A stream: one request and its answer; and which streams can make progress.

use crate::http::answer::Answer;
use crate::recorder::Begun;
use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{RecvStream, SendStream};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker, ready};

/// Bytes of a request body that a stream passes to h2 at once.
pub(super) const UPLOAD_BYTES: usize = 64 * 1024;

enum Awaited {
    Head(ResponseFuture),
    Content(RecvStream),
}

pub(super) struct Exchange {
    pub(super) request: Begun,
    pub(super) answer: Answer,
    pub(super) crc: crc32fast::Hasher,
    awaited: Awaited,
    upload: Option<Upload>,
}

impl Exchange {
    pub(super) fn new(
        request: Begun,
        response: ResponseFuture,
        upload: Option<Upload>,
    ) -> Exchange {
        Exchange {
            request,
            // Its bytes are counted where they are received, as frames.
            answer: Answer { keep_alive: true, ..Answer::default() },
            crc: crc32fast::Hasher::new(),
            awaited: Awaited::Head(response),
            upload,
        }
    }

    /// Sends what the server takes of the request and reads the available part of the answer.
    /// Ready at the end of the answer, even if the server did not take the whole request.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        now_ns: u64,
        verify: bool,
    ) -> Poll<Result<(), h2::Error>> {
        if self.upload.as_mut().is_some_and(|upload| upload.poll(cx).is_ready()) {
            self.upload = None;
        }
        if let Awaited::Head(response) = &mut self.awaited {
            let (head, content) = ready!(Pin::new(response).poll(cx))?.into_parts();
            self.answer.status = head.status.as_u16();
            self.answer.first_byte_ns = now_ns;
            self.awaited = Awaited::Content(content);
        }
        let Awaited::Content(content) = &mut self.awaited else { return Poll::Pending };
        while !content.is_end_stream() {
            let Some(data) = ready!(content.poll_data(cx)) else { break };
            let data = data?;
            self.answer.content_bytes += data.len() as u64;
            if verify {
                self.crc.update(&data);
            }
            // Fails only for more than was received.
            let _released = content.flow_control().release_capacity(data.len());
        }
        Poll::Ready(Ok(()))
    }
}

pub(super) struct Upload {
    pub(super) send: SendStream<Bytes>,
    pub(super) body: Bytes,
}

impl Upload {
    /// Ready when all of it was passed on, or the server takes no more; the answer tells why.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while !self.body.is_empty() {
            let wanted = self.body.len().min(UPLOAD_BYTES);
            self.send.reserve_capacity(wanted);
            let granted = match self.send.capacity() {
                0 => match ready!(self.send.poll_capacity(cx)) {
                    Some(Ok(granted)) => granted,
                    Some(Err(_)) | None => return Poll::Ready(()),
                },
                granted => granted,
            };
            let chunk = self.body.split_to(granted.min(wanted));
            if self.send.send_data(chunk, self.body.is_empty()).is_err() {
                return Poll::Ready(());
            }
        }
        Poll::Ready(())
    }
}

/// Streams that can make progress, by number. A stream is woken once for each time that it waits, so
/// there are at most two entries for each: one for its answer, one for its body.
type Woken = Mutex<Vec<usize>>;

/// Which streams of a connection h2 has woken.
///
/// All of that happens while the connection's task polls h2 or drops streams of it, so the task itself
/// needs no waking: it looks here before it waits.
#[derive(Default)]
pub(super) struct Wakes {
    woken: Arc<Woken>,
    /// By number of the stream, made when first needed.
    wakers: Vec<Waker>,
}

struct StreamWaker {
    number: usize,
    woken: Arc<Woken>,
}

impl Wake for StreamWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.lock().unwrap_or_else(PoisonError::into_inner).push(self.number);
    }
}

impl Wakes {
    /// The waker of a stream. Numbers are given out from 0 without gaps.
    pub(super) fn waker(&mut self, number: usize) -> &Waker {
        while self.wakers.len() <= number {
            let waker = StreamWaker { number: self.wakers.len(), woken: Arc::clone(&self.woken) };
            self.wakers.push(Arc::new(waker).into());
        }
        &self.wakers[number]
    }

    /// The list is locked meanwhile: a stream that is polled may wake another.
    pub(super) fn woken(&self) -> MutexGuard<'_, Vec<usize>> {
        self.woken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
