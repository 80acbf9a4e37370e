//! Vectors without a model: words and pairs of words are hashed into a fixed number of dimensions. Vectors are stored,
//! so the same text must give the same bits on every machine and in every version
//! (`vectors_do_not_change_between_versions`).

use std::iter;

pub const DIMENSIONS: usize = 256;

/// Weights relative to a single word.
const PAIR_WEIGHT: f32 = 0.5;
const TRIGRAM_WEIGHT: f32 = 0.25;

/// The vector of a text, with length 1, or all zeros if the text has no words. It uses only operations that IEEE 754
/// rounds in the same way on every machine: addition, multiplication, division and square root.
pub fn embed(text: &str) -> Vec<f32> {
    let mut features = features(text);
    // The sum of floats depends on their order, so the order must be fixed.
    features.sort_unstable_by_key(|feature| feature.hash);
    let mut vector = vec![0.0f32; DIMENSIONS];
    for same in features.chunk_by(|a, b| a.hash == b.hash) {
        let hash = same[0].hash;
        let sign = if hash >> 63 == 0 { 1.0 } else { -1.0 };
        // The square root reduces the effect of repeated words.
        vector[(hash % DIMENSIONS as u64) as usize] += sign * same[0].weight * (same.len() as f32).sqrt();
    }
    let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|value| *value /= length);
    }
    vector
}

struct Feature {
    hash: u64,
    weight: f32,
}

fn features(text: &str) -> Vec<Feature> {
    let mut features = Vec::new();
    let mut previous = None;
    for word in words(text) {
        let hash = hash("w", &word);
        let weight = weight(&word);
        features.push(Feature { hash, weight });
        if let Some((before, weight_before)) = previous {
            features.push(Feature {
                hash: mix(before, hash),
                weight: PAIR_WEIGHT * f32::min(weight, weight_before),
            });
        }
        previous = Some((hash, weight));
        let characters: Vec<char> = iter::once('^').chain(word.chars()).chain(iter::once('$')).collect();
        // The forms of a word share most trigrams.
        if characters.len() > 4 {
            for three in characters.windows(3) {
                let text: String = three.iter().collect();
                features.push(Feature { hash: self::hash("c", &text), weight: TRIGRAM_WEIGHT * weight });
            }
        }
    }
    features
}

/// Short words are mostly grammar words. Scripts without spaces are an exception.
fn weight(word: &str) -> f32 {
    match word.chars().count() {
        _ if word.chars().all(is_unspaced) => 1.0,
        0..=2 => 0.25,
        3 => 0.5,
        _ => 1.0,
    }
}

/// Words in lower case. Scripts without spaces give pairs of characters.
fn words(text: &str) -> impl Iterator<Item = String> {
    let mut rest = text.chars().flat_map(char::to_lowercase).peekable();
    iter::from_fn(move || {
        while rest.next_if(|c| !c.is_alphanumeric()).is_some() {}
        let first = rest.next()?;
        let mut word = String::from(first);
        if is_unspaced(first) {
            // Pairs overlap: the next pair begins with the second character of this pair.
            if let Some(second) = rest.peek().filter(|c| is_unspaced(**c)) {
                word.push(*second);
            }
            return Some(word);
        }
        while let Some(c) = rest.next_if(|c| c.is_alphanumeric() && !is_unspaced(*c)) {
            word.push(c);
        }
        Some(word)
    })
}

/// Thai, Lao, Burmese, Khmer, Kana and Han.
fn is_unspaced(c: char) -> bool {
    matches!(u32::from(c),
        0x0e00..=0x0eff | 0x1000..=0x109f | 0x1780..=0x17ff | 0x3040..=0x30ff | 0x3400..=0x4dbf
        | 0x4e00..=0x9fff | 0xf900..=0xfaff | 0x2_0000..=0x3_ffff)
}

/// FNV-1a with a final mix, so that every bit depends on the whole text.
fn hash(prefix: &str, text: &str) -> u64 {
    let fnv = prefix.bytes().chain(text.bytes()).fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    scramble(fnv)
}

/// The hash of an ordered pair.
fn mix(first: u64, second: u64) -> u64 {
    scramble(first.rotate_left(23).wrapping_add(second))
}

fn scramble(mut hash: u64) -> u64 {
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn similarity(a: &str, b: &str) -> f32 {
        embed(a).iter().zip(embed(b)).map(|(x, y)| x * y).sum()
    }

    #[test]
    fn a_vector_has_length_one_or_zero() {
        let length = |text: &str| embed(text).iter().map(|value| value * value).sum::<f32>();
        assert!((length("The harbour master keeps the ledger.") - 1.0).abs() < 1e-5);
        assert_eq!(embed("...").len(), DIMENSIONS);
        assert!(embed(" \n--").iter().all(|value| *value == 0.0));
    }

    #[test]
    fn texts_with_the_same_words_are_more_similar() {
        let text = "The harbour master keeps a ledger of every ship that lands.";
        assert!((similarity(text, &text.to_uppercase()) - 1.0).abs() < 1e-5);
        let near = similarity(text, "ledger of landing ships");
        let far = similarity(text, "quarterly revenue grew by nine percent");
        assert!(near > far + 0.2, "{near} {far}");
        let near = similarity("東京都の港湾局は船を管理する", "港湾局の船");
        let far = similarity("東京都の港湾局は船を管理する", "今日は天気がいい");
        assert!(near > far + 0.2, "{near} {far}");
    }
}
