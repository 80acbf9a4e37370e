//! What is uploaded: small documents of every kind that the pipeline reads, and some that it cannot.

use rand::Rng as _;
use rand::seq::IndexedRandom as _;

const WORDS: [&str; 40] = [
    "anchor",
    "berth",
    "bill",
    "bollard",
    "cargo",
    "chart",
    "container",
    "crane",
    "crate",
    "customs",
    "dock",
    "draft",
    "ferry",
    "freight",
    "harbour",
    "hold",
    "hull",
    "invoice",
    "jetty",
    "keel",
    "quota_context",
    "lighter",
    "manifest",
    "mooring",
    "packet",
    "pier",
    "pilot",
    "port",
    "quay",
    "receipt",
    "sailor",
    "seal",
    "ship",
    "stevedore",
    "totals",
    "tide",
    "tonnage",
    "tug",
    "warehouse",
    "wharf",
];
/// The test file that every scanner knows, in two pieces: this program is not to be taken for it.
const TEST_VIRUS: [&str; 2] = ["X5O!P%@AP[4\\PZX54(P^)7CC)7}$EICAR-STAND", "ARD-ANTIVIRUS-TEST-FILE!$H+H*"];

pub struct Crate {
    pub name: String,
    pub content_type: &'static str,
    pub bytes: Vec<u8>,
}

pub fn words(count: usize) -> String {
    let mut random = rand::rng();
    let words: Vec<&str> = (0..count).filter_map(|_| WORDS.choose(&mut random).copied()).collect();
    words.join(" ")
}

fn name(kind: &str) -> String {
    let number = rand::rng().random_range(100..1_000);
    format!("{}-{number}.{kind}", words(2).replace(' ', "-"))
}

/// A document that can be read to its end.
pub fn document() -> Crate {
    let paragraphs: Vec<String> = (0..rand::rng().random_range(2..30)).map(|_| words(40)).collect();
    match rand::rng().random_range(0..4) {
        0 => Crate {
            name: name("md"),
            content_type: "text/markdown",
            bytes: format!("# {}\n\n{}\n", words(3), paragraphs.join("\n\n")).into_bytes(),
        },
        1 => Crate {
            name: name("html"),
            content_type: "text/html",
            bytes: format!("<!doctype html><h1>{}</h1><p>{}</p>", words(3), paragraphs.join("</p><p>"))
                .into_bytes(),
        },
        2 => Crate {
            name: name("csv"),
            content_type: "text/csv",
            bytes: paragraphs
                .iter()
                .map(|line| line.replace(' ', ",") + "\n")
                .collect::<String>()
                .into_bytes(),
        },
        _ => {
            Crate { name: name("txt"), content_type: "text/plain", bytes: paragraphs.join("\n").into_bytes() }
        }
    }
}

/// Calls itself a PDF, and is none: no attempt will help.
pub fn torn() -> Crate {
    let bytes = format!("%PDF-1.7\n{}\n%%EOF", words(60)).into_bytes();
    Crate { name: name("pdf"), content_type: "application/pdf", bytes }
}

pub fn infected() -> Crate {
    Crate {
        name: name("com"),
        content_type: "application/octet-stream",
        bytes: TEST_VIRUS.concat().into_bytes(),
    }
}

/// Larger than what most have left.
pub fn bulky(bytes: usize) -> Crate {
    Crate { name: name("bin"), content_type: "application/octet-stream", bytes: vec![b'.'; bytes] }
}
