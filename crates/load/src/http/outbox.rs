//! The bytes of requests, ready to be sent.

use super::settings::Settings;
use super::target::Target;
use std::rc::Rc;
use twinring::SendBuf;

/// Bytes of several requests that are sent at once.
const BATCH_BYTES_MAX: usize = 64 * 1024;

/// The requests of a thread: one for each URL, built once.
#[derive(Debug)]
pub(super) struct Outbox {
    requests: Vec<Rc<[u8]>>,
    /// With a single URL, its request several times, so that many are one slice.
    repeated: Option<Rc<[u8]>>,
}

impl Outbox {
    /// Empty for HTTP/2, whose requests are not bytes before they are sent.
    pub(super) fn new(settings: &Settings) -> Outbox {
        let bytes = |target: &Target| target.bytes(settings.keepalive);
        let targets = settings.targets.iter().filter(|_| !settings.http2);
        let requests: Vec<Vec<u8>> = targets.map(bytes).collect();
        let repeated = match requests.as_slice() {
            [only] => {
                let times = (BATCH_BYTES_MAX / only.len()).clamp(1, settings.pipeline as usize);
                Some(only.repeat(times).into())
            }
            _ => None,
        };
        Outbox { requests: requests.into_iter().map(Rc::from).collect(), repeated }
    }

    /// Length of the request for a URL.
    pub(super) fn request_bytes(&self, target: u32) -> usize {
        self.requests.get(target as usize).map_or(0, |request| request.len())
    }

    /// The bytes of the first of these requests, and their number: at least one, if there is one.
    pub(super) fn batch(
        &self,
        mut targets: impl ExactSizeIterator<Item = u32>,
    ) -> (SendBuf, usize) {
        let wanted = targets.len();
        let request = |target: u32| self.requests.get(target as usize);
        let Some(first) = targets.next().and_then(request) else { return (Vec::new().into(), 0) };
        if let Some(repeated) = &self.repeated {
            let count = wanted.min(repeated.len() / first.len());
            return (SendBuf::shared(Rc::clone(repeated), 0..count * first.len()), count);
        }
        if wanted == 1 {
            return (Rc::clone(first).into(), 1);
        }
        let (mut bytes, mut count) = (first.to_vec(), 1);
        for next in targets.filter_map(request) {
            if bytes.len() + next.len() > BATCH_BYTES_MAX {
                break;
            }
            bytes.extend_from_slice(next);
            count += 1;
        }
        (bytes.into(), count)
    }
}
