//! Splits a stream of text into overlapping chunks. Each cut uses a window of fixed length, so memory does not depend
//! on the length of the text, and chunks do not depend on how the text arrives (`chunks_do_not_depend_on_pieces`).

mod border;
mod ruler;

use serde::{Deserialize, Serialize};
use unicode_segmentation::GraphemeCursor;

use border::{Border, Level};
use ruler::{Reach, Ruler};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChunkUnit {
    /// Unicode scalar values.
    Chars,
    /// Tokens of cl100k, the tokenizer of OpenAI's embedding models.
    Tokens,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkSettings {
    pub unit: ChunkUnit,
    /// The maximum length of a chunk.
    pub size: usize,
    /// The maximum length that a chunk repeats from the previous chunk.
    pub overlap: usize,
}

/// A part of the text: from character `start` (included) to character `end` (excluded) of the whole text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    pub text: String,
    pub start: u64,
    pub end: u64,
}

pub struct Chunker {
    overlap: usize,
    ruler: Ruler,
    buffer: String,
    /// Where the next chunk begins: as a byte of the buffer, and as a character of the whole text.
    head: usize,
    head_chars: u64,
    /// The byte of the buffer where the last chunk ended.
    covered: usize,
}

impl Chunker {
    /// Returns an error for invalid settings.
    pub fn new(settings: ChunkSettings) -> Result<Self, String> {
        let ChunkSettings { unit, size, overlap } = settings;
        let ruler = Ruler::new(unit, size)?;
        if overlap > size / 2 {
            return Err(format!("the overlap is {overlap}; the maximum is half of the size {size}"));
        }
        Ok(Self { overlap, ruler, buffer: String::new(), head: 0, head_chars: 0, covered: 0 })
    }

    /// Adds the next piece of the text. Returns the chunks that later text cannot change.
    pub fn push(&mut self, text: &str) -> Vec<Chunk> {
        self.buffer.push_str(text);
        let mut chunks = Vec::new();
        loop {
            self.skip_blanks();
            if self.buffer.len() - self.head <= self.ruler.window_bytes() {
                break;
            }
            chunks.extend(self.cut(false));
        }
        // Once per piece, not once per chunk: otherwise a large piece is moved once for each of its chunks.
        self.buffer.drain(..self.head);
        self.covered -= self.head.min(self.covered);
        self.head = 0;
        chunks
    }

    /// Returns the remaining chunks.
    pub fn finish(mut self) -> Vec<Chunk> {
        let mut chunks = Vec::new();
        loop {
            self.skip_blanks();
            let rest = self.buffer.len() - self.head;
            if rest == 0 {
                return chunks;
            }
            chunks.extend(self.cut(rest <= self.ruler.window_bytes()));
        }
    }

    /// Skips white space, so that no chunk starts with it.
    fn skip_blanks(&mut self) {
        let rest = &self.buffer[self.head..];
        self.advance(rest.len() - rest.trim_start().len());
    }

    fn advance(&mut self, bytes: usize) {
        self.head_chars += self.buffer[self.head..self.head + bytes].chars().count() as u64;
        self.head += bytes;
    }

    /// Cuts one chunk from the window. None: the chunk would only repeat the previous one, so its overlap is skipped.
    fn cut(&mut self, is_last_window: bool) -> Option<Chunk> {
        let window_end = self.buffer.len().min(self.head + self.ruler.window_bytes());
        let window = &self.buffer[self.head..self.buffer.floor_char_boundary(window_end)];
        let covered = self.covered.saturating_sub(self.head);
        let reach = self.ruler.reach(window);
        let whole = window.trim_end().len();
        if is_last_window && reach.limit() >= whole {
            let chunk = (whole > covered).then(|| self.chunk(whole));
            self.advance(self.buffer.len() - self.head);
            return chunk;
        }
        let borders = border::find(window, reach.limit());
        let cut = self.choose(window, covered, &reach, &borders);
        if cut.end <= covered {
            let first = window.chars().next().map_or(0, char::len_utf8);
            self.advance(covered.max(first));
            return None;
        }
        let next = self.next_start(window, &cut, &reach, &borders);
        let chunk = self.chunk(cut.end);
        self.covered = self.head + cut.end;
        self.advance(next);
        Some(chunk)
    }

    fn chunk(&self, length: usize) -> Chunk {
        let text = self.buffer[self.head..self.head + length].to_owned();
        let end = self.head_chars + text.chars().count() as u64;
        Chunk { text, start: self.head_chars, end }
    }

    /// The best border that leaves a chunk of sufficient length, else the last border. If the window is a single word,
    /// the end of a grapheme.
    fn choose(&self, window: &str, covered: usize, reach: &Reach<'_>, borders: &[Border]) -> Border {
        let mut limit = reach.limit();
        loop {
            let best = self.best_border(window, covered, limit, reach, borders);
            if best.end <= covered || self.ruler.holds(&window[..best.end], reach) {
                return best;
            }
            // The end of a text can have more tokens alone than inside a longer text.
            limit = window.floor_char_boundary(best.end - 1);
        }
    }

    fn best_border(
        &self,
        window: &str,
        covered: usize,
        limit: usize,
        reach: &Reach<'_>,
        borders: &[Border],
    ) -> Border {
        let (third, half) = (reach.part(3), reach.part(2));
        let far_enough = |border: &&Border| {
            border.end > covered
                && border.end <= limit
                && border.end >= if border.level == Level::Heading { third } else { half }
        };
        let reachable = |border: &&Border| border.end > covered && border.end <= limit;
        let best = borders.iter().filter(far_enough).max_by_key(|border| (border.level, border.end));
        if let Some(best) = best.or_else(|| borders.iter().rfind(reachable)) {
            return *best;
        }
        let mut end = grapheme_border(window, limit);
        if end <= covered {
            end = limit;
        }
        // A chunk does not end with white space.
        let end = window[..end].trim_end().len();
        Border { end, next: end, level: Level::Weak }
    }

    /// Where the next chunk begins. It repeats the end of this chunk, from the start of a sentence or a word.
    fn next_start(&self, window: &str, cut: &Border, reach: &Reach<'_>, borders: &[Border]) -> usize {
        if self.overlap == 0 {
            return cut.next;
        }
        let earliest = reach.back(cut.end, self.overlap);
        // If the gap is wider than the overlap, the overlap gives no context.
        if cut.next - cut.end > cut.end - earliest {
            return cut.next;
        }
        let repeated = || borders.iter().filter(|border| border.next >= earliest && border.next < cut.end);
        let start = repeated().find(|border| border.level >= Level::Sentence).or_else(|| repeated().next());
        match start {
            Some(border) => border.next,
            None if earliest > 0 && !window[..cut.end].contains(char::is_whitespace) => {
                grapheme_border_after(window, earliest).min(cut.end)
            }
            None => cut.next,
        }
    }
}

/// The last grapheme boundary at or before `at`.
fn grapheme_border(text: &str, at: usize) -> usize {
    let mut cursor = GraphemeCursor::new(at, text.len(), true);
    match cursor.is_boundary(text, 0) {
        Ok(true) => at,
        _ => cursor.prev_boundary(text, 0).ok().flatten().unwrap_or(0),
    }
}

fn grapheme_border_after(text: &str, at: usize) -> usize {
    let mut cursor = GraphemeCursor::new(at, text.len(), true);
    match cursor.is_boundary(text, 0) {
        Ok(true) => at,
        _ => cursor.next_boundary(text, 0).ok().flatten().unwrap_or(text.len()),
    }
}
