//! Vectors without a model: words and pairs of words, hashed into a fixed number of dimensions. The
//! same text gives the same bits on every machine and in every version, for vectors are stored.

use std::iter;

pub const DIMENSIONS: usize = 256;

/// What one sort of feature counts for, against single words.
const PAIR_WEIGHT: f32 = 0.5;
const TRIGRAM_WEIGHT: f32 = 0.25;

/// The vector of a text, of length 1; all zeros where the text has no words. Nothing but additions,
/// products and square roots is computed, which are exact everywhere.
pub fn embed(text: &str) -> Vec<f32> {
    let mut features = features(text);
    // Sums of floats depend on their order, so the order must not depend on a hash map.
    features.sort_unstable_by_key(|feature| feature.hash);
    let mut vector = vec![0.0f32; DIMENSIONS];
    for same in features.chunk_by(|a, b| a.hash == b.hash) {
        let hash = same[0].hash;
        let sign = if hash >> 63 == 0 { 1.0 } else { -1.0 };
        // Ten times a word is not ten times the meaning.
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
        // Forms of one word share most of these, and languages without blanks have little else.
        if characters.len() > 4 {
            for three in characters.windows(3) {
                let text: String = three.iter().collect();
                features.push(Feature { hash: self::hash("c", &text), weight: TRIGRAM_WEIGHT * weight });
            }
        }
    }
    features
}

/// Short words are mostly grammar. In writing without blanks a word is one character.
fn weight(word: &str) -> f32 {
    match word.chars().count() {
        _ if word.chars().all(is_unspaced) => 1.0,
        0..=2 => 0.25,
        3 => 0.5,
        _ => 1.0,
    }
}

/// Words in lower case. Scripts that set no blanks between words are taken apart by pairs of characters.
fn words(text: &str) -> impl Iterator<Item = String> {
    let mut rest = text.chars().flat_map(char::to_lowercase).peekable();
    iter::from_fn(move || {
        while rest.next_if(|c| !c.is_alphanumeric()).is_some() {}
        let first = rest.next()?;
        let mut word = String::from(first);
        if is_unspaced(first) {
            // One character further each time: the next pair begins with the second of this one.
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

/// FNV-1a, mixed once more so that every bit depends on all of the text.
fn hash(sort: &str, text: &str) -> u64 {
    let fnv = sort.bytes().chain(text.bytes()).fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    scramble(fnv)
}

/// The hash of a pair, in its order.
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

    fn likeness(a: &str, b: &str) -> f32 {
        embed(a).iter().zip(embed(b)).map(|(x, y)| x * y).sum()
    }

    #[test]
    fn a_vector_has_length_one_or_none() {
        let length = |text: &str| embed(text).iter().map(|value| value * value).sum::<f32>();
        assert!((length("The harbour master keeps the ledger.") - 1.0).abs() < 1e-5);
        assert_eq!(embed("...").len(), DIMENSIONS);
        assert!(embed(" \n--").iter().all(|value| *value == 0.0));
    }

    #[test]
    fn likeness_follows_the_words() {
        let text = "The harbour master keeps a ledger of every ship that lands.";
        assert!((likeness(text, &text.to_uppercase()) - 1.0).abs() < 1e-5);
        let near = likeness(text, "ledger of landing ships");
        let far = likeness(text, "quarterly revenue grew by nine percent");
        assert!(near > far + 0.2, "{near} {far}");
        let near = likeness("東京都の港湾局は船を管理する", "港湾局の船");
        let far = likeness("東京都の港湾局は船を管理する", "今日は天気がいい");
        assert!(near > far + 0.2, "{near} {far}");
    }
}
