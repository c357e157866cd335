//! Content codings: selects one of several encodings of a file.

use std::str::FromStr;

/// A content coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// The file without a coding.
    Identity,
    /// `br`, in a file that ends in `.br`.
    Brotli,
    /// `gzip`, in `.gz`.
    Gzip,
    /// `zstd`, in `.zst`.
    Zstd,
}

/// The name of each in `Content-Encoding`, and the suffix of its file name.
const NAMES: [(&str, &str); 4] =
    [("identity", ""), ("br", ".br"), ("gzip", ".gz"), ("zstd", ".zst")];

impl Coding {
    /// Its name in `Content-Encoding`.
    pub fn name(self) -> &'static str {
        NAMES[self as usize].0
    }

    /// The suffix of its file name.
    pub fn suffix(self) -> &'static str {
        NAMES[self as usize].1
    }
}

impl FromStr for Coding {
    type Err = String;

    /// Parses the suffix of its file, without the dot.
    fn from_str(text: &str) -> Result<Coding, String> {
        let all = [Coding::Brotli, Coding::Gzip, Coding::Zstd];
        let found = all.into_iter().find(|coding| coding.suffix().strip_prefix('.') == Some(text));
        found.ok_or_else(|| format!("`{text}`: expected br, gz or zst"))
    }
}

/// The weights of an `Accept-Encoding`, in thousandths, by coding; `None` for those that it does not name. The last one
/// is for others.
fn weights<'a>(lines: impl Iterator<Item = &'a [u8]>) -> [Option<u16>; 5] {
    let mut weights = [None; 5];
    for element in lines.flat_map(|line| line.split(|byte| *byte == b',')) {
        let mut parts = element.splitn(2, |byte| *byte == b';').map(<[u8]>::trim_ascii);
        let name = parts.next().unwrap_or_default();
        let known = ACCEPTED.iter().position(|known| known.eq_ignore_ascii_case(name));
        let coding = match known {
            Some(5) => Coding::Gzip as usize,
            Some(coding) => coding,
            None => continue,
        };
        weights[coding] = match parts.next() {
            None => Some(1000),
            Some(parameter) => weight_of(parameter).or(weights[coding]),
        };
    }
    weights
}

const OTHERS: usize = 4;

/// The names of the codings, in their order, of all others, and an old name of gzip.
const ACCEPTED: [&[u8]; 6] = [b"identity", b"br", b"gzip", b"zstd", b"*", b"x-gzip"];

fn weight_of(parameter: &[u8]) -> Option<u16> {
    let text = parameter.strip_prefix(b"q=").or_else(|| parameter.strip_prefix(b"Q="))?;
    let is_short = text.len() <= 5 && text.iter().all(|byte| b"0123456789.".contains(byte));
    let weight: f32 = std::str::from_utf8(text).ok().filter(|_| is_short)?.parse().ok()?;
    (weight <= 1.0).then_some((weight * 1000.0).round() as u16)
}

/// The index of the coding to send, among the available ones. These are in the server's order of
/// preference, which decides between equal weights; the identity is among them. A client that
/// accepts none of them gets the identity, which is more useful to it than a 406.
pub fn choose<'a>(
    accepted: impl Iterator<Item = &'a [u8]>,
    available: impl Iterator<Item = Coding>,
) -> usize {
    let weights = weights(accepted);
    let mut best = (0, 0);
    let mut identity = 0;
    for (index, coding) in available.enumerate() {
        // Unless the client excludes the identity, it is acceptable, after all codings that it named.
        let weight = weights[coding as usize].or(weights[OTHERS]).unwrap_or(0);
        if coding == Coding::Identity {
            identity = index;
        }
        if weight > best.1 {
            best = (index, weight);
        }
    }
    if best.1 == 0 { identity } else { best.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_weighs_and_we_break_ties() {
        let available = [Coding::Brotli, Coding::Zstd, Coding::Gzip, Coding::Identity];
        for (accepted, expected) in [
            ("gzip", Coding::Gzip),
            ("gzip, deflate, br, zstd", Coding::Brotli),
            ("x-gzip", Coding::Gzip),
            ("GZIP;q=0.9, br;q=0.1", Coding::Gzip),
            ("gzip; q=1.000, br;q=0.999", Coding::Gzip),
            ("*", Coding::Brotli),
            ("*;q=0.5, gzip", Coding::Gzip),
            ("br;q=0, *", Coding::Zstd),
            ("identity;q=0.5, gzip;q=0.5", Coding::Gzip),
            ("*;q=0, zstd", Coding::Zstd),
        ] {
            let chosen = choose(std::iter::once(accepted.as_bytes()), available.into_iter());
            assert_eq!(available[chosen], expected, "{accepted}");
        }
        let unencoded = "gzip;q=0|identity|identity;q=0.5, gzip;q=0.4|identity;q=0|*;q=0|gzip;q=2|gzip;q=0.1234|\
            gzip;level=9|deflate|,, ;q=1,|";
        for accepted in unencoded.split('|') {
            assert_eq!(choose([accepted.as_bytes()].into_iter(), available.into_iter()), 3);
        }
        assert_eq!(choose(std::iter::empty(), available.into_iter()), 3);
        let lines = [&b"br;q=0.1"[..], b"gzip"];
        assert_eq!(choose(lines.into_iter(), available.into_iter()), 2);
    }
}
