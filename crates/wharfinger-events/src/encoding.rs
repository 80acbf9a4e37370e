//! Decompresses request bodies, up to a size limit.

use std::io::Read;

use flate2::bufread::MultiGzDecoder;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Identity,
    Gzip,
    Zstd,
}

impl Encoding {
    /// Parses a `Content-Encoding`. `None` for an unsupported one.
    pub fn parse(word: &str) -> Option<Encoding> {
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
pub enum InflateError {
    #[error("cannot be decompressed: {0}")]
    Damaged(String),
    #[error("is too large after decompression")]
    TooLarge,
    /// `reserve` refused the memory.
    #[error("needs more memory than is free now; try again later")]
    NoMemory,
}

/// The zstd window limit for HTTP (RFC 9659). It limits the memory that a client can make the decoder use.
const WINDOW_LOG_MAX: u32 = 23;
const BUFFER_STEP_BYTES: usize = 64 << 10;

/// Decompresses `body`. Before each allocation it calls `reserve` with the number of bytes; `false` stops it.
pub fn inflate(
    encoding: Encoding,
    body: &[u8],
    bytes_max: usize,
    reserve: impl FnMut(usize) -> bool,
) -> Result<Vec<u8>, InflateError> {
    let damaged = |error: std::io::Error| InflateError::Damaged(error.to_string());
    match encoding {
        Encoding::Identity => read_all(body, bytes_max, reserve),
        Encoding::Gzip => read_all(MultiGzDecoder::new(body), bytes_max, reserve),
        Encoding::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(body).map_err(damaged)?;
            decoder.window_log_max(WINDOW_LOG_MAX).map_err(damaged)?;
            read_all(decoder, bytes_max, reserve)
        }
    }
}

fn read_all(
    mut from: impl Read,
    bytes_max: usize,
    mut reserve: impl FnMut(usize) -> bool,
) -> Result<Vec<u8>, InflateError> {
    let mut bytes: Vec<u8> = Vec::new();
    let mut filled = 0;
    loop {
        if filled == bytes.len() {
            // Grows like a vector, and reserves the memory first.
            let more = filled.clamp(BUFFER_STEP_BYTES, 16 << 20);
            if !reserve(more) {
                return Err(InflateError::NoMemory);
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
            Err(error) => return Err(InflateError::Damaged(error.to_string())),
        }
        if filled > bytes_max {
            return Err(InflateError::TooLarge);
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
    fn bodies_are_decompressed_up_to_the_limits() {
        let text = b"0123456789".repeat(30_000);
        for (encoding, packed) in
            [(Encoding::Identity, text.clone()), (Encoding::Gzip, gzip(&text)), (Encoding::Zstd, zstd(&text))]
        {
            assert_eq!(inflate(encoding, &packed, text.len(), |_| true).as_deref(), Ok(text.as_slice()));
            assert_eq!(inflate(encoding, &packed, text.len() - 1, |_| true), Err(InflateError::TooLarge));
            let mut left = 100_000_usize;
            let small_budget = |bytes: usize| {
                left = left.saturating_sub(bytes);
                left > 0
            };
            assert_eq!(inflate(encoding, &packed, usize::MAX, small_budget), Err(InflateError::NoMemory));
        }
    }

    #[test]
    fn several_gzip_members_are_read_and_damaged_data_is_rejected() {
        let two = [gzip(b"{}\n"), gzip(b"[]\n")].concat();
        assert_eq!(inflate(Encoding::Gzip, &two, 100, |_| true).as_deref(), Ok(b"{}\n[]\n".as_slice()));
        let text: Vec<u8> = (0..20_000_u32).flat_map(|number| number.to_string().into_bytes()).collect();
        for (encoding, packed) in [(Encoding::Gzip, gzip(&text)), (Encoding::Zstd, zstd(&text))] {
            let cut = inflate(encoding, &packed[..packed.len() / 2], usize::MAX, |_| true);
            assert!(matches!(cut, Err(InflateError::Damaged(_))), "{encoding:?}: {cut:?}");
            let other = inflate(encoding, b"{\"a\":1}", usize::MAX, |_| true);
            assert!(matches!(other, Err(InflateError::Damaged(_))), "{encoding:?}: {other:?}");
        }
        let with_trailing_bytes = [gzip(b"{}"), b"rest".to_vec()].concat();
        assert!(matches!(
            inflate(Encoding::Gzip, &with_trailing_bytes, 100, |_| true),
            Err(InflateError::Damaged(_))
        ));
    }
}
