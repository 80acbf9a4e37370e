//! Where a text can be cut: before a heading, between paragraphs, between sentences, between words.

/// The quality of a border, the best last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// Between a heading and its text.
    Weak,
    Word,
    Sentence,
    Paragraph,
    Heading,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Border {
    /// The end of the text before the border.
    pub(super) end: usize,
    /// The start of the text after the border. The white space between belongs to neither.
    pub(super) next: usize,
    pub(super) level: Level,
}

/// The borders with an `end` up to `limit`, in order.
pub(super) fn find(window: &str, limit: usize) -> Vec<Border> {
    let mut borders = Vec::new();
    let mut characters = window.char_indices().peekable();
    // Whether the sentence has ended, and where the current line starts.
    let mut is_sentence_end = false;
    let mut line_start = 0;
    while let Some((at, character)) = characters.next() {
        if at > limit {
            break;
        }
        if !character.is_whitespace() {
            is_sentence_end = match character {
                '.' | '!' | '?' | '…' | '。' | '！' | '？' | '．' => true,
                '"' | '\'' | ')' | ']' | '»' | '”' | '’' | '」' | '』' | '）' => is_sentence_end,
                _ => false,
            };
            let end = at + character.len_utf8();
            // Scripts without spaces continue right after the full stop or its closing bracket.
            let continues =
                characters.peek().is_some_and(|(_, next)| !next.is_whitespace() && !is_closing(*next));
            if is_sentence_end && is_wide_stop(character) && continues && end <= limit {
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
        let level = if lines > 0 && is_heading(&window[line_start..at]) {
            Level::Weak
        } else if (lines > 0 || is_new_page) && is_heading(&window[next..]) {
            Level::Heading
        } else if lines > 1 || is_new_page {
            Level::Paragraph
        } else if is_sentence_end {
            Level::Sentence
        } else {
            Level::Word
        };
        if lines > 0 || is_new_page {
            line_start = next;
        }
        is_sentence_end = false;
        borders.push(Border { end: at, next, level });
    }
    borders
}

/// Whether the line starts like a Markdown heading.
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
    fn each_border_has_its_level() {
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
    fn a_full_stop_ends_a_sentence_in_scripts_without_spaces() {
        assert_eq!(
            levels("船が来た。「港だ。」荷を"),
            [("「港だ。」荷を", Level::Sentence), ("荷を", Level::Sentence)]
        );
    }

    #[test]
    fn a_page_break_is_a_paragraph_or_a_heading() {
        assert_eq!(levels("a\u{c}b"), [("b", Level::Paragraph)]);
        assert_eq!(levels("a\n\u{c}\n## b"), [("## b", Level::Heading), ("b", Level::Word)]);
    }
}
