//! Word documents: the main part with its headings and tables, then the notes.

use std::collections::HashMap;

use super::ExtractError;
use super::archive::Archive;
use super::sink::{Gap, TextSink};
use super::xml::{self, Element, Node};

pub(super) fn extract(
    archive: &mut Archive<'_>,
    part: &str,
    sink: &mut TextSink<'_>,
) -> Result<(), ExtractError> {
    let relations = archive.relations(part)?;
    let target = |kind: &str| relations.values().find(|r| r.kind == kind).map(|r| r.target.clone());
    let levels = match target("styles").filter(|name| archive.has(name)) {
        Some(styles) => heading_levels(archive, &styles)?,
        None => HashMap::new(),
    };
    let notes = ["footnotes", "endnotes"].into_iter().filter_map(target);
    for name in std::iter::once(part.to_owned()).chain(notes) {
        if archive.has(&name) {
            let mut body = Body { sink, levels: &levels, in_text: false, skipped: 0 };
            body.sink.gap(Gap::Paragraph);
            xml::read(archive.part(&name)?, &name, |node| body.visit(node))?;
        }
    }
    Ok(())
}

/// The heading levels by style id.
fn heading_levels(archive: &mut Archive<'_>, part: &str) -> Result<HashMap<String, usize>, ExtractError> {
    let mut levels = HashMap::new();
    let mut id = None;
    xml::read(archive.part(part)?, part, |node| {
        let Node::Start(element) = node else { return Ok(()) };
        match element.name() {
            b"style" => id = element.attribute(b"styleId"),
            b"name" => {
                let level = element.attribute(b"val").as_deref().and_then(level_of_name);
                if let (Some(id), Some(level)) = (&id, level) {
                    levels.insert(id.clone(), level);
                }
            }
            b"outlineLvl" => {
                if let (Some(id), Some(level)) = (&id, outline_level(&element)) {
                    levels.entry(id.clone()).or_insert(level);
                }
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok(levels)
}

/// Word stores the names of its built-in styles in English.
fn level_of_name(name: &str) -> Option<usize> {
    let name = name.to_ascii_lowercase();
    match name.as_str() {
        "title" => Some(1),
        _ => name.strip_prefix("heading ")?.trim().parse().ok().filter(|level| (1..=9).contains(level)),
    }
}

/// Counted from 0; 9 is body text.
fn outline_level(element: &Element<'_>) -> Option<usize> {
    element.attribute(b"val")?.parse::<usize>().ok().filter(|level| *level < 9).map(|level| level + 1)
}

struct Body<'s, 'w> {
    sink: &'s mut TextSink<'w>,
    levels: &'s HashMap<String, usize>,
    in_text: bool,
    /// Depth inside a `Fallback` element, which repeats content for older readers.
    skipped: usize,
}

impl Body<'_, '_> {
    fn visit(&mut self, node: Node<'_>) -> Result<(), ExtractError> {
        match node {
            Node::Start(element) if self.skipped > 0 || element.name() == b"Fallback" => self.skipped += 1,
            Node::End(_) if self.skipped > 0 => self.skipped -= 1,
            Node::Text(_) if self.skipped > 0 => {}
            Node::Start(element) => self.start(&element),
            Node::End(name) => self.end(name),
            Node::Text(text) if self.in_text => return self.sink.words(text),
            Node::Text(_) => {}
        }
        Ok(())
    }

    fn start(&mut self, element: &Element<'_>) {
        match element.name() {
            b"t" => self.in_text = true,
            b"p" | b"tbl" => self.sink.gap(Gap::Paragraph),
            b"pStyle" => {
                if let Some(level) = element.attribute(b"val").and_then(|id| self.levels.get(&id)) {
                    self.sink.heading(*level);
                }
            }
            b"outlineLvl" => {
                if let Some(level) = outline_level(element) {
                    self.sink.heading(level);
                }
            }
            b"tab" | b"ptab" => self.sink.gap(Gap::Cell),
            b"br" | b"cr" => self.sink.gap(Gap::Line),
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
            b"tbl" => self.sink.gap(Gap::Paragraph),
            b"tr" => self.sink.gap(Gap::Line),
            b"tc" => self.sink.close_cell(),
            _ => {}
        }
    }
}
