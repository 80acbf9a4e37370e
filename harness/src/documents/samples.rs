//! The text that must be found in each readable document.

/// A document, its type, and parts of its text.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub file: &'static str,
    pub kind: &'static str,
    /// Pages, slides, sheets or chapters.
    pub pages: u32,
    pub contains: &'static [&'static str],
}

const INTRO: &str = "Every crate that lands is written down before it is moved.";
const SECOND: &str = "Nobody signs for cargo that they have not seen.";
const UNICODE: &str = "Grüße aus Ærøskøbing, naïve café.";

const fn sample(
    file: &'static str,
    kind: &'static str,
    pages: u32,
    contains: &'static [&'static str],
) -> Sample {
    Sample { file, kind, pages, contains }
}

pub const SAMPLES: &[Sample] = &[
    sample("plain.txt", "text", 1, &["The Harbour Ledger\n\nEvery", UNICODE]),
    sample("empty.txt", "text", 1, &[]),
    sample("utf16.txt", "text", 1, &[INTRO, UNICODE]),
    sample("latin1.txt", "text", 1, &[INTRO, UNICODE]),
    sample("eicar.txt", "text", 1, &["EICAR-STANDARD-ANTIVIRUS-TEST-FILE"]),
    sample("notes.md", "markdown", 1, &["# Landing\n\n", INTRO, UNICODE]),
    sample("table.csv", "csv", 1, &["north,Amalia,timber"]),
    sample("data.json", "json", 1, &["\"ship\": \"Amalia\"", UNICODE]),
    sample(
        "hand.html",
        "html",
        1,
        &["# Landing & leaving\n\n", INTRO, "5 < 6", "€", "North\tAmalia", "  kept\n  as is"],
    ),
    sample("cyrillic.html", "html", 1, &["Порт", "Каждый ящик записан."]),
    sample(
        "page.html",
        "html",
        1,
        &["# Landing\n\n", INTRO, UNICODE, "## Berths", "North\tAmalia\tTimber", "tide was late"],
    ),
    sample(
        "report.docx",
        "docx",
        1,
        &["# Landing\n\n", INTRO, UNICODE, "## Berths", "North\tAmalia\tTimber", "tide was late"],
    ),
    sample("customs.docx", "docx", 1, &["# Customs\n\n", INTRO, "## Duties\n\n", "Tea\t4 %\nSalt\t9 %"]),
    sample("report.odt", "odt", 1, &["# Landing\n\n", INTRO, UNICODE, "## Berths", "North\tAmalia\tTimber"]),
    sample(
        "report.rtf",
        "rtf",
        1,
        &["# Landing\n\n", INTRO, UNICODE, "North\tAmalia\tTimber", "tide was late"],
    ),
    sample("book.epub", "epub", 2, &["# Landing\n\n", INTRO, UNICODE, "## Berths", "North\tAmalia\tTimber"]),
    sample(
        "slides.pptx",
        "pptx",
        2,
        &["## Arrival\n\n", INTRO, "Mention the tide.", "\u{c}\n## Departure", "North\tAmalia"],
    ),
    sample(
        "weather.pptx",
        "pptx",
        2,
        &["## Tides\n\n", "Remember the tides.", "\u{c}\n## Winds\n\n", SECOND, "West\tStrong"],
    ),
    sample("slides.odp", "odp", 2, &[INTRO, "\u{c}\nNobody signs"]),
    sample(
        "workbook.xlsx",
        "xlsx",
        2,
        &[
            "## Berths\n\nBerth\tShip",
            "North\tAmalia\t2024-03-15\t1250.5\tTRUE",
            "2024-03-16 12:30:00\t7\tFALSE",
            "near corner\nfar corner",
        ],
    ),
    sample("workbook.ods", "ods", 1, &["## Berths\n\nNorth\tAmalia", UNICODE]),
    sample(
        "typst.pdf",
        "pdf",
        2,
        &[INTRO_START, UNICODE, "The Harbour Ledger\n\n", "office finds efficient", "\u{c}\nA second page"],
    ),
    sample(
        "reportlab.pdf",
        "pdf",
        2,
        &["The Harbour Ledger\n\n", INTRO_START, UNICODE, "\u{c}\nA second page"],
    ),
    sample("owner-password.pdf", "pdf", 2, &[INTRO_START, UNICODE]),
    sample("owner-password-128.pdf", "pdf", 2, &[INTRO_START, UNICODE]),
    sample("linearized.pdf", "pdf", 2, &[INTRO_START, UNICODE]),
    sample("without-table.pdf", "pdf", 2, &[INTRO_START, UNICODE]),
];

/// The start of `INTRO` without a line break. On a page, a line may end after it.
const INTRO_START: &str = "Every crate that lands is";
