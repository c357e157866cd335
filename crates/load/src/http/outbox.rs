//! The bytes of requests, ready to be sent.

use super::settings::Settings;
use super::target::Target;
use std::rc::Rc;
use twinring::SendBuf;

/// Bytes of several requests that are sent at once.
const BATCH_BYTES_MAX: usize = 64 * 1024;

/// The requests of a thread: one for each URL, built once. Empty for HTTP/2, whose requests are not bytes before they
/// are sent.
#[derive(Debug)]
pub(super) struct Outbox(Vec<Rc<[u8]>>);

impl Outbox {
    pub(super) fn new(settings: &Settings) -> Outbox {
        let bytes = |target: &Target| target.bytes(settings.keepalive).into();
        Outbox(settings.targets.iter().filter(|_| !settings.http2).map(bytes).collect())
    }

    pub(super) fn request_bytes(&self, target: u32) -> usize {
        self.0.get(target as usize).map_or(0, |request| request.len())
    }

    /// The bytes of the first of these requests, and their number: at least one, if there is one.
    pub(super) fn batch(&self, targets: impl Iterator<Item = u32>) -> (SendBuf, usize) {
        let mut requests = targets.filter_map(|target| self.0.get(target as usize)).peekable();
        let Some(first) = requests.next() else { return (Vec::new().into(), 0) };
        if requests.peek().is_none() {
            return (Rc::clone(first).into(), 1);
        }
        let (mut bytes, mut count) = (first.to_vec(), 1);
        while let Some(next) = requests.next_if(|next| bytes.len() + next.len() <= BATCH_BYTES_MAX)
        {
            bytes.extend_from_slice(next);
            count += 1;
        }
        (bytes.into(), count)
    }
}
