//! Parses the vectors of an answer: one for each text, in order, all with the same length and with finite numbers.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// More dimensions than any model has, with 32 bytes for each number.
const VECTOR_BYTES_MAX: usize = 16_384 * 32;
const OTHER_BYTES_MAX: usize = 64 * 1024;

/// The maximum length of an answer.
pub(super) fn bytes_max(texts: usize) -> usize {
    OTHER_BYTES_MAX + texts * VECTOR_BYTES_MAX
}

#[derive(Deserialize)]
struct Answer {
    data: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    index: usize,
    embedding: Vector,
}

struct Vector(Vec<f32>);

/// Written manually, because an untagged enum would first buffer the whole value.
impl<'de> Deserialize<'de> for Vector {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Vector, D::Error> {
        deserializer.deserialize_any(VectorVisitor)
    }
}

struct VectorVisitor;

impl<'de> Visitor<'de> for VectorVisitor {
    type Value = Vector;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of numbers, or their bytes in base64")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut numbers: A) -> Result<Vector, A::Error> {
        let mut vector = Vec::new();
        while let Some(number) = numbers.next_element()? {
            vector.push(number);
        }
        Ok(Vector(vector))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Vector, E> {
        let bytes = STANDARD.decode(text).map_err(|_| E::custom("a vector is not valid base64"))?;
        let (numbers, rest) = bytes.as_chunks::<4>();
        if !rest.is_empty() {
            return Err(E::custom("a vector is truncated"));
        }
        Ok(Vector(numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()))
    }
}

/// The error describes the problem in the answer.
pub(super) fn vectors(body: &[u8], texts: usize) -> Result<Vec<Vec<f32>>, String> {
    let answer: Answer = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    if answer.data.len() != texts {
        return Err(format!("{} vectors for {texts} texts", answer.data.len()));
    }
    let mut places: Vec<Option<Vec<f32>>> = vec![None; texts];
    for Entry { index, embedding: Vector(vector) } in answer.data {
        match places.get_mut(index) {
            Some(place @ None) => *place = Some(vector),
            Some(Some(_)) => return Err(format!("two vectors for text {index}")),
            None => return Err(format!("a vector for text {index} of {texts}")),
        }
    }
    let vectors: Vec<Vec<f32>> = places.into_iter().flatten().collect();
    check_dimensions(vectors.first(), &vectors)?;
    Ok(vectors)
}

/// Checks that all vectors have the length of the first, are not empty, and contain only finite numbers.
pub(super) fn check_dimensions(first: Option<&Vec<f32>>, others: &[Vec<f32>]) -> Result<(), String> {
    let expected = first.or(others.first()).map_or(0, Vec::len);
    for vector in others {
        if vector.is_empty() {
            return Err("a vector is empty".to_owned());
        }
        if vector.len() != expected {
            return Err(format!("vectors of {expected} and of {} dimensions", vector.len()));
        }
        if !vector.iter().all(|number| number.is_finite()) {
            return Err("a vector contains a number that is not finite".to_owned());
        }
    }
    Ok(())
}
