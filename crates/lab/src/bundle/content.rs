//! The content of a file of a bundle, which may lie there compressed by `zstd`.

use std::fs::File;
use std::io::{self, BufReader, Read, Take};
use std::path::Path;

use ruzstd::decoding::StreamingDecoder;

/// What `zstd` appends to the name of a file that it has compressed.
pub(crate) const COMPRESSED: &str = ".zst";

/// The most memory for what later bytes of a compressed file refer back to. `zstd --ultra -22` takes
/// all of it, lower levels 8 MB at most.
const WINDOW_BYTES_MAX: u64 = 128 << 20;

/// Reads a file as it was written, whether it lies there plain or compressed.
///
/// The size of a compressed file does not bound its content, so the reader does.
pub(crate) enum Content {
    Plain(File),
    Compressed(Box<StreamingDecoder<BufReader<Take<File>>, ruzstd::decoding::FrameDecoder>>),
}

impl Content {
    /// Opens the file of this name, or else the one that `zstd` has made of it, of which at most
    /// `bytes_max` bytes are read.
    pub(crate) fn open(directory: &Path, name: &str, bytes_max: u64) -> io::Result<Content> {
        let compressed = format!("{name}{COMPRESSED}");
        let path = directory.join(&compressed);
        if path.symlink_metadata().is_err() {
            return twinring_input::open(&directory.join(name)).map(Content::Plain);
        }
        let of_it =
            |error: io::Error| io::Error::new(error.kind(), format!("{compressed}: {error}"));
        if directory.join(name).symlink_metadata().is_ok() {
            let why = format!("is there twice, also as {compressed}; remove one of the two");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let file = twinring_input::open(&path).map_err(of_it)?;
        let source = BufReader::new(file.take(bytes_max));
        let decoder = StreamingDecoder::new_with_max_window_size(source, WINDOW_BYTES_MAX);
        let decoder = decoder.map_err(|error| of_it(invalid(&error.to_string())))?;
        Ok(Content::Compressed(Box::new(decoder)))
    }
}

impl Read for Content {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let decoder = match self {
            Content::Plain(file) => return file.read(buffer),
            Content::Compressed(decoder) => decoder,
        };
        let read = decoder.read(buffer)?;
        if read > 0 || buffer.is_empty() {
            return Ok(read);
        }
        let (stored, computed) =
            (decoder.decoder.get_checksum_from_data(), decoder.decoder.get_calculated_checksum());
        if stored.is_some() && stored != computed {
            return Err(invalid("its checksum does not match what was decompressed"));
        }
        if decoder.get_mut().read(&mut [0])? > 0 {
            return Err(invalid(
                "something follows the compressed content; compress it with `zstd`",
            ));
        }
        Ok(0)
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("compressed: {why}"))
}
