//! Reads the XML of documents as a stream of elements, by local name, and text. Only the five predefined entities are
//! expanded, and depth has a limit.

use std::borrow::Cow;
use std::io::BufRead;

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use super::ExtractError;
use super::archive::read_error;

const DEPTH_MAX: usize = 256;

pub(super) enum Node<'a> {
    Start(Element<'a>),
    /// The local name of the element that ends.
    End(&'a [u8]),
    Text(&'a str),
}

pub(super) struct Element<'a>(BytesStart<'a>);

impl Element<'_> {
    pub(super) fn name(&self) -> &[u8] {
        self.0.local_name().into_inner()
    }

    /// The value of the attribute with this local name.
    pub(super) fn attribute(&self, name: &[u8]) -> Option<String> {
        let found =
            self.0.attributes().with_checks(false).flatten().find(|a| a.key.local_name().as_ref() == name)?;
        let value = String::from_utf8_lossy(&found.value);
        Some(quick_xml::escape::unescape(&value).map_or_else(|_| value.to_string(), Cow::into_owned))
    }

    /// The attribute with a prefix, if two attributes have the same local name, such as `r:id` and `id`.
    pub(super) fn prefixed_attribute(&self, name: &[u8]) -> Option<String> {
        let matches =
            |key: &[u8]| key.iter().position(|b| *b == b':').is_some_and(|at| &key[at + 1..] == name);
        let found = self.0.attributes().with_checks(false).flatten().find(|a| matches(a.key.as_ref()))?;
        Some(String::from_utf8_lossy(&found.value).into_owned())
    }
}

/// Reads the part to its end. `name` is the name of the part, for errors.
pub(super) fn read(
    part: impl BufRead,
    name: &str,
    mut visit: impl FnMut(Node<'_>) -> Result<(), ExtractError>,
) -> Result<(), ExtractError> {
    let mut reader = Reader::from_reader(part);
    reader.config_mut().expand_empty_elements = true;
    let mut buffer = Vec::new();
    let mut depth = 0usize;
    loop {
        buffer.clear();
        match reader.read_event_into(&mut buffer).map_err(|error| read_event_error(name, &error))? {
            Event::Start(element) => {
                depth += 1;
                if depth > DEPTH_MAX {
                    return Err(ExtractError::TooLarge(format!(
                        "{name} is nested more than {DEPTH_MAX} levels deep"
                    )));
                }
                visit(Node::Start(Element(element)))?;
            }
            Event::End(element) => {
                depth = depth.saturating_sub(1);
                visit(Node::End(element.local_name().into_inner()))?;
            }
            Event::Text(text) => visit(Node::Text(&String::from_utf8_lossy(&text)))?,
            Event::CData(text) => visit(Node::Text(&String::from_utf8_lossy(&text)))?,
            Event::GeneralRef(reference) => {
                let mut bytes = [0; 4];
                if let Ok(Some(character)) = reference.resolve_char_ref() {
                    visit(Node::Text(character.encode_utf8(&mut bytes)))?;
                } else if let Ok(known) = std::str::from_utf8(&reference)
                    && let Some(text) = quick_xml::escape::resolve_predefined_entity(known)
                {
                    visit(Node::Text(text))?;
                }
            }
            Event::DocType(declaration) => {
                if declaration.windows(8).any(|window| window == b"<!ENTITY") {
                    let text = format!("{name} declares entities, which documents do not need");
                    return Err(ExtractError::Corrupted(text));
                }
            }
            Event::Eof if depth > 0 => return Err(ExtractError::Corrupted(format!("{name} ends too early"))),
            Event::Eof => return Ok(()),
            Event::Empty(_) | Event::Comment(_) | Event::Decl(_) | Event::PI(_) => {}
        }
    }
}

fn read_event_error(name: &str, error: &quick_xml::Error) -> ExtractError {
    match error {
        quick_xml::Error::Io(error) => read_error(error, name),
        other => ExtractError::Corrupted(format!("{name}: {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(xml: &str) -> Result<String, ExtractError> {
        let mut text = String::new();
        read(xml.as_bytes(), "part", |node| {
            if let Node::Text(piece) = node {
                text.push_str(piece);
            }
            Ok(())
        })?;
        Ok(text)
    }

    #[test]
    fn known_references_are_resolved_and_unknown_ones_are_dropped() {
        let text = text_of("<a>1 &lt; 2 &amp; &#x47;r&#252;&unknown;n<![CDATA[<b>]]></a>");
        assert_eq!(text, Ok("1 < 2 & Grün<b>".to_owned()));
    }

    #[test]
    fn entities_excessive_depth_and_truncation_are_refused() {
        let bomb = "<!DOCTYPE a [<!ENTITY x \"ha\">]><a>&x;</a>";
        assert!(matches!(text_of(bomb), Err(ExtractError::Corrupted(_))));
        let deep = "<a>".repeat(DEPTH_MAX + 1);
        assert!(matches!(text_of(&deep), Err(ExtractError::TooLarge(_))));
        assert!(matches!(text_of("<a><b></b>"), Err(ExtractError::Corrupted(_))));
        assert!(matches!(text_of("<a></b>"), Err(ExtractError::Corrupted(_))));
    }
}
