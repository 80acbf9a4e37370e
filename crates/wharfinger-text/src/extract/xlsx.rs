//! Excel workbooks: each sheet with its name as heading, a tab between cells and a line for each row. Empty cells are
//! not stored, so a single cell far from the first row needs no extra memory.

use std::collections::HashSet;

use super::ExtractError;
use super::archive::{Archive, Relation};
use super::pages_within;
use super::sink::{Gap, TextSink};
use super::spreadsheet_date::{Epoch, date_text, is_date_format};
use super::xml::{self, Element, Node};

struct Workbook {
    /// Names and parts.
    sheets: Vec<(String, String)>,
    epoch: Epoch,
    strings: Strings,
    /// Whether each cell format shows a date.
    dates: Vec<bool>,
}

pub(super) fn extract(
    archive: &mut Archive<'_>,
    part: &str,
    pages_max: u32,
    sink: &mut TextSink<'_>,
) -> Result<u32, ExtractError> {
    let workbook = read_workbook(archive, part, pages_max)?;
    for (name, part) in &workbook.sheets {
        sink.gap(Gap::Page);
        sink.heading(2);
        sink.words(name)?;
        sink.gap(Gap::Paragraph);
        let mut sheet = Sheet { sink, workbook: &workbook, cell: Cell::default(), in_value: false };
        xml::read(archive.part(part)?, part, |node| sheet.visit(node))?;
    }
    pages_within(workbook.sheets.len(), pages_max)
}

fn read_workbook(archive: &mut Archive<'_>, part: &str, pages_max: u32) -> Result<Workbook, ExtractError> {
    let relations = archive.relations(part)?;
    let mut sheets = Vec::new();
    let mut seen = HashSet::new();
    let mut epoch = Epoch::Y1900;
    xml::read(archive.part(part)?, part, |node| {
        let Node::Start(element) = node else { return Ok(()) };
        match element.name() {
            b"workbookPr" if element.attribute(b"date1904").is_some_and(|v| v == "1" || v == "true") => {
                epoch = Epoch::Y1904;
            }
            b"sheet" => {
                let relation = element.prefixed_attribute(b"id").and_then(|id| relations.get(&id));
                // Chart sheets have no cells.
                if let Some(relation) = relation.filter(|relation| relation.kind == "worksheet") {
                    // A second entry with the same part is the same sheet.
                    if seen.insert(relation.target.clone()) {
                        pages_within(sheets.len() + 1, pages_max)?;
                        let name = element.attribute(b"name").unwrap_or_default();
                        sheets.push((name, relation.target.clone()));
                    }
                }
            }
            _ => {}
        }
        Ok(())
    })?;
    let find = |kind: &str| relations.values().find(|relation: &&Relation| relation.kind == kind);
    let strings = match find("sharedStrings").filter(|found| archive.has(&found.target)) {
        Some(found) => Strings::read(archive, &found.target)?,
        None => Strings::default(),
    };
    let dates = match find("styles").filter(|found| archive.has(&found.target)) {
        Some(found) => read_dates(archive, &found.target)?,
        None => Vec::new(),
    };
    Ok(Workbook { sheets, epoch, strings, dates })
}

/// The shared strings in one buffer, because a million small allocations use much more memory.
#[derive(Default)]
struct Strings {
    text: String,
    ends: Vec<usize>,
}

impl Strings {
    fn read(archive: &mut Archive<'_>, part: &str) -> Result<Self, ExtractError> {
        let mut strings = Self::default();
        let (mut in_text, mut phonetic) = (false, 0usize);
        xml::read(archive.part(part)?, part, |node| {
            match node {
                Node::Start(element) => match element.name() {
                    b"t" => in_text = phonetic == 0,
                    b"rPh" => phonetic += 1,
                    _ => {}
                },
                Node::End(b"t") => in_text = false,
                Node::End(b"rPh") => phonetic = phonetic.saturating_sub(1),
                Node::End(b"si") => strings.ends.push(strings.text.len()),
                Node::Text(text) if in_text => strings.text.push_str(text),
                Node::Text(_) | Node::End(_) => {}
            }
            Ok(())
        })?;
        Ok(strings)
    }

    fn get(&self, index: usize) -> Option<&str> {
        let start = if index == 0 { 0 } else { *self.ends.get(index - 1)? };
        self.text.get(start..*self.ends.get(index)?)
    }
}

fn read_dates(archive: &mut Archive<'_>, part: &str) -> Result<Vec<bool>, ExtractError> {
    let mut codes = std::collections::HashMap::new();
    let mut dates = Vec::new();
    let mut in_cell_formats = false;
    xml::read(archive.part(part)?, part, |node| {
        let number =
            |element: &Element<'_>| element.attribute(b"numFmtId").and_then(|id| id.parse::<u32>().ok());
        match node {
            Node::Start(element) => match element.name() {
                b"numFmt" => {
                    if let (Some(id), Some(code)) = (number(&element), element.attribute(b"formatCode")) {
                        codes.insert(id, code);
                    }
                }
                b"cellXfs" => in_cell_formats = true,
                b"xf" if in_cell_formats => {
                    let id = number(&element).unwrap_or(0);
                    dates.push(is_date_format(id, codes.get(&id).map(String::as_str)));
                }
                _ => {}
            },
            Node::End(b"cellXfs") => in_cell_formats = false,
            Node::End(_) | Node::Text(_) => {}
        }
        Ok(())
    })?;
    Ok(dates)
}

#[derive(Default)]
struct Cell {
    kind: String,
    style: usize,
    value: String,
}

struct Sheet<'s, 'w> {
    sink: &'s mut TextSink<'w>,
    workbook: &'s Workbook,
    cell: Cell,
    in_value: bool,
}

impl Sheet<'_, '_> {
    fn visit(&mut self, node: Node<'_>) -> Result<(), ExtractError> {
        match node {
            Node::Start(element) => match element.name() {
                b"c" => {
                    self.cell.kind = element.attribute(b"t").unwrap_or_default();
                    self.cell.style = element.attribute(b"s").and_then(|s| s.parse().ok()).unwrap_or(0);
                    self.cell.value.clear();
                }
                b"v" | b"t" => self.in_value = true,
                _ => {}
            },
            Node::Text(text) if self.in_value => self.cell.value.push_str(text),
            Node::End(b"v" | b"t") => self.in_value = false,
            Node::End(b"c") => return self.end_cell(),
            Node::End(b"row") => self.sink.gap(Gap::Line),
            Node::Text(_) | Node::End(_) => {}
        }
        Ok(())
    }

    fn end_cell(&mut self) -> Result<(), ExtractError> {
        let value = self.cell.value.as_str();
        match self.cell.kind.as_str() {
            "s" => {
                let index = value.trim().parse().ok();
                let text = index.and_then(|index| self.workbook.strings.get(index));
                let missing = || {
                    ExtractError::Corrupted("a cell refers to a shared string that does not exist".to_owned())
                };
                self.sink.words(text.ok_or_else(missing)?)?;
            }
            "b" => self.sink.words(if value.trim() == "1" { "TRUE" } else { "FALSE" })?,
            "" | "n" if self.workbook.dates.get(self.cell.style) == Some(&true) => {
                let date =
                    value.trim().parse().ok().and_then(|serial| date_text(serial, self.workbook.epoch));
                self.sink.words(date.as_deref().unwrap_or(value))?;
            }
            _ => self.sink.words(value)?,
        }
        self.sink.gap(Gap::Cell);
        Ok(())
    }
}
