//! PowerPoint presentations: the slides in order, with titles as headings and with notes.

use std::collections::HashSet;

use super::ExtractError;
use super::archive::Archive;
use super::pages_within;
use super::sink::{Gap, TextSink};
use super::xml::{self, Element, Node};

pub(super) fn extract(
    archive: &mut Archive<'_>,
    part: &str,
    pages_max: u32,
    sink: &mut TextSink<'_>,
) -> Result<u32, ExtractError> {
    let relations = archive.relations(part)?;
    let mut slides = Vec::new();
    let mut seen = HashSet::new();
    xml::read(archive.part(part)?, part, |node| {
        if let Node::Start(element) = node
            && element.name() == b"sldId"
            && let Some(relation) = element.prefixed_attribute(b"id").and_then(|id| relations.get(&id))
        {
            // A second entry with the same part is the same slide.
            if seen.insert(relation.target.clone()) {
                pages_within(slides.len() + 1, pages_max)?;
                slides.push(relation.target.clone());
            }
        }
        Ok(())
    })?;
    for slide in &slides {
        sink.gap(Gap::Page);
        read_slide(archive, slide, sink)?;
        let notes = archive.relations(slide)?.into_values().find(|relation| relation.kind == "notesSlide");
        if let Some(notes) = notes.filter(|notes| archive.has(&notes.target)) {
            sink.gap(Gap::Paragraph);
            read_slide(archive, &notes.target, sink)?;
        }
    }
    pages_within(slides.len(), pages_max)
}

fn read_slide(archive: &mut Archive<'_>, name: &str, sink: &mut TextSink<'_>) -> Result<(), ExtractError> {
    let mut slide = Slide { sink, in_text: false, is_title: false, is_boilerplate: false, skipped: 0 };
    xml::read(archive.part(name)?, name, |node| slide.visit(node))
}

struct Slide<'s, 'w> {
    sink: &'s mut TextSink<'w>,
    in_text: bool,
    is_title: bool,
    /// Page numbers, dates and footers. Every slide repeats them.
    is_boilerplate: bool,
    skipped: usize,
}

impl Slide<'_, '_> {
    fn visit(&mut self, node: Node<'_>) -> Result<(), ExtractError> {
        match node {
            Node::Start(element) if self.skipped > 0 || element.name() == b"Fallback" => self.skipped += 1,
            Node::End(_) if self.skipped > 0 => self.skipped -= 1,
            Node::Text(_) if self.skipped > 0 => {}
            Node::Start(element) => self.start(&element),
            Node::End(name) => self.end(name),
            Node::Text(text) if self.in_text && !self.is_boilerplate => return self.sink.words(text),
            Node::Text(_) => {}
        }
        Ok(())
    }

    fn start(&mut self, element: &Element<'_>) {
        match element.name() {
            b"sp" | b"graphicFrame" => {
                (self.is_title, self.is_boilerplate) = (false, false);
                self.sink.gap(Gap::Paragraph);
            }
            b"ph" => {
                let kind = element.attribute(b"type").unwrap_or_default();
                self.is_title = matches!(kind.as_str(), "title" | "ctrTitle");
                self.is_boilerplate = matches!(kind.as_str(), "sldNum" | "dt" | "ftr" | "hdr" | "sldImg");
            }
            b"p" if self.is_title => self.sink.heading(2),
            b"p" => self.sink.gap(Gap::Paragraph),
            b"t" => self.in_text = true,
            b"br" => self.sink.gap(Gap::Line),
            b"tab" => self.sink.gap(Gap::Cell),
            b"tr" => self.sink.gap(Gap::Line),
            b"tc" => self.sink.open_cell(),
            _ => {}
        }
    }

    fn end(&mut self, name: &[u8]) {
        match name {
            b"t" => self.in_text = false,
            b"p" => {
                self.sink.forget_mark();
                self.sink.gap(Gap::Paragraph);
            }
            b"tr" => self.sink.gap(Gap::Line),
            b"tc" => self.sink.close_cell(),
            b"sp" | b"graphicFrame" => (self.is_title, self.is_boilerplate) = (false, false),
            _ => {}
        }
    }
}
