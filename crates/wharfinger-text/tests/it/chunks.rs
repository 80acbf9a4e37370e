//! Chunks have exact offsets, lose no text, respect the maximum size, and do not depend on how the text arrives.

use proptest::prelude::*;
use wharfinger_text::{Chunk, ChunkSettings, ChunkUnit, Chunker};

fn settings(unit: ChunkUnit, size: usize, overlap: usize) -> ChunkSettings {
    ChunkSettings { unit, size, overlap }
}

fn chunks(text: &str, settings: ChunkSettings) -> Vec<Chunk> {
    let mut chunker = Chunker::new(settings).expect("valid settings");
    let mut chunks = chunker.push(text);
    chunks.extend(chunker.finish());
    chunks
}

fn tokens(text: &str) -> usize {
    tiktoken_rs::cl100k_base_singleton().encode_ordinary(text).len()
}

fn units(text: &str, unit: ChunkUnit) -> usize {
    match unit {
        ChunkUnit::Chars => text.chars().count(),
        ChunkUnit::Tokens => tokens(text),
    }
}

fn check(text: &str, settings: ChunkSettings) -> Result<(), TestCaseError> {
    let characters: Vec<char> = text.chars().collect();
    let mut covered = 0;
    for chunk in chunks(text, settings) {
        let (start, end) = (chunk.start as usize, chunk.end as usize);
        prop_assert!(start < end && end > covered, "every chunk has new text");
        let part: String = characters[start..end].iter().collect();
        prop_assert_eq!(&part, &chunk.text);
        prop_assert_eq!(chunk.text.trim(), &chunk.text);
        let length = units(&chunk.text, settings.unit);
        prop_assert!(length <= settings.size, "{} units in {:?}", length, chunk.text);
        if start >= covered {
            let gap = &characters[covered..start];
            prop_assert!(
                gap.iter().all(|c| c.is_whitespace()),
                "only white space is between chunks: {:?}",
                gap
            );
        } else {
            let repeated: String = characters[start..covered].iter().collect();
            let length = units(&repeated, settings.unit);
            // A text can have more tokens alone than inside its chunk.
            let slack = if settings.unit == ChunkUnit::Tokens { 4 } else { 0 };
            prop_assert!(length <= settings.overlap + slack, "{} units repeated: {:?}", length, repeated);
        }
        covered = end;
    }
    prop_assert!(characters[covered..].iter().all(|c| c.is_whitespace()), "no text is lost at the end");
    Ok(())
}

fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        8 => "[a-z]{1,9}",
        6 => Just(" ".to_owned()),
        2 => Just(". ".to_owned()),
        2 => Just("\n\n".to_owned()),
        1 => Just("\n## ".to_owned()),
        1 => Just("\n\u{c}\n".to_owned()),
        1 => "[ \n]{1,40}",
        1 => "[a-z]{30,90}",
        1 => "[。、東京港船]{1,12}",
        1 => "\\PC{1,8}",
        1 => Just("👩‍👩‍👧‍👦🇩🇪e\u{301}\u{323}".to_owned()),
        1 => "[.\\-=!]{1,40}",
    ];
    prop::collection::vec(piece, 0..150).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn chunks_in_characters_are_exact(text in text(), size in 1..120usize, share in 0..=50usize) {
        check(&text, settings(ChunkUnit::Chars, size, size * share / 100))?;
    }

    #[test]
    fn chunks_in_tokens_are_exact(text in text(), size in 8..60usize, share in 0..=50usize) {
        check(&text, settings(ChunkUnit::Tokens, size, size * share / 100))?;
    }

    #[test]
    fn chunks_do_not_depend_on_pieces(
        text in text(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        size in 8..60usize,
        unit in prop::sample::select(vec![ChunkUnit::Chars, ChunkUnit::Tokens]),
    ) {
        let settings = settings(unit, size, size / 4);
        let mut cuts: Vec<usize> =
            cuts.iter().map(|cut| text.floor_char_boundary(cut.index(text.len() + 1))).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let mut chunker = Chunker::new(settings).expect("valid settings");
        let mut found = Vec::new();
        for ends in cuts.windows(2) {
            found.extend(chunker.push(&text[ends[0]..ends[1]]));
        }
        found.extend(chunker.finish());
        prop_assert_eq!(found, chunks(&text, settings));
    }
}

fn texts(text: &str, size: usize, overlap: usize) -> Vec<String> {
    chunks(text, settings(ChunkUnit::Chars, size, overlap)).into_iter().map(|chunk| chunk.text).collect()
}

#[test]
fn the_best_border_is_preferred() {
    let text = "Alpha beta gamma. Delta epsilon.\n\n# Next\n\nZeta eta theta iota kappa lambda.";
    assert_eq!(
        texts(text, 45, 0),
        ["Alpha beta gamma. Delta epsilon.", "# Next\n\nZeta eta theta iota kappa lambda."]
    );
    let text = "One two three four.\n\nFive six. Seven eight nine ten eleven.";
    assert_eq!(texts(text, 32, 0)[0], "One two three four.");
    let text = "One two three four. Five six seven";
    assert_eq!(texts(text, 25, 0), ["One two three four.", "Five six seven"]);
    assert_eq!(texts("one two three four", 10, 0), ["one two", "three four"]);
}

#[test]
fn a_long_word_is_cut_but_never_inside_a_grapheme() {
    assert_eq!(texts(&"x".repeat(25), 10, 0), ["xxxxxxxxxx", "xxxxxxxxxx", "xxxxx"]);
    assert_eq!(texts(&"x".repeat(12), 10, 4), ["xxxxxxxxxx", "xxxxxx"]);
    // The emoji of a family of four has seven Unicode characters and is one grapheme.
    let family = "👩‍👩‍👧‍👦";
    assert_eq!(texts(&family.repeat(3), 10, 0), [family, family, family]);
    let accents = format!("e{}", "\u{301}".repeat(1000));
    assert_eq!(texts(&accents, 100, 0).concat(), accents, "a grapheme over the maximum size is cut");
}

#[test]
fn the_overlap_begins_with_a_sentence_or_a_word() {
    let text = "The first is here. The second is here. The third is here. The fourth is here.";
    let found = texts(text, 40, 20);
    assert_eq!(found[0], "The first is here. The second is here.");
    assert_eq!(found[1], "The second is here. The third is here.");
    assert_eq!(texts("aaaa bbbb cccc dddd eeee", 14, 6)[1], "cccc dddd eeee");
}

#[test]
fn an_empty_text_has_no_chunks() {
    assert!(chunks("", settings(ChunkUnit::Chars, 10, 0)).is_empty());
    assert!(chunks(&" \n\t".repeat(10_000), settings(ChunkUnit::Tokens, 10, 5)).is_empty());
    assert_eq!(
        chunks(" a ", settings(ChunkUnit::Chars, 10, 5)),
        [Chunk { text: "a".to_owned(), start: 1, end: 2 }]
    );
}

#[test]
fn invalid_settings_are_refused() {
    for (unit, size, overlap) in [
        (ChunkUnit::Chars, 0, 0),
        (ChunkUnit::Chars, 10, 6),
        (ChunkUnit::Chars, usize::MAX, 0),
        (ChunkUnit::Tokens, 7, 0),
        (ChunkUnit::Tokens, 100, 51),
    ] {
        assert!(Chunker::new(settings(unit, size, overlap)).is_err(), "{unit:?} {size} {overlap}");
    }
}

/// With quadratic cost, this test would take hours.
#[test]
fn long_repetitive_texts_are_chunked_quickly() {
    let length = 1024 * 1024;
    for piece in ["x", " ", "word ", "A sentence. ", "東京。", "\n\n", "# a\n", "-", "👩‍👩‍👧‍👦", "\u{301}"]
    {
        let text = piece.repeat(length / piece.len());
        for unit in [ChunkUnit::Chars, ChunkUnit::Tokens] {
            let found = chunks(&text, settings(unit, 500, 100));
            let end = text.trim_end().chars().count() as u64;
            assert_eq!(found.last().map_or(0, |chunk| chunk.end), end, "{piece:?} {unit:?}");
        }
    }
}
