//! Vectors must not change, because stored vectors are compared with vectors of later versions.

use wharfinger_text::hashing::{DIMENSIONS, embed};

/// A hash over all bits of the vector.
fn fingerprint(text: &str) -> u64 {
    embed(text).iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, value| {
        (hash ^ u64::from(value.to_bits())).wrapping_mul(0x0100_0000_01b3)
    })
}

#[test]
fn vectors_do_not_change_between_versions() {
    assert_eq!(DIMENSIONS, 256);
    let found = [
        "",
        "Every crate that lands is written down before it is moved.",
        "Grüße aus Ærøskøbing, naïve café. 東京の港。",
    ]
    .map(fingerprint);
    assert_eq!(found, [15567473145155401509, 37164839071500214, 3362714397789134171]);
}

#[test]
fn a_search_finds_its_sentence() {
    let sentences = [
        "Every crate that lands is written down before it is moved.",
        "Nobody signs for cargo that they have not seen.",
        "The lamps of the north berth are lit at dusk.",
        "A fee of nine percent is due on salt.",
    ];
    for (query, expected) in
        [("crates written down", 0), ("unseen cargo signed", 1), ("berth lamps", 2), ("salt fees", 3)]
    {
        let query_vector = embed(query);
        let similarity = |text: &str| embed(text).iter().zip(&query_vector).map(|(a, b)| a * b).sum::<f32>();
        let best = (0..sentences.len())
            .max_by(|a, b| similarity(sentences[*a]).total_cmp(&similarity(sentences[*b])));
        assert_eq!(best, Some(expected), "{query}");
    }
}
