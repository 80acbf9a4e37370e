//! Random and mutated bytes never cause a panic and never exceed a limit.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use wharfinger_text::{ExtractError, ExtractLimits};

use super::{MB, bytes};

fn small() -> ExtractLimits {
    ExtractLimits {
        pages_max: 50,
        inflated_bytes_max: 4 * MB,
        text_bytes_max: 100_000,
        truncate_at_bytes: 100_000,
        memory_bytes_max: 64 * MB,
        time_ms_max: 10_000,
    }
}

/// A fixed seed: every run uses the same cases, so that an unrelated change does not fail by chance.
fn cases(count: u32) -> ProptestConfig {
    ProptestConfig { rng_seed: RngSeed::Fixed(20_240_315), ..ProptestConfig::with_cases(count) }
}

fn check(name: &str, content: &[u8]) -> Result<(), TestCaseError> {
    match bytes(name, content, &small()) {
        Ok((extracted, _)) => {
            prop_assert!(extracted.bytes <= small().text_bytes_max);
            prop_assert!(extracted.pages <= small().pages_max);
        }
        Err(ExtractError::Crashed(reason)) => return Err(TestCaseError::fail(format!("{name}: {reason}"))),
        Err(ExtractError::Unavailable(reason)) => {
            return Err(TestCaseError::fail(format!(
                "{name} is reported as a failure of this machine: {reason}"
            )));
        }
        Err(_) => {}
    }
    Ok(())
}

/// One random change.
#[derive(Clone, Debug)]
enum Change {
    Flip { at: prop::sample::Index, bits: u8 },
    Cut { at: prop::sample::Index, length: usize },
    Repeat { at: prop::sample::Index, length: usize },
    Overwrite { at: prop::sample::Index, with: Vec<u8> },
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (any::<prop::sample::Index>(), 1..=255u8).prop_map(|(at, bits)| Change::Flip { at, bits }),
        (any::<prop::sample::Index>(), 1..2000usize).prop_map(|(at, length)| Change::Cut { at, length }),
        (any::<prop::sample::Index>(), 1..2000usize).prop_map(|(at, length)| Change::Repeat { at, length }),
        (any::<prop::sample::Index>(), prop::collection::vec(any::<u8>(), 1..50))
            .prop_map(|(at, with)| Change::Overwrite { at, with }),
    ]
}

fn apply(content: &mut Vec<u8>, change: &Change) {
    if content.is_empty() {
        return;
    }
    match change {
        Change::Flip { at, bits } => {
            let at = at.index(content.len());
            content[at] ^= bits;
        }
        Change::Cut { at, length } => {
            let at = at.index(content.len());
            let end = (at + length).min(content.len());
            content.drain(at..end);
        }
        Change::Repeat { at, length } => {
            let at = at.index(content.len());
            let end = (at + length).min(content.len());
            content.extend_from_within(at..end);
        }
        Change::Overwrite { at, with } => {
            let at = at.index(content.len());
            let end = (at + with.len()).min(content.len());
            content.splice(at..end, with.iter().copied());
        }
    }
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn random_bytes_after_a_signature_are_handled(
        signature in prop::sample::select(vec![
            &b""[..], b"%PDF-1.7\n", b"PK\x03\x04", b"{\\rtf1 ", b"<!doctype html>", b"\xff\xfe", b"{\"", b"<?xml",
            b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
        ]),
        noise in prop::collection::vec(any::<u8>(), 0..4000),
    ) {
        check("noise", &[signature, &noise].concat())?;
    }

    #[test]
    fn random_markup_is_handled(text in "(<[a-z!/-]{0,6}[ =\"a-z]{0,8}>|&[a-z#0-9]{0,6};?|[ a-zé<>&{}\\\\']{0,12}){0,60}") {
        check("noise.html", format!("<html>{text}").as_bytes())?;
        check("noise.rtf", format!("{{\\rtf1 {text}}}").as_bytes())?;
    }
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn mutated_documents_are_handled(
        sample in prop::sample::select(harness::documents::SAMPLES),
        changes in prop::collection::vec(change(), 1..6),
    ) {
        let mut content = std::fs::read(harness::documents::folder().join(sample.file)).expect("the document");
        changes.iter().for_each(|change| apply(&mut content, change));
        check(sample.file, &content)?;
    }
}
