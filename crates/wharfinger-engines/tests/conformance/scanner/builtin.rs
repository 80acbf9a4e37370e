//! Tests of the built-in scanner: EICAR's test file, and SHA-256 hashes of whole files.

use bytes::Bytes;
use futures::stream::{self, StreamExt as _};
use harness::clamd::{KNOWN_FILE, KNOWN_FILE_SHA256, eicar};
use wharfinger_engines::scanner::{Scanner, Signatures, Verdict};

use super::site::{assert_unavailable, file, infected, pieces};

fn scanner() -> Scanner {
    let list = format!("# one line\n{KNOWN_FILE_SHA256} Known.File\n");
    Scanner::builtin(Signatures::parse(&list).expect("a list"))
}

#[tokio::test]
async fn eicar_is_found_only_if_it_is_the_whole_file() {
    let test_file = eicar();
    assert_eq!(test_file.len(), 68);
    let blanks = |count| [&test_file[..], &b" \t\r\n\x1a".repeat(20)[..count]].concat();
    for bytes in [blanks(0), blanks(2), blanks(60)] {
        for size in [1, 67, 200] {
            assert_eq!(scanner().scan(pieces(&bytes, size)).await, infected("Eicar-Test-Signature"));
        }
    }
    for bytes in [
        blanks(61),
        test_file[..67].to_vec(),
        [&test_file[..], b"x"].concat(),
        [&test_file[..], b"\0"].concat(),
        [b" ", &test_file[..]].concat(),
        test_file.to_ascii_lowercase(),
    ] {
        assert_eq!(scanner().scan(pieces(&bytes, 50)).await, Ok(Verdict::Clean));
    }
}

#[tokio::test]
async fn a_listed_file_is_found_by_the_hash_of_all_its_bytes() {
    for size in [1, 10, 1_000] {
        assert_eq!(scanner().scan(pieces(KNOWN_FILE, size)).await, infected("Known.File"));
    }
    assert_eq!(scanner().scan(file([KNOWN_FILE, b"\n"].concat())).await, Ok(Verdict::Clean));
    assert_eq!(scanner().scan(file("")).await, Ok(Verdict::Clean));
    let none = Scanner::builtin(Signatures::default());
    assert_eq!(none.scan(file(KNOWN_FILE)).await, Ok(Verdict::Clean));
    let what = scanner().check().await.expect("the built-in scanner is always available");
    assert!(what.contains("EICAR") && what.contains("1 SHA-256"), "{what}");
}

#[tokio::test]
async fn a_read_error_gives_no_verdict() {
    for bytes in [eicar(), KNOWN_FILE.to_vec(), Vec::new()] {
        let broken = stream::iter([Ok(Bytes::from(bytes)), Err("gone".to_owned())]);
        assert_unavailable(scanner().scan(broken.boxed()).await);
    }
}
