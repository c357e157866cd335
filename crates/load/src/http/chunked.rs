//! Chunked content, with a bound on extensions and trailers.

use super::head::Malformed;
use twinring_input::chunked::{Chunked, Event, Invalid};

/// Longest chunk extension; longest trailer section, with the extension of the last chunk.
const OVERHEAD_BYTES_MAX: u32 = 16 * 1024;

/// Where in chunked content the last bytes ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Chunks {
    chunked: Chunked,
    overhead_bytes: u32,
}

impl Chunks {
    /// Parses bytes and passes on the content. Returns how many bytes it consumed, and whether the
    /// content has ended.
    pub(super) fn take(
        &mut self,
        bytes: &[u8],
        mut content: impl FnMut(&[u8]),
    ) -> Result<(usize, bool), Malformed> {
        let Chunks { chunked, overhead_bytes } = self;
        let taken = chunked.take(bytes, |event| {
            match event {
                Event::Chunk(_) => *overhead_bytes = 0,
                Event::Content(part) => content(part),
                Event::Overhead => *overhead_bytes += 1,
            }
            match *overhead_bytes <= OVERHEAD_BYTES_MAX {
                true => Ok(()),
                false => Err(Malformed(format!("{OVERHEAD_BYTES_MAX} bytes of chunk framing"))),
            }
        })?;
        Ok((taken, chunked.is_done()))
    }
}

impl From<Invalid> for Malformed {
    fn from(Invalid { byte, part }: Invalid) -> Malformed {
        Malformed(format!("byte {byte:#04x} in {part}"))
    }
}
