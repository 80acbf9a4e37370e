//! OpenDocument: texts, spreadsheets and presentations use the same elements, in one part.

use super::ExtractError;
use super::archive::Archive;
use super::pages_within;
use super::sink::{Gap, TextSink};
use super::xml::{self, Element, Node};

const CONTENT: &str = "content.xml";
const MANIFEST: &str = "META-INF/manifest.xml";

pub(super) fn extract(
    archive: &mut Archive<'_>,
    pages_max: u32,
    sink: &mut TextSink<'_>,
) -> Result<u32, ExtractError> {
    if archive.has(MANIFEST) {
        xml::read(archive.part(MANIFEST)?, MANIFEST, |node| match node {
            Node::Start(element) if element.name() == b"encryption-data" => {
                Err(ExtractError::Encrypted("an OpenDocument file with a password".to_owned()))
            }
            _ => Ok(()),
        })?;
    }
    let mut body = Body { sink, pages: 0, pages_max, open: 0, skipped: 0, in_sheets: false };
    xml::read(archive.part(CONTENT)?, CONTENT, |node| body.visit(node))?;
    Ok(body.pages.max(1))
}

struct Body<'s, 'w> {
    sink: &'s mut TextSink<'w>,
    /// Slides or sheets so far.
    pages: u32,
    pages_max: u32,
    /// The number of open paragraphs and headings. Text outside of them is only white space.
    open: usize,
    /// Depth inside an element that is skipped.
    skipped: usize,
    in_sheets: bool,
}

impl Body<'_, '_> {
    fn visit(&mut self, node: Node<'_>) -> Result<(), ExtractError> {
        match node {
            Node::Start(_) if self.skipped > 0 => self.skipped += 1,
            Node::End(_) if self.skipped > 0 => self.skipped -= 1,
            Node::Text(_) if self.skipped > 0 => {}
            Node::Start(element) => return self.start(&element),
            Node::End(name) => self.end(name),
            Node::Text(text) if self.open > 0 => return self.sink.words(text),
            Node::Text(_) => {}
        }
        Ok(())
    }

    fn start(&mut self, element: &Element<'_>) -> Result<(), ExtractError> {
        match element.name() {
            b"tracked-changes" | b"automatic-styles" | b"annotation" => self.skipped = 1,
            b"spreadsheet" => self.in_sheets = true,
            b"page" => self.begin_page(element)?,
            b"table" if self.in_sheets => self.begin_page(element)?,
            b"table" => self.sink.gap(Gap::Paragraph),
            b"h" => {
                let level = element.attribute(b"outline-level").and_then(|level| level.parse().ok());
                self.sink.heading(level.unwrap_or(1));
                self.open += 1;
            }
            b"p" => {
                self.sink.gap(Gap::Paragraph);
                self.open += 1;
            }
            b"s" => self.sink.gap(Gap::Blank),
            b"tab" => self.sink.gap(Gap::Cell),
            b"line-break" => self.sink.gap(Gap::Line),
            b"table-row" => self.sink.gap(Gap::Line),
            b"table-cell" => self.sink.open_cell(),
            _ => {}
        }
        Ok(())
    }

    /// Sheets get their name as heading. The names of slides are only numbers.
    fn begin_page(&mut self, element: &Element<'_>) -> Result<(), ExtractError> {
        self.pages = pages_within(self.pages as usize + 1, self.pages_max)?;
        self.sink.gap(Gap::Page);
        if self.in_sheets {
            self.sink.heading(2);
            self.sink.words(&element.attribute(b"name").unwrap_or_default())?;
            self.sink.gap(Gap::Paragraph);
        }
        Ok(())
    }

    fn end(&mut self, name: &[u8]) {
        match name {
            b"h" | b"p" => {
                self.open = self.open.saturating_sub(1);
                self.sink.forget_mark();
                self.sink.gap(Gap::Paragraph);
            }
            b"table-row" => self.sink.gap(Gap::Line),
            b"table-cell" => self.sink.close_cell(),
            b"table" => self.sink.gap(Gap::Paragraph),
            _ => {}
        }
    }
}
