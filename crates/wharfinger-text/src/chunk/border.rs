//! Where a text may be cut, and how well: before a heading, between paragraphs, between sentences,
//! between words.

/// How good a place is, the best last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// Between a heading and what it is the heading of.
    Weak,
    Word,
    Sentence,
    Paragraph,
    Heading,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Border {
    /// Where the text before ends.
    pub(super) end: usize,
    /// Where the text after begins: white space belongs to neither.
    pub(super) next: usize,
    pub(super) level: Level,
}

/// The borders whose text before ends within `limit`, in their order.
pub(super) fn find(window: &str, limit: usize) -> Vec<Border> {
    let mut borders = Vec::new();
    let mut characters = window.char_indices().peekable();
    // Whether the sentence is over, and since when the line is what it is.
    let mut is_ended = false;
    let mut line = 0;
    while let Some((at, character)) = characters.next() {
        if at > limit {
            break;
        }
        if !character.is_whitespace() {
            is_ended = match character {
                '.' | '!' | '?' | '…' | '。' | '！' | '？' | '．' => true,
                '"' | '\'' | ')' | ']' | '»' | '”' | '’' | '」' | '』' | '）' => is_ended,
                _ => false,
            };
            let end = at + character.len_utf8();
            // Scripts without blanks go on right after the stop, or after the bracket that closes with it.
            let goes_on =
                characters.peek().is_some_and(|(_, next)| !next.is_whitespace() && !is_closing(*next));
            if is_ended && is_wide_stop(character) && goes_on && end <= limit {
                borders.push(Border { end, next: end, level: Level::Sentence });
            }
            continue;
        }
        let mut lines = usize::from(character == '\n');
        let mut is_new_page = character == '\u{c}';
        let mut next = at + character.len_utf8();
        while let Some((blank, character)) = characters.next_if(|(_, c)| c.is_whitespace()) {
            lines += usize::from(character == '\n');
            is_new_page |= character == '\u{c}';
            next = blank + character.len_utf8();
        }
        let level = if lines > 0 && is_heading(&window[line..at]) {
            Level::Weak
        } else if (lines > 0 || is_new_page) && is_heading(&window[next..]) {
            Level::Heading
        } else if lines > 1 || is_new_page {
            Level::Paragraph
        } else if is_ended {
            Level::Sentence
        } else {
            Level::Word
        };
        if lines > 0 || is_new_page {
            line = next;
        }
        is_ended = false;
        borders.push(Border { end: at, next, level });
    }
    borders
}

/// A line that begins as Markdown's headings do.
fn is_heading(line: &str) -> bool {
    let text = line.trim_start_matches('#');
    let marks = line.len() - text.len();
    (1..=6).contains(&marks) && text.starts_with(' ')
}

fn is_wide_stop(character: char) -> bool {
    matches!(character, '。' | '！' | '？' | '．' | '」' | '』' | '）')
}

fn is_closing(character: char) -> bool {
    matches!(character, '」' | '』' | '）' | '”' | '’' | '。' | '！' | '？' | '．')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(text: &str) -> Vec<(&str, Level)> {
        find(text, text.len()).iter().map(|border| (&text[border.next..], border.level)).collect()
    }

    #[test]
    fn borders_have_their_levels() {
        let text = "One two.) Three\n\nfour\n# Head\n\nbody";
        let found = levels(text);
        let expected = [
            ("two.) Three\n\nfour\n# Head\n\nbody", Level::Word),
            ("Three\n\nfour\n# Head\n\nbody", Level::Sentence),
            ("four\n# Head\n\nbody", Level::Paragraph),
            ("# Head\n\nbody", Level::Heading),
            ("Head\n\nbody", Level::Word),
            ("body", Level::Weak),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn stops_of_scripts_without_blanks_end_sentences() {
        assert_eq!(
            levels("船が来た。「港だ。」荷を"),
            [("「港だ。」荷を", Level::Sentence), ("荷を", Level::Sentence)]
        );
    }

    #[test]
    fn a_page_is_a_paragraph_at_least() {
        assert_eq!(levels("a\u{c}b"), [("b", Level::Paragraph)]);
        assert_eq!(levels("a\n\u{c}\n## b"), [("## b", Level::Heading), ("b", Level::Word)]);
    }
}
