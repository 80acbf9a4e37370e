//! Documents in ZIP archives: their format and their parts. All parts share one limit of inflated bytes. Sizes in
//! headers are ignored, because they can be wrong (`sizes_in_headers_are_not_trusted`).

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read};

use zip::ZipArchive;
use zip::result::ZipError;

use super::ExtractError;
use super::xml::{self, Node};

const ENTRIES_MAX: usize = 65_536;

/// The format of the document, with the name of its main part.
pub(super) enum Format {
    Docx(String),
    Pptx(String),
    Xlsx(String),
    Epub,
    /// `odt`, `ods` or `odp`.
    OpenDocument(&'static str),
}

pub(super) struct Archive<'f> {
    zip: ZipArchive<BufReader<&'f mut File>>,
    inflated_bytes_left: u64,
    inflated_bytes_max: u64,
}

impl<'f> Archive<'f> {
    pub(super) fn open(file: &'f mut File, inflated_bytes_max: u64) -> Result<Self, ExtractError> {
        let zip = ZipArchive::new(BufReader::new(file)).map_err(|error| zip_error(error, "the archive"))?;
        if zip.len() > ENTRIES_MAX {
            return Err(ExtractError::TooLarge(format!("the archive has more than {ENTRIES_MAX} entries")));
        }
        Ok(Self { zip, inflated_bytes_left: inflated_bytes_max, inflated_bytes_max })
    }

    /// The format of the document, by the parts of the archive.
    pub(super) fn format(&mut self) -> Result<Format, ExtractError> {
        if self.has("_rels/.rels") && self.has("[Content_Types].xml") {
            return self.office_document();
        }
        let mimetype = match self.has("mimetype") {
            true => self.text("mimetype", 256)?,
            false => String::new(),
        };
        let open_document =
            |family: &str| mimetype.strip_prefix("application/vnd.oasis.opendocument.") == Some(family);
        if mimetype.trim() == "application/epub+zip" || self.has("META-INF/container.xml") {
            return Ok(Format::Epub);
        }
        for (family, kind) in [("text", "odt"), ("spreadsheet", "ods"), ("presentation", "odp")] {
            if open_document(family) {
                return Ok(Format::OpenDocument(kind));
            }
        }
        for index in 0..self.zip.len() {
            if self.zip.by_index_data(index).is_ok_and(|entry| entry.encrypted()) {
                return Err(ExtractError::Encrypted("a ZIP archive with a password".to_owned()));
            }
        }
        Err(ExtractError::NotSupported("a ZIP archive that is not a document".to_owned()))
    }

    /// The folder of the main part shows the kind of an Office document. The archive's relations name the main part.
    fn office_document(&mut self) -> Result<Format, ExtractError> {
        let relations = self.relations("")?;
        let main = relations.into_values().find(|relation| relation.kind == "officeDocument");
        let Some(main) = main else {
            return Err(ExtractError::NotSupported("an Office package without a document".to_owned()));
        };
        if !self.has(&main.target) {
            return Err(ExtractError::Corrupted(format!("{} is missing", main.target)));
        }
        let part = main.target;
        match part.split('/').next().unwrap_or_default() {
            _ if !part.ends_with(".xml") => {
                Err(ExtractError::NotSupported("an Office document in a binary format".to_owned()))
            }
            "word" => Ok(Format::Docx(part)),
            "ppt" => Ok(Format::Pptx(part)),
            "xl" => Ok(Format::Xlsx(part)),
            _ => Err(ExtractError::NotSupported("an Office document of an unknown kind".to_owned())),
        }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.zip.index_for_name(name).is_some()
    }

    /// A reader of a part. Its bytes count against the limit of the archive.
    pub(super) fn part(&mut self, name: &str) -> Result<BufReader<Inflated<'_, impl Read>>, ExtractError> {
        let index = self
            .zip
            .index_for_name(name)
            .ok_or_else(|| ExtractError::Corrupted(format!("{name} is missing")))?;
        let entry = self.zip.by_index(index).map_err(|error| zip_error(error, name))?;
        Ok(BufReader::new(Inflated {
            source: entry,
            bytes_left: &mut self.inflated_bytes_left,
            bytes_max: self.inflated_bytes_max,
        }))
    }

    /// The text of a small part.
    pub(super) fn text(&mut self, name: &str, bytes_max: u64) -> Result<String, ExtractError> {
        let mut bytes = Vec::new();
        self.part(name)?.take(bytes_max).read_to_end(&mut bytes).map_err(|error| read_error(&error, name))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The relations of a part of an Office document, by their ids. The name of the package itself is "".
    pub(super) fn relations(&mut self, part: &str) -> Result<HashMap<String, Relation>, ExtractError> {
        let (folder, file) = part.rsplit_once('/').unwrap_or(("", part));
        let name = match folder {
            "" => format!("_rels/{file}.rels"),
            folder => format!("{folder}/_rels/{file}.rels"),
        };
        let mut relations = HashMap::new();
        if !self.has(&name) {
            return Ok(relations);
        }
        xml::read(self.part(&name)?, &name, |node| {
            if let Node::Start(element) = node
                && element.name() == b"Relationship"
                && element.attribute(b"TargetMode").is_none_or(|mode| mode != "External")
                && let (Some(id), Some(kind), Some(target)) =
                    (element.attribute(b"Id"), element.attribute(b"Type"), element.attribute(b"Target"))
            {
                let kind = kind.rsplit('/').next().unwrap_or_default().to_owned();
                relations.insert(id, Relation { kind, target: resolve(folder, &target) });
            }
            Ok(())
        })?;
        Ok(relations)
    }
}

pub(super) struct Relation {
    /// The last segment of the relation's type.
    pub(super) kind: String,
    /// The name of the part in the archive.
    pub(super) target: String,
}

/// Resolves a reference against a folder of the archive, without its fragment.
pub(super) fn resolve(folder: &str, reference: &str) -> String {
    let reference = reference.split('#').next().unwrap_or_default();
    let mut steps: Vec<&str> = match reference.starts_with('/') {
        true => Vec::new(),
        false => folder.split('/').filter(|step| !step.is_empty()).collect(),
    };
    for step in reference.split('/') {
        match step {
            "" | "." => {}
            ".." => drop(steps.pop()),
            step => steps.push(step),
        }
    }
    steps.join("/")
}

/// Counts the inflated bytes of an entry.
pub(super) struct Inflated<'a, R> {
    source: R,
    bytes_left: &'a mut u64,
    bytes_max: u64,
}

impl<R: Read> Read for Inflated<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(into)?;
        match self.bytes_left.checked_sub(count as u64) {
            Some(left) => *self.bytes_left = left,
            None => return Err(io::Error::other(Exceeded(self.bytes_max))),
        }
        Ok(count)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("it inflates to more than {0} bytes")]
struct Exceeded(u64);

/// Classifies a failure to read a part: over the limit, damaged, or a failure of this machine.
pub(super) fn read_error(error: &io::Error, name: &str) -> ExtractError {
    if let Some(exceeded) = error.get_ref().and_then(|inner| inner.downcast_ref::<Exceeded>()) {
        return ExtractError::TooLarge(exceeded.to_string());
    }
    if error.raw_os_error().is_some() {
        return ExtractError::local(error);
    }
    ExtractError::Corrupted(format!("{name}: {error}"))
}

fn zip_error(error: ZipError, name: &str) -> ExtractError {
    match error {
        ZipError::Io(error) => read_error(&error, name),
        ZipError::UnsupportedArchive(reason) if reason == ZipError::PASSWORD_REQUIRED => {
            ExtractError::Encrypted(format!("{name} has a password"))
        }
        ZipError::UnsupportedArchive(reason) => ExtractError::NotSupported(format!("this archive: {reason}")),
        ZipError::CompressionMethodNotSupported(method) => {
            ExtractError::NotSupported(format!("an archive with compression method {method}"))
        }
        other => ExtractError::Corrupted(format!("{name}: {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::resolve;

    #[test]
    fn references_resolve_against_their_folder() {
        assert_eq!(resolve("ppt", "slides/slide1.xml"), "ppt/slides/slide1.xml");
        assert_eq!(resolve("ppt/slides", "../notesSlides/n1.xml"), "ppt/notesSlides/n1.xml");
        assert_eq!(resolve("ppt", "/xl/workbook.xml#a"), "xl/workbook.xml");
        assert_eq!(resolve("", "../../x"), "x");
    }
}
