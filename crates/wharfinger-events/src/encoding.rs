//! Bodies that were compressed on their way, inflated no further than is allowed.

use std::io::Read;

use flate2::bufread::MultiGzDecoder;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Identity,
    Gzip,
    Zstd,
}

impl Encoding {
    /// From a `Content-Encoding`; none if it is another.
    pub fn named(word: &str) -> Option<Encoding> {
        let is = |name: &str| word.trim().eq_ignore_ascii_case(name);
        match () {
            () if is("") || is("identity") => Some(Encoding::Identity),
            () if is("gzip") || is("x-gzip") => Some(Encoding::Gzip),
            () if is("zstd") => Some(Encoding::Zstd),
            () => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotInflated {
    #[error("cannot be inflated: {0}")]
    Damaged(String),
    #[error("is too large when inflated")]
    TooLarge,
    /// There was no room for it at this moment.
    #[error("there is no room for it now")]
    NoRoom,
}

/// As HTTP's zstd has it (RFC 9659): whoever sends cannot make us hold more.
const WINDOW_LOG_MAX: u32 = 23;
const STEP_BYTES: usize = 64 << 10;

/// The bytes that were compressed. `room` is asked before each further step, with how many bytes it takes.
pub fn inflate(
    encoding: Encoding,
    body: &[u8],
    bytes_max: usize,
    room: impl FnMut(usize) -> bool,
) -> Result<Vec<u8>, NotInflated> {
    let damaged = |error: std::io::Error| NotInflated::Damaged(error.to_string());
    match encoding {
        Encoding::Identity => read_all(body, bytes_max, room),
        Encoding::Gzip => read_all(MultiGzDecoder::new(body), bytes_max, room),
        Encoding::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(body).map_err(damaged)?;
            decoder.window_log_max(WINDOW_LOG_MAX).map_err(damaged)?;
            read_all(decoder, bytes_max, room)
        }
    }
}

fn read_all(
    mut from: impl Read,
    bytes_max: usize,
    mut room: impl FnMut(usize) -> bool,
) -> Result<Vec<u8>, NotInflated> {
    let mut bytes: Vec<u8> = Vec::new();
    let mut filled = 0;
    loop {
        if filled == bytes.len() {
            // Grows as a vector does, and asks for what that takes.
            let more = filled.clamp(STEP_BYTES, 16 << 20);
            if !room(more) {
                return Err(NotInflated::NoRoom);
            }
            bytes.resize(filled + more, 0);
        }
        match from.read(&mut bytes[filled..]) {
            Ok(0) => {
                bytes.truncate(filled);
                return Ok(bytes);
            }
            Ok(length) => filled += length,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(NotInflated::Damaged(error.to_string())),
        }
        if filled > bytes_max {
            return Err(NotInflated::TooLarge);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).and_then(|()| encoder.finish()).expect("gzip")
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        zstd::stream::encode_all(bytes, 3).expect("zstd")
    }

    #[test]
    fn what_was_packed_comes_out_and_no_more_than_is_allowed() {
        let text = b"0123456789".repeat(30_000);
        for (encoding, packed) in
            [(Encoding::Identity, text.clone()), (Encoding::Gzip, gzip(&text)), (Encoding::Zstd, zstd(&text))]
        {
            assert_eq!(inflate(encoding, &packed, text.len(), |_| true).as_deref(), Ok(text.as_slice()));
            assert_eq!(inflate(encoding, &packed, text.len() - 1, |_| true), Err(NotInflated::TooLarge));
            let mut left = 100_000_usize;
            let little = |bytes: usize| {
                left = left.saturating_sub(bytes);
                left > 0
            };
            assert_eq!(inflate(encoding, &packed, usize::MAX, little), Err(NotInflated::NoRoom));
        }
    }

    #[test]
    fn members_follow_each_other_and_what_is_cut_or_changed_is_damaged() {
        let two = [gzip(b"{}\n"), gzip(b"[]\n")].concat();
        assert_eq!(inflate(Encoding::Gzip, &two, 100, |_| true).as_deref(), Ok(b"{}\n[]\n".as_slice()));
        let text: Vec<u8> = (0..20_000_u32).flat_map(|number| number.to_string().into_bytes()).collect();
        for (encoding, packed) in [(Encoding::Gzip, gzip(&text)), (Encoding::Zstd, zstd(&text))] {
            let cut = inflate(encoding, &packed[..packed.len() / 2], usize::MAX, |_| true);
            assert!(matches!(cut, Err(NotInflated::Damaged(_))), "{encoding:?}: {cut:?}");
            let other = inflate(encoding, b"{\"a\":1}", usize::MAX, |_| true);
            assert!(matches!(other, Err(NotInflated::Damaged(_))), "{encoding:?}: {other:?}");
        }
        let behind = [gzip(b"{}"), b"rest".to_vec()].concat();
        assert!(matches!(inflate(Encoding::Gzip, &behind, 100, |_| true), Err(NotInflated::Damaged(_))));
    }
}
