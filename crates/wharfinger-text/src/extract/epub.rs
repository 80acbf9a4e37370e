//! EPUB books: the chapters in the order of the spine. Each chapter is a page of XHTML.

use std::collections::{HashMap, HashSet};

use super::ExtractError;
use super::archive::{Archive, read_error, resolve};
use super::encoding::Decoded;
use super::html::{self, Dialect};
use super::pages_within;
use super::sink::{Gap, TextSink};
use super::xml::{self, Node};

const CONTAINER: &str = "META-INF/container.xml";
const ENCRYPTION: &str = "META-INF/encryption.xml";

pub(super) fn extract(
    archive: &mut Archive<'_>,
    pages_max: u32,
    sink: &mut TextSink<'_>,
) -> Result<u32, ExtractError> {
    refuse_encrypted(archive)?;
    let mut chapters = chapters(archive, pages_max)?;
    // The spine can name chapters that the archive does not contain. E-book readers skip them.
    chapters.retain(|chapter| archive.has(chapter));
    for chapter in &chapters {
        sink.gap(Gap::Page);
        let page = Decoded::new(archive.part(chapter)?, encoding_rs::UTF_8);
        html::extract(page, Dialect::Xhtml, sink, |error| read_error(error, chapter))?;
    }
    pages_within(chapters.len(), pages_max)
}

/// Obfuscated fonts do not matter for text. Any other encryption is rights management.
fn refuse_encrypted(archive: &mut Archive<'_>) -> Result<(), ExtractError> {
    if !archive.has(ENCRYPTION) {
        return Ok(());
    }
    xml::read(archive.part(ENCRYPTION)?, ENCRYPTION, |node| {
        if let Node::Start(element) = node
            && element.name() == b"EncryptionMethod"
            && let Some(algorithm) = element.attribute(b"Algorithm")
            && !["http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC"]
                .contains(&algorithm.as_str())
        {
            return Err(ExtractError::Encrypted("a book with rights management".to_owned()));
        }
        Ok(())
    })
}

fn chapters(archive: &mut Archive<'_>, pages_max: u32) -> Result<Vec<String>, ExtractError> {
    let mut package = None;
    xml::read(archive.part(CONTAINER)?, CONTAINER, |node| {
        if let Node::Start(element) = node
            && element.name() == b"rootfile"
        {
            package = package.take().or_else(|| element.attribute(b"full-path"));
        }
        Ok(())
    })?;
    let package = package
        .ok_or_else(|| ExtractError::Corrupted(format!("{CONTAINER} does not name a package file")))?;
    let folder = package.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut items = HashMap::new();
    let mut seen = HashSet::new();
    let mut chapters = Vec::new();
    xml::read(archive.part(&package)?, &package, |node| {
        let Node::Start(element) = node else { return Ok(()) };
        match element.name() {
            b"item" => {
                if let (Some(id), Some(href), Some(kind)) =
                    (element.attribute(b"id"), element.attribute(b"href"), element.attribute(b"media-type"))
                    && kind.contains("html")
                {
                    items.insert(id, resolve(folder, &percent_decoded(&href)));
                }
            }
            b"itemref" => {
                if let Some(part) = element.attribute(b"idref").and_then(|id| items.get(&id)) {
                    // The spine can name a chapter many times. The chapter is read once.
                    if seen.insert(part.clone()) {
                        pages_within(chapters.len() + 1, pages_max)?;
                        chapters.push(part.clone());
                    }
                }
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok(chapters)
}

fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let code = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) if *first == b'%' => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
