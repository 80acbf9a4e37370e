//! The output of extraction. It counts the text against its limit. It turns the structure of documents into gaps
//! (blank, tab, line, blank line, form feed), and writes only the widest gap between two words.

use std::io::Write;

use super::ExtractError;

const BUFFER_BYTES: usize = 64 * 1024;

/// The gap between two words, the widest last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Gap {
    None,
    Blank,
    Cell,
    Line,
    Paragraph,
    Page,
}

impl Gap {
    fn text(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Blank => " ",
            Self::Cell => "\t",
            Self::Line => "\n",
            Self::Paragraph => "\n\n",
            Self::Page => "\n\u{c}\n",
        }
    }
}

pub(super) struct TextSink<'a> {
    out: &'a mut dyn Write,
    buffer: String,
    bytes: u64,
    bytes_max: u64,
    /// Text after this limit is left out.
    truncate_at_bytes: u64,
    is_cut: bool,
    pages: u32,
    /// The kind of the file, once it is known.
    pub(super) kind: &'static str,
    gap: Gap,
    /// The mark of a heading or a list item. It is written once, before the next word.
    mark: &'static str,
    /// The number of open table cells. Paragraphs inside a cell get no gap, because a gap would split the row.
    cells_open: usize,
}

impl<'a> TextSink<'a> {
    pub(super) fn new(out: &'a mut dyn Write, bytes_max: u64, truncate_at_bytes: u64) -> Self {
        Self {
            out,
            buffer: String::new(),
            bytes: 0,
            bytes_max,
            truncate_at_bytes,
            is_cut: false,
            pages: 0,
            kind: "",
            gap: Gap::None,
            mark: "",
            cells_open: 0,
        }
    }

    /// Whether text was left out. An error then stopped the reader.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Pages started so far.
    pub(super) fn pages(&self) -> u32 {
        self.pages.max(1)
    }

    /// Writes text unchanged, without NUL, because databases reject NUL in text.
    pub(super) fn verbatim(&mut self, text: &str) -> Result<(), ExtractError> {
        for piece in text.split('\0') {
            self.write(piece)?;
        }
        Ok(())
    }

    /// Writes running text. White space in it becomes one blank.
    pub(super) fn words(&mut self, text: &str) -> Result<(), ExtractError> {
        let mut rest = text;
        loop {
            let trimmed = rest.trim_start_matches(is_blank);
            if trimmed.len() < rest.len() {
                self.gap(Gap::Blank);
            }
            if trimmed.is_empty() {
                return Ok(());
            }
            let end = trimmed.find(is_blank).unwrap_or(trimmed.len());
            self.begin_word()?;
            self.verbatim(&trimmed[..end])?;
            rest = &trimmed[end..];
        }
    }

    /// Writes text whose lines and blanks have a meaning, such as source code.
    pub(super) fn preformatted(&mut self, text: &str) -> Result<(), ExtractError> {
        if !text.is_empty() {
            self.begin_word()?;
            self.verbatim(text)?;
        }
        Ok(())
    }

    /// Requests a gap before the next word.
    pub(super) fn gap(&mut self, gap: Gap) {
        self.pages += u32::from(gap == Gap::Page);
        let gap = if self.cells_open > 0 && gap == Gap::Paragraph { Gap::Blank } else { gap };
        self.gap = self.gap.max(gap);
    }

    /// Starts a heading of this level, from 1 to 6. It ends at the next gap.
    pub(super) fn heading(&mut self, level: usize) {
        const MARKS: [&str; 6] = ["# ", "## ", "### ", "#### ", "##### ", "###### "];
        self.gap(Gap::Paragraph);
        self.mark = if self.cells_open > 0 { "" } else { MARKS[level.clamp(1, MARKS.len()) - 1] };
    }

    pub(super) fn list_item(&mut self) {
        self.gap(Gap::Line);
        self.mark = if self.cells_open > 0 { "" } else { "- " };
    }

    /// Drops the mark of a heading or item without words.
    pub(super) fn forget_mark(&mut self) {
        self.mark = "";
    }

    pub(super) fn open_cell(&mut self) {
        self.cells_open += 1;
    }

    pub(super) fn close_cell(&mut self) {
        self.cells_open = self.cells_open.saturating_sub(1);
        self.gap(Gap::Cell);
    }

    /// Writes the buffer and returns the total size of the text.
    pub(super) fn finish(mut self) -> Result<u64, ExtractError> {
        self.flush()?;
        self.out.flush().map_err(|error| ExtractError::local(&error))?;
        Ok(self.bytes)
    }

    fn begin_word(&mut self) -> Result<(), ExtractError> {
        let gap = std::mem::replace(&mut self.gap, Gap::None);
        if self.bytes > 0 {
            self.write(gap.text())?;
        }
        let mark = std::mem::take(&mut self.mark);
        self.write(mark)
    }

    fn write(&mut self, text: &str) -> Result<(), ExtractError> {
        let left = self.truncate_at_bytes.saturating_sub(self.bytes);
        if text.len() as u64 > left {
            let end = text.floor_char_boundary(usize::try_from(left).unwrap_or(usize::MAX));
            self.is_cut = true;
            self.bytes += end as u64;
            self.buffer.push_str(&text[..end]);
            return Err(ExtractError::TooLarge(format!(
                "more than {} bytes of text",
                self.truncate_at_bytes
            )));
        }
        self.bytes += text.len() as u64;
        if self.bytes > self.bytes_max {
            return Err(ExtractError::TooLarge(format!("more than {} bytes of text", self.bytes_max)));
        }
        if text.len() >= BUFFER_BYTES {
            self.flush()?;
            return self.out.write_all(text.as_bytes()).map_err(|error| ExtractError::local(&error));
        }
        if self.buffer.len() + text.len() > BUFFER_BYTES {
            self.flush()?;
        }
        self.buffer.push_str(text);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ExtractError> {
        self.out.write_all(self.buffer.as_bytes()).map_err(|error| ExtractError::local(&error))?;
        self.buffer.clear();
        Ok(())
    }
}

/// White space between words. A no-break space belongs to the word.
fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r' | '\u{b}' | '\u{c}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(work: impl FnOnce(&mut TextSink<'_>) -> Result<(), ExtractError>) -> String {
        let mut out = Vec::new();
        let mut sink = TextSink::new(&mut out, 1000, 1000);
        work(&mut sink).expect("room");
        sink.finish().expect("written");
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn only_the_widest_gap_between_words_is_written() {
        let text = written(|sink| {
            sink.gap(Gap::Page);
            sink.heading(2);
            sink.words("  A \n heading ")?;
            sink.gap(Gap::Paragraph);
            sink.gap(Gap::Line);
            sink.words("text\0 ")?;
            sink.gap(Gap::Page);
            Ok(())
        });
        assert_eq!(text, "## A heading\n\ntext");
    }

    #[test]
    fn text_after_the_limit_is_left_out() {
        let mut out = Vec::new();
        let mut sink = TextSink::new(&mut out, 1000, 9);
        assert!(sink.words("eins zw\u{e4}i drei").is_err());
        assert!(sink.is_cut() && sink.words("vier").is_err());
        assert_eq!(sink.finish().expect("written"), 9);
        assert_eq!(String::from_utf8(out).expect("UTF-8"), "eins zw\u{e4}");
        let mut out = Vec::new();
        let mut sink = TextSink::new(&mut out, 1000, 4);
        assert!(sink.words("eins").is_ok() && !sink.is_cut(), "the whole text fits");
    }

    #[test]
    fn paragraphs_of_a_cell_stay_in_their_row() {
        let text = written(|sink| {
            for cell in ["a", "b"] {
                sink.open_cell();
                sink.gap(Gap::Paragraph);
                sink.words(cell)?;
                sink.gap(Gap::Paragraph);
                sink.words("second")?;
                sink.close_cell();
            }
            Ok(())
        });
        assert_eq!(text, "a second\tb second");
    }
}
