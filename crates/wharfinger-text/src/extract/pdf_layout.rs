//! Rebuilds words, lines and paragraphs from the positions of glyphs. A PDF stores only these positions, and often no
//! spaces.

use hayro_interpret::font::{Glyph, GlyphRun};
use hayro_interpret::hayro_cmap::BfString;
use hayro_interpret::kurbo::{Affine, BezPath, Point, Vec2};
use hayro_interpret::{BlendMode, ClipPath, Device, DrawMode, DrawProps, Image, ImageDrawProps, SoftMask};

use super::ExtractError;

/// Distances in font sizes.
const WORD_GAP: f64 = 0.17;
const CELL_GAP: f64 = 3.0;
const LINE_STEP: f64 = 0.5;
const PARAGRAPH_STEP: f64 = 1.7;

/// A neighbour line whose font is smaller than this ratio belongs to another paragraph.
const SAME_SIZE: f64 = 0.87;

/// Glyph units per font size.
const UNITS_PER_EM: f64 = 1000.0;

pub(super) struct PageText {
    text: String,
    text_bytes_max: usize,
    is_full: bool,
    /// The end, direction and size of the last glyph.
    last: Option<Pen>,
    /// The last filled run. A run that is filled and outlined is drawn twice, but its text counts once.
    last_filled: Option<(Affine, usize)>,
}

#[derive(Clone, Copy)]
struct Pen {
    end: Point,
    direction: Vec2,
    size: f64,
}

impl PageText {
    pub(super) fn new(text_bytes_max: u64) -> Self {
        let text_bytes_max = usize::try_from(text_bytes_max).unwrap_or(usize::MAX);
        Self { text: String::new(), text_bytes_max, is_full: false, last: None, last_filled: None }
    }

    pub(super) fn finish(self) -> Result<String, ExtractError> {
        match self.is_full {
            true => Err(ExtractError::TooLarge(format!("more than {} bytes of text", self.text_bytes_max))),
            false => Ok(self.text),
        }
    }

    fn glyph(&mut self, place: Affine, advance: f64, text: &str) {
        let [a, b, c, d, x, y] = place.as_coeffs();
        let (along, up) = (Vec2::new(a, b), Vec2::new(c, d));
        let size = up.hypot() * UNITS_PER_EM;
        if ![a, b, c, d, x, y].iter().all(|value| value.is_finite()) || size <= 0.0 || along.hypot() <= 0.0 {
            return;
        }
        let (start, direction) = (Point::new(x, y), along / along.hypot());
        if text.chars().all(char::is_whitespace) {
            self.separate(" ");
        } else {
            if let Some(last) = self.last {
                self.separate(gap(last, start, direction, size));
            }
            self.push(text);
        }
        self.last = Some(Pen { end: start + along * advance, direction, size });
    }

    /// Widens the gap at the end of the text.
    fn separate(&mut self, gap: &str) {
        if gap.is_empty() || self.text.is_empty() {
            return;
        }
        let words = self.text.trim_end_matches([' ', '\t', '\n']).len();
        if rank(gap) > rank(&self.text[words..]) {
            self.text.truncate(words);
            self.text.push_str(gap);
        }
    }

    fn push(&mut self, text: &str) {
        if self.text.len() + text.len() > self.text_bytes_max {
            self.is_full = true;
            return;
        }
        // Joins a word that was hyphenated at the end of a line.
        if let Some(first_half) = self.text.strip_suffix("-\n")
            && first_half.ends_with(char::is_alphabetic)
            && text.starts_with(char::is_lowercase)
        {
            self.text.truncate(first_half.len());
        }
        for character in text.chars() {
            match ligature(character) {
                Some(letters) => self.text.push_str(letters),
                None if character.is_control() || character == '\u{ad}' => {}
                None => self.text.push(character),
            }
        }
    }
}

fn rank(gap: &str) -> usize {
    match gap {
        "" => 0,
        " " => 1,
        "\t" => 2,
        "\n" => 3,
        _ => 4,
    }
}

/// The gap between the last glyph and a glyph at `start`.
fn gap(last: Pen, start: Point, direction: Vec2, size: f64) -> &'static str {
    let step = start - last.end;
    if direction.dot(last.direction) < 0.9 {
        return "\n\n";
    }
    let larger = size.max(last.size);
    let (forward, aside) = (step.dot(direction), step.cross(direction).abs());
    // A step upwards goes to the next column or to another part of the page, not to the next line.
    let is_up = step.cross(direction) < -LINE_STEP * larger;
    if aside > PARAGRAPH_STEP * larger || is_up {
        "\n\n"
    } else if aside > LINE_STEP * larger {
        if size.min(last.size) < SAME_SIZE * larger { "\n\n" } else { "\n" }
    } else if forward > CELL_GAP * larger {
        "\t"
    } else if forward > WORD_GAP * size || forward < -size {
        " "
    } else {
        ""
    }
}

/// The letters of a ligature.
fn ligature(character: char) -> Option<&'static str> {
    const LIGATURES: [&str; 7] = ["ff", "fi", "fl", "ffi", "ffl", "st", "st"];
    let index = u32::from(character).checked_sub(0xfb00)?;
    LIGATURES.get(index as usize).copied()
}

impl Device<'_> for PageText {
    fn draw_path(&mut self, _: &BezPath, _: DrawProps<'_>, _: &DrawMode) {}

    fn push_clip_path(&mut self, _: &ClipPath) {}

    fn push_transparency_group(&mut self, _: f32, _: Option<SoftMask<'_>>, _: BlendMode) {}

    fn draw_glyph_run(&mut self, run: &GlyphRun<'_, '_>, props: DrawProps<'_>, mode: &DrawMode) {
        let glyphs = run.glyphs();
        let Some(first) = glyphs.first() else { return };
        let run_place = (props.transform * first.transform(), glyphs.len());
        if matches!(mode, DrawMode::Stroke(_)) && self.last_filled == Some(run_place) {
            return;
        }
        self.last_filled = Some(run_place);
        for glyph in glyphs {
            if self.is_full {
                return;
            }
            let advance = match &**glyph {
                Glyph::Outline(outline) => outline.advance_width(),
                Glyph::Type3(drawn) => drawn.advance_width(),
            };
            let advance = f64::from(advance.unwrap_or(UNITS_PER_EM as f32 / 2.0));
            let place = props.transform * glyph.transform();
            match glyph.as_unicode() {
                Some(BfString::Char(character)) => {
                    self.glyph(place, advance, character.encode_utf8(&mut [0; 4]));
                }
                Some(BfString::String(text)) => self.glyph(place, advance, &text),
                None => {}
            }
        }
    }

    fn draw_image(&mut self, _: Image<'_, '_>, _: ImageDrawProps<'_>) {}

    fn pop_clip(&mut self) {}

    fn pop_transparency_group(&mut self) {}
}
