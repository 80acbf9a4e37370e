//! How far a chunk reaches, in characters or in tokens.

use std::sync::OnceLock;

use tiktoken_rs::CoreBPE;

use super::ChunkUnit;

/// The size of a chunk has its limits: a window of its text is held in memory.
const SIZE_MAX: usize = 100_000;

/// One character may be as many tokens as it has bytes; a chunk must hold some of them.
const TOKENS_MIN: usize = 8;

/// How many bytes of text are looked at for a token. One that stands for more, mostly blanks, makes
/// the chunk shorter.
const BYTES_PER_TOKEN_MAX: usize = 16;

/// How many bytes a token of ordinary text has at most, to read no more of it than is needed.
const BYTES_PER_TOKEN: usize = 5;

/// Where a text ends inside a piece that the tokenizer would have taken whole, it may have so many
/// tokens more.
const TOKENS_ASIDE: usize = 16;

const BYTES_PER_CHAR_MAX: usize = 4;

/// What is needed behind the end to tell what kind of border it is.
const BYTES_BEHIND: usize = 64;

pub(super) enum Ruler {
    Chars { size: usize },
    Tokens { size: usize, tokenizer: &'static Tokenizer },
}

impl Ruler {
    pub(super) fn new(unit: ChunkUnit, size: usize) -> Result<Self, String> {
        let least = match unit {
            ChunkUnit::Chars => 1,
            ChunkUnit::Tokens => TOKENS_MIN,
        };
        if !(least..=SIZE_MAX).contains(&size) {
            return Err(format!("a size of {size} is not between {least} and {SIZE_MAX}"));
        }
        Ok(match unit {
            ChunkUnit::Chars => Self::Chars { size },
            ChunkUnit::Tokens => Self::Tokens { size, tokenizer: Tokenizer::shared() },
        })
    }

    pub(super) fn window_bytes(&self) -> usize {
        match self {
            Self::Chars { size } => size * BYTES_PER_CHAR_MAX + BYTES_BEHIND,
            Self::Tokens { size, .. } => size * BYTES_PER_TOKEN_MAX + BYTES_BEHIND,
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

    /// Whether the text, which is the beginning of the window, is no larger than a chunk.
    pub(super) fn holds(&self, text: &str, reach: &Reach<'_>) -> bool {
        match self {
            Self::Chars { .. } => true,
            Self::Tokens { size, tokenizer } => {
                reach.tokens_before(text.len()) + TOKENS_ASIDE <= *size || tokenizer.count(text) <= *size
            }
        }
    }
}

/// What part of a window a chunk may take.
pub(super) struct Reach<'w> {
    window: &'w str,
    size: usize,
    /// Where each token ends, if tokens count.
    token_ends: Option<Vec<usize>>,
    limit: usize,
}

impl Reach<'_> {
    /// The most a chunk can hold.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Where a chunk of a half or a third of the size would end.
    pub(super) fn part(&self, divisor: usize) -> usize {
        match &self.token_ends {
            None => nth_char(self.window, self.size / divisor),
            Some(ends) => {
                let index = (self.size / divisor).saturating_sub(1);
                self.window.floor_char_boundary(ends.get(index).copied().unwrap_or(self.limit))
            }
        }
    }

    /// So many units before `at`.
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

    /// How many tokens begin before `at`.
    fn tokens_before(&self, at: usize) -> usize {
        self.token_ends.as_ref().map_or(0, |ends| (ends.partition_point(|end| *end < at) + 1).min(ends.len()))
    }
}

/// Where the character with this number begins.
fn nth_char(text: &str, number: usize) -> usize {
    text.char_indices().nth(number).map_or(text.len(), |(index, _)| index)
}

pub(super) struct Tokenizer {
    encoder: &'static CoreBPE,
    /// Of each token, how many bytes it stands for.
    lengths: Vec<u8>,
}

impl Tokenizer {
    /// Reading the vocabulary takes a tenth of a second, so it is done once.
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

    /// Where tokens end, for `size` of them and some more if the text has them.
    fn token_ends(&self, text: &str, size: usize) -> Vec<usize> {
        let mut bytes = (size + TOKENS_ASIDE) * BYTES_PER_TOKEN;
        loop {
            let beginning = &text[..text.floor_char_boundary(bytes)];
            let tokens = self.encoder.encode_ordinary(beginning);
            if tokens.len() >= size + TOKENS_ASIDE || beginning.len() == text.len() {
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
