//! The files that the demo uploads: small documents of several types that the pipeline can read, and some that it cannot.

use rand::Rng as _;
use rand::seq::IndexedRandom as _;

const WORDS: [&str; 40] = [
    "account",
    "address",
    "agenda",
    "annual",
    "archive",
    "audit",
    "balance",
    "budget",
    "catalog",
    "checklist",
    "client",
    "contract",
    "customer",
    "delivery",
    "design",
    "draft",
    "estimate",
    "expense",
    "forecast",
    "guide",
    "inventory",
    "invoice",
    "letter",
    "manual",
    "meeting",
    "memo",
    "minutes",
    "office",
    "order",
    "payment",
    "plan",
    "policy",
    "price",
    "product",
    "project",
    "receipt",
    "report",
    "schedule",
    "summary",
    "survey",
];
/// The EICAR test file in two parts, so that scanners do not report this program as infected.
const TEST_VIRUS: [&str; 2] = ["X5O!P%@AP[4\\PZX54(P^)7CC)7}$EICAR-STAND", "ARD-ANTIVIRUS-TEST-FILE!$H+H*"];

pub struct DemoFile {
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

/// A document that the pipeline can process.
pub fn document() -> DemoFile {
    let paragraphs: Vec<String> = (0..rand::rng().random_range(2..30)).map(|_| words(40)).collect();
    match rand::rng().random_range(0..4) {
        0 => DemoFile {
            name: name("md"),
            content_type: "text/markdown",
            bytes: format!("# {}\n\n{}\n", words(3), paragraphs.join("\n\n")).into_bytes(),
        },
        1 => DemoFile {
            name: name("html"),
            content_type: "text/html",
            bytes: format!("<!doctype html><h1>{}</h1><p>{}</p>", words(3), paragraphs.join("</p><p>"))
                .into_bytes(),
        },
        2 => DemoFile {
            name: name("csv"),
            content_type: "text/csv",
            bytes: paragraphs
                .iter()
                .map(|line| line.replace(' ', ",") + "\n")
                .collect::<String>()
                .into_bytes(),
        },
        _ => DemoFile {
            name: name("txt"),
            content_type: "text/plain",
            bytes: paragraphs.join("\n").into_bytes(),
        },
    }
}

/// The header of a JPEG and noise. It is stored without text.
pub fn picture() -> DemoFile {
    const JPEG: [u8; 20] = *b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01\x01\x00\x00\x01\x00\x01\x00\x00";
    let mut bytes = JPEG.to_vec();
    bytes.extend((0..rand::rng().random_range(2_000..20_000)).map(|_| rand::random::<u8>()));
    bytes.extend(b"\xff\xd9");
    DemoFile { name: name("jpg"), content_type: "image/jpeg", bytes }
}

/// Not a valid PDF: each attempt to extract its text fails.
pub fn broken_pdf() -> DemoFile {
    let bytes = format!("%PDF-1.7\n{}\n%%EOF", words(60)).into_bytes();
    DemoFile { name: name("pdf"), content_type: "application/pdf", bytes }
}

pub fn infected() -> DemoFile {
    DemoFile {
        name: name("com"),
        content_type: "application/octet-stream",
        bytes: TEST_VIRUS.concat().into_bytes(),
    }
}

/// A file of this size, to use up a quota.
pub fn large(bytes: usize) -> DemoFile {
    DemoFile { name: name("bin"), content_type: "application/octet-stream", bytes: vec![b'.'; bytes] }
}
