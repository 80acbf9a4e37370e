//! Measures chunks in characters or in tokens.

use std::sync::OnceLock;

use tiktoken_rs::CoreBPE;

use super::ChunkUnit;

/// A window of one chunk is held in memory, so the size has a limit.
const SIZE_MAX: usize = 100_000;

/// One character can be as many tokens as it has bytes. A chunk must have room for several tokens.
const TOKENS_MIN: usize = 8;

/// The window has so many bytes for each token. If tokens are longer (usually runs of blanks), the chunk is shorter.
const BYTES_PER_TOKEN_MAX: usize = 16;

/// The usual maximum of bytes for a token. The tokenizer first reads only so much text.
const BYTES_PER_TOKEN: usize = 5;

/// If a cut divides a piece that the tokenizer reads as a whole, the text can have so many additional tokens.
const TOKENS_MARGIN: usize = 16;

const BYTES_PER_CHAR_MAX: usize = 4;

/// The text after the limit that is needed to classify a border.
const BYTES_AFTER: usize = 64;

pub(super) enum Ruler {
    Chars { size: usize },
    Tokens { size: usize, tokenizer: &'static Tokenizer },
}

impl Ruler {
    pub(super) fn new(unit: ChunkUnit, size: usize) -> Result<Self, String> {
        let size_min = match unit {
            ChunkUnit::Chars => 1,
            ChunkUnit::Tokens => TOKENS_MIN,
        };
        if !(size_min..=SIZE_MAX).contains(&size) {
            return Err(format!("the size is {size}; it must be between {size_min} and {SIZE_MAX}"));
        }
        Ok(match unit {
            ChunkUnit::Chars => Self::Chars { size },
            ChunkUnit::Tokens => Self::Tokens { size, tokenizer: Tokenizer::shared() },
        })
    }

    pub(super) fn window_bytes(&self) -> usize {
        match self {
            Self::Chars { size } => size * BYTES_PER_CHAR_MAX + BYTES_AFTER,
            Self::Tokens { size, .. } => size * BYTES_PER_TOKEN_MAX + BYTES_AFTER,
        }
    }

    pub(super) fn reach<'w>(&self, window: &'w str) -> Reach<'w> {
        match self {
            Self::Chars { size } => {
                Reach { window, size: *size, token_ends: None, limit: nth_char(window, *size) }
            }
            Self::Tokens { size, tokenizer } => {
                let token_ends = tokenizer.token_ends(window, *size);
                let limit = token_ends.get(size - 1).copied().unwrap_or(window.len());
                let limit = window.floor_char_boundary(limit);
                Reach { window, size: *size, token_ends: Some(token_ends), limit }
            }
        }
    }

    /// Whether the text fits into a chunk. The text is the beginning of the window.
    pub(super) fn holds(&self, text: &str, reach: &Reach<'_>) -> bool {
        match self {
            Self::Chars { .. } => true,
            Self::Tokens { size, tokenizer } => {
                reach.tokens_before(text.len()) + TOKENS_MARGIN <= *size || tokenizer.count(text) <= *size
            }
        }
    }
}

/// The part of a window that fits into a chunk.
pub(super) struct Reach<'w> {
    window: &'w str,
    size: usize,
    /// The end of each token, if the unit is tokens.
    token_ends: Option<Vec<usize>>,
    limit: usize,
}

impl Reach<'_> {
    /// The maximum length of a chunk in bytes.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// The end of a chunk of a half or a third of the size.
    pub(super) fn part(&self, divisor: usize) -> usize {
        match &self.token_ends {
            None => nth_char(self.window, self.size / divisor),
            Some(ends) => {
                let index = (self.size / divisor).saturating_sub(1);
                self.window.floor_char_boundary(ends.get(index).copied().unwrap_or(self.limit))
            }
        }
    }

    /// The place that is `units` before `at`.
    pub(super) fn back(&self, at: usize, units: usize) -> usize {
        match &self.token_ends {
            None => {
                let mut characters = self.window[..at].char_indices().rev();
                characters.nth(units.saturating_sub(1)).map_or(0, |(index, _)| index)
            }
            Some(ends) => {
                let first = self.tokens_before(at).saturating_sub(units);
                let start = if first == 0 { 0 } else { ends[first - 1] };
                self.window.ceil_char_boundary(start).min(at)
            }
        }
    }

    /// The number of tokens that begin before `at`.
    fn tokens_before(&self, at: usize) -> usize {
        self.token_ends.as_ref().map_or(0, |ends| (ends.partition_point(|end| *end < at) + 1).min(ends.len()))
    }
}

/// The start of the character with this number.
fn nth_char(text: &str, number: usize) -> usize {
    text.char_indices().nth(number).map_or(text.len(), |(index, _)| index)
}

pub(super) struct Tokenizer {
    encoder: &'static CoreBPE,
    /// The number of bytes of each token.
    lengths: Vec<u8>,
}

impl Tokenizer {
    /// Reading the vocabulary takes about 0.1 s, so the program reads it once.
    fn shared() -> &'static Self {
        static SHARED: OnceLock<Tokenizer> = OnceLock::new();
        SHARED.get_or_init(|| {
            const TOKENS: u32 = 100_256;
            let encoder = tiktoken_rs::cl100k_base_singleton();
            let length = |token| encoder.decode_bytes(&[token]).map_or(0, |bytes| bytes.len() as u8);
            Self { encoder, lengths: (0..TOKENS).map(length).collect() }
        })
    }

    fn count(&self, text: &str) -> usize {
        self.encoder.encode_ordinary(text).len()
    }

    /// The ends of `size` tokens and a margin, or of all tokens of a shorter text.
    fn token_ends(&self, text: &str, size: usize) -> Vec<usize> {
        let mut bytes = (size + TOKENS_MARGIN) * BYTES_PER_TOKEN;
        loop {
            let beginning = &text[..text.floor_char_boundary(bytes)];
            let tokens = self.encoder.encode_ordinary(beginning);
            if tokens.len() >= size + TOKENS_MARGIN || beginning.len() == text.len() {
                let mut end = 0;
                let lengths = tokens.iter().map(|token| usize::from(self.lengths[*token as usize]));
                return lengths
                    .map(|length| {
                        end += length;
                        end
                    })
                    .collect();
            }
            bytes *= 2;
        }
    }
}
