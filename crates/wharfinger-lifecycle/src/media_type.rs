//! Media types: which of them an allow list permits, and whether bytes are what they are declared to be.

use std::fmt;

/// The most types in one list.
pub const TYPES_MAX: usize = 100;

/// The type without parameters, in lower case.
pub fn essence(media_type: &str) -> String {
    media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// A list of permitted types: `image/png`, `image/*` or `*/*`. It is never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeList(Vec<String>);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTypeList {
    #[error("must name at least one media type, for example `image/*`")]
    Empty,
    #[error("must name at most {TYPES_MAX} media types")]
    TooLong,
    #[error("`{0}` is not a media type like `image/png` or `image/*`")]
    BadType(String),
}

impl TypeList {
    pub fn new<'a>(types: impl IntoIterator<Item = &'a str>) -> Result<TypeList, BadTypeList> {
        let mut list: Vec<String> = Vec::new();
        for written in types {
            let pattern = written.trim().to_ascii_lowercase();
            if !is_pattern(&pattern) {
                return Err(BadTypeList::BadType(written.chars().take(130).collect()));
            }
            if !list.contains(&pattern) {
                list.push(pattern);
            }
            if list.len() > TYPES_MAX {
                return Err(BadTypeList::TooLong);
            }
        }
        if list.is_empty() { Err(BadTypeList::Empty) } else { Ok(TypeList(list)) }
    }

    /// Parses the form that [`fmt::Display`] writes.
    pub fn parse(text: &str) -> Result<TypeList, BadTypeList> {
        TypeList::new(text.split(',').map(str::trim).filter(|word| !word.is_empty()))
    }

    pub fn types(&self) -> &[String] {
        &self.0
    }

    /// Also a file of no declared type.
    pub fn allows_all(&self) -> bool {
        self.0.iter().any(|pattern| pattern == "*/*")
    }

    pub fn allows(&self, media_type: &str) -> bool {
        let wanted = essence(media_type);
        self.0.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some("*/") => true,
            Some(start) => wanted.starts_with(start),
            None => *pattern == wanted,
        })
    }

    /// Whether the object may be accepted: its declared type is in the list, and so is what its first bytes are.
    pub fn check_content(&self, declared: &str, found: Option<&str>) -> Result<(), ContentProblem> {
        if !self.allows(declared) {
            return Err(ContentProblem::Declared);
        }
        let declared = essence(declared);
        // A list with this type permits bytes of any kind.
        if declared == "application/octet-stream" {
            return Ok(());
        }
        match found {
            None if ALWAYS_RECOGNIZED.iter().any(|known| is_same(known, &declared)) => {
                Err(ContentProblem::NotAsDeclared)
            }
            None => Ok(()),
            Some(found) if self.allows_format(found) || is_possible(found, &declared) => Ok(()),
            Some(found) => Err(ContentProblem::Found(found.to_owned())),
        }
    }

    /// Whether the format is in the list under any of its names.
    fn allows_format(&self, found: &str) -> bool {
        self.allows(found) || names_of(found).iter().any(|name| self.allows(name))
    }
}

impl fmt::Display for TypeList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(","))
    }
}

/// Why an object is not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContentProblem {
    /// The declared type is not in the list. The list was changed after init.
    Declared,
    /// The bytes are of this type, which is not in the list.
    Found(String),
    /// Objects of the declared type start with bytes that this object does not have.
    NotAsDeclared,
}

fn is_pattern(pattern: &str) -> bool {
    let is_token = |part: &str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$&^_.+-".contains(&b))
    };
    match pattern.split_once('/') {
        Some(("*", "*")) => true,
        Some((kind, "*")) => is_token(kind),
        Some((kind, subtype)) => pattern.len() <= 127 && is_token(kind) && is_token(subtype),
        None => false,
    }
}

/// The names of one format. Programs and standards do not agree on them.
const SAME: &[&[&str]] = &[
    &["image/jpeg", "image/jpg", "image/pjpeg"],
    &["image/png", "image/apng", "image/x-png"],
    &["image/vnd.microsoft.icon", "image/x-icon"],
    &["image/bmp", "image/x-ms-bmp", "image/x-bmp"],
    &["image/heif", "image/heic", "image/heif-sequence", "image/heic-sequence"],
    &["image/tiff", "image/x-canon-cr2", "image/x-adobe-dng", "image/x-nikon-nef", "image/x-sony-arw"],
    &["image/vnd.adobe.photoshop", "image/x-photoshop", "application/x-photoshop"],
    &[
        "video/mp4",
        "video/x-m4v",
        "video/quicktime",
        "video/3gpp",
        "video/3gpp2",
        "audio/mp4",
        "audio/m4a",
        "audio/x-m4a",
        "audio/x-m4b",
    ],
    &["video/webm", "video/x-matroska", "video/matroska", "audio/webm", "audio/x-matroska"],
    &["video/ogg", "audio/ogg", "audio/opus", "application/ogg"],
    &["video/x-msvideo", "video/avi", "video/msvideo"],
    &["video/x-ms-wmv", "video/x-ms-asf", "audio/x-ms-wma", "application/vnd.ms-asf"],
    &["audio/mpeg", "audio/mp3", "audio/x-mp3", "audio/mpeg3"],
    &["audio/x-wav", "audio/wav", "audio/wave", "audio/vnd.wave"],
    &["audio/x-flac", "audio/flac"],
    &["audio/x-aiff", "audio/aiff"],
    &["audio/midi", "audio/x-midi"],
    &["audio/aac", "audio/aacp", "audio/x-aac"],
    &["application/zip", "application/x-zip-compressed", "application/x-zip"],
    &["application/gzip", "application/x-gzip", "application/x-tgz", "application/x-compressed-tar"],
    &["application/vnd.rar", "application/x-rar-compressed", "application/x-rar"],
    &["application/x-bzip2", "application/x-bzip"],
    &["application/zstd", "application/x-zstd"],
    &["application/x-tar", "application/tar"],
    &["application/pdf", "application/x-pdf"],
    &["application/rtf", "text/rtf"],
    &["application/postscript", "application/eps", "image/x-eps"],
    &["application/vnd.sqlite3", "application/x-sqlite3"],
    &[
        "application/font-woff",
        "font/woff",
        "font/woff2",
        "application/font-woff2",
        "application/x-font-woff",
    ],
    &[
        "application/font-sfnt",
        "font/ttf",
        "font/otf",
        "font/sfnt",
        "font/collection",
        "application/x-font-ttf",
    ],
    &[
        "application/vnd.microsoft.portable-executable",
        "application/x-msdownload",
        "application/x-dosexec",
        "application/x-msdos-program",
    ],
    &[
        "application/x-executable",
        "application/x-elf",
        "application/x-sharedlib",
        "application/x-pie-executable",
    ],
    &["text/html", "application/xhtml+xml"],
    &["text/xml", "application/xml"],
    &["text/x-shellscript", "application/x-sh", "application/x-shellscript", "text/x-sh"],
];

fn names_of(media_type: &str) -> &'static [&'static str] {
    SAME.iter().find(|names| names.contains(&media_type)).copied().unwrap_or_default()
}

fn is_same(one: &str, other: &str) -> bool {
    one == other || names_of(one).contains(&other)
}

/// Formats with a signature that every file of them has. Without it, the declared type is wrong.
const ALWAYS_RECOGNIZED: &[&str] = &[
    "image/png",
    "image/jpeg",
    "image/gif",
    "image/webp",
    "image/bmp",
    "image/tiff",
    "image/vnd.microsoft.icon",
    "image/avif",
    "image/heif",
    "image/svg+xml",
    "application/pdf",
    "application/zip",
    "application/gzip",
    "application/vnd.rar",
    "application/x-7z-compressed",
    "video/webm",
    "audio/x-flac",
    "audio/ogg",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation",
];

/// Formats that other formats are made of.
const CONTAINERS: &[&str] = &[
    "application/zip",
    "application/gzip",
    "application/x-ole-storage",
    "application/vnd.sqlite3",
    "application/x-tar",
    "application/x-xz",
    "application/x-bzip2",
    "application/zstd",
    "text/xml",
];

/// Types of `application/` that are not made of another format.
const NO_CONTAINER: &[&str] =
    &["application/pdf", "application/rtf", "application/zip", "application/gzip", "application/vnd.rar"];

/// Whether bytes that look like `found` can be a file of the declared type.
fn is_possible(found: &str, declared: &str) -> bool {
    let is_xml = declared.ends_with("+xml") || is_same("text/xml", declared);
    match found {
        _ if is_same(found, declared) => true,
        // Markdown may contain HTML.
        "text/html" => matches!(declared, "text/markdown" | "text/x-markdown"),
        "text/xml" if declared.starts_with("text/") || is_xml => true,
        // The source code of a program, declared as such.
        "text/x-shellscript" => {
            declared.split('/').nth(1).is_some_and(|subtype| subtype.starts_with("x-"))
                && (declared.starts_with("text/") || declared.starts_with("application/"))
        }
        "image/openraster" | "application/epub+zip" => false,
        _ if CONTAINERS.contains(&found) => {
            (declared.starts_with("application/")
                || declared.starts_with("model/")
                || declared.ends_with("+zip"))
                && !is_text(declared)
                && !NO_CONTAINER.iter().any(|other| is_same(other, declared))
        }
        _ => false,
    }
}

fn is_text(media_type: &str) -> bool {
    let subtype = media_type.split_once('/').map_or("", |(_, subtype)| subtype);
    media_type.starts_with("text/")
        || subtype.ends_with("json")
        || ["javascript", "ecmascript", "yaml", "x-yaml", "toml", "sql", "graphql"].contains(&subtype)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> TypeList {
        TypeList::parse(text).expect("a list")
    }

    #[test]
    fn lists_are_checked_and_match_without_case_and_parameters() {
        let allowed = list("image/*, Text/Plain,application/pdf");
        assert_eq!(allowed.to_string(), "image/*,text/plain,application/pdf");
        for good in ["image/png", "IMAGE/Jpeg", "text/plain; charset=utf-8", "application/pdf"] {
            assert!(allowed.allows(good), "{good}");
        }
        for bad in ["text/html", "text/plainer", "images/png", "application/pdfx", ""] {
            assert!(!allowed.allows(bad), "{bad}");
        }
        assert!(list("image/*,*/*").allows("any/thing") && list("image/*,*/*").allows_all());
        assert!(!allowed.allows_all());
        for bad in ["", " , ", "image", "image/", "/png", "*/png", "image/p*", "a/b;c=d", "a b/c"] {
            assert!(TypeList::parse(bad).is_err(), "{bad}");
        }
        let many: Vec<String> = (0..=TYPES_MAX).map(|n| format!("a/{n}")).collect();
        assert_eq!(TypeList::new(many.iter().map(String::as_str)), Err(BadTypeList::TooLong));
    }

    #[test]
    fn bytes_must_be_of_a_permitted_type() {
        const DOCX: &str = "application/vnd.openxmlformats-officedocument.wordprocessingml.document";
        let found = |media_type: &str| Err(ContentProblem::Found(media_type.to_owned()));
        let wrong = Err(ContentProblem::NotAsDeclared);
        for (allowed, declared, bytes, expected) in [
            ("image/*", "image/png", Some("image/png"), Ok(())),
            ("image/png", "image/png", Some("text/html"), found("text/html")),
            ("image/*", "image/png", Some("text/html"), found("text/html")),
            ("image/*", "image/png", None, wrong.clone()),
            // The list decides, not the declared type.
            ("image/*", "image/png", Some("image/jpeg"), Ok(())),
            ("image/png", "image/png", Some("image/jpeg"), found("image/jpeg")),
            ("image/png,text/html", "image/png", Some("text/html"), Ok(())),
            ("image/jpg", "image/jpg", Some("image/jpeg"), Ok(())),
            ("image/png", "image/jpeg", Some("image/jpeg"), Err(ContentProblem::Declared)),
            ("image/svg+xml", "image/svg+xml", Some("image/svg+xml"), Ok(())),
            ("image/png,image/svg+xml", "image/svg+xml", Some("text/html"), found("text/html")),
            ("text/plain", "text/plain", None, Ok(())),
            ("text/plain", "text/plain", Some("text/html"), found("text/html")),
            ("text/plain", "text/plain", Some("image/svg+xml"), found("image/svg+xml")),
            ("text/plain", "text/plain", Some("text/x-shellscript"), found("text/x-shellscript")),
            ("text/plain", "text/plain", Some("application/x-executable"), found("application/x-executable")),
            ("text/plain", "text/plain", Some("application/zip"), found("application/zip")),
            ("text/*", "text/csv", Some("text/html"), Ok(())),
            ("text/markdown", "text/markdown", Some("text/html"), Ok(())),
            ("text/x-python", "text/x-python", Some("text/x-shellscript"), Ok(())),
            ("application/json", "application/json", Some("application/zip"), found("application/zip")),
            (DOCX, DOCX, Some("application/zip"), Ok(())),
            (DOCX, DOCX, Some(DOCX), Ok(())),
            (DOCX, DOCX, None, wrong),
            ("application/pdf", "application/pdf", Some("application/zip"), found("application/zip")),
            ("application/java-archive", "application/java-archive", Some("application/zip"), Ok(())),
            ("application/gpx+xml", "application/gpx+xml", Some("text/xml"), Ok(())),
            ("application/octet-stream", "application/octet-stream", Some("text/html"), Ok(())),
            ("video/mp4", "video/mp4", Some("video/quicktime"), Ok(())),
        ] {
            assert_eq!(
                list(allowed).check_content(declared, bytes),
                expected,
                "{allowed} {declared} {bytes:?}"
            );
        }
    }
}
