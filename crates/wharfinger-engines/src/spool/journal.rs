//! What was put into the spool and taken out, a line each: the index's cache, so that a start need not open a million
//! files of metadata. It is believed only where a file is there, and may be lost at any time.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use wharfinger_events::name::BatchName;

use super::index::{Entry, Index};
use super::shares::TenantBytes;

const JOURNAL: &str = ".wharfinger-journal";
/// So many lines more than there are files are no reason yet to begin it anew.
const LINES_OVER_MAX: usize = 65_536;

/// What is known of batches, by folder and name.
pub(super) type Entries = HashMap<PathBuf, HashMap<Box<str>, Noted>>;

#[derive(Clone, Debug)]
pub(super) struct Noted {
    pub(super) bytes: u64,
    pub(super) events: u64,
    pub(super) tenants: TenantBytes,
}

#[derive(Default)]
pub(super) struct Known {
    pub(super) entries: Entries,
    pub(super) lines: usize,
}

impl Known {
    /// Whether it says of every file what is so, and of nothing else, and not too often.
    pub(super) fn is_true_of(&self, index: &Index) -> bool {
        let known: usize = self.entries.values().map(HashMap::len).sum();
        known == index.files()
            && self.lines <= 2 * known + LINES_OVER_MAX
            && index.all().all(|(folder, name, _)| {
                self.entries.get(folder).is_some_and(|names| names.contains_key(name.as_str()))
            })
    }
}

/// None after it could not be written: it is then made anew at the next start.
pub(super) struct Journal {
    file: Option<File>,
    lines: usize,
}

impl Journal {
    pub(super) fn read(root: &Path) -> Known {
        let mut known = Known::default();
        let Ok(file) = File::open(root.join(JOURNAL)) else { return known };
        let mut reader = BufReader::with_capacity(1 << 20, file);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
            known.lines += 1;
            // A line that was cut off by a crash says nothing.
            if let Some(text) = line.strip_suffix(b"\n").and_then(|line| std::str::from_utf8(line).ok()) {
                known.follow(text);
            }
            line.clear();
        }
        known
    }

    pub(super) fn go_on(root: &Path, lines: usize) -> Journal {
        let file = File::options().append(true).create(true).open(root.join(JOURNAL));
        Journal { file: reported(file), lines }
    }

    pub(super) fn anew(root: &Path, index: &Index) -> Journal {
        match write_anew(root, index) {
            Ok(()) => Journal::go_on(root, index.files()),
            Err(error) => {
                // Half of it would be believed.
                let _ = fs::remove_file(root.join(JOURNAL));
                Journal { file: reported(Err(error)), lines: 0 }
            }
        }
    }

    pub(super) fn added(&mut self, folder: &Path, name: &BatchName, entry: &Entry) {
        self.write(line_of(folder, name, entry));
    }

    pub(super) fn removed(&mut self, folder: &Path, name: &BatchName) {
        self.write(format!("-{}\t{name}\n", folder.display()));
    }

    fn write(&mut self, line: String) {
        self.lines += 1;
        if let Some(file) = &mut self.file
            && let Err(error) = file.write_all(line.as_bytes())
        {
            self.file = reported(Err(error));
        }
    }

    pub(super) fn keep_short(&mut self, index: &Index, root: &Path) {
        if self.lines > 4 * index.files() + LINES_OVER_MAX {
            *self = Journal::anew(root, index);
        }
    }
}

fn reported(file: io::Result<File>) -> Option<File> {
    file.inspect_err(|error| {
        tracing::warn!(error = %error, "the spool's journal cannot be written: the next start reads all metadata");
    })
    .ok()
}

fn line_of(folder: &Path, name: &BatchName, entry: &Entry) -> String {
    let Entry { bytes, events, tenants, .. } = entry;
    format!("+{}\t{name}\t{bytes}\t{events}\t{}\n", folder.display(), tenants.to_json())
}

fn write_anew(root: &Path, index: &Index) -> io::Result<()> {
    let fresh = root.join(format!("{JOURNAL}-new"));
    let mut writer = BufWriter::with_capacity(1 << 20, File::create(&fresh)?);
    for (folder, name, entry) in index.all() {
        writer.write_all(line_of(folder, name, entry).as_bytes())?;
    }
    writer.into_inner().map_err(io::IntoInnerError::into_error)?;
    fs::rename(fresh, root.join(JOURNAL))
}

impl Known {
    fn follow(&mut self, line: &str) {
        let mut fields = line.get(1..).unwrap_or_default().split('\t');
        let (Some(folder), Some(name)) = (fields.next(), fields.next()) else { return };
        let folder = Path::new(folder);
        match line.as_bytes().first() {
            Some(b'+') => {
                let mut number = || fields.next()?.parse::<u64>().ok();
                let (Some(bytes), Some(events)) = (number(), number()) else { return };
                let tenants = TenantBytes::from_json(fields.next().unwrap_or_default().as_bytes());
                let noted = Noted { bytes, events, tenants };
                if let Some(names) = self.entries.get_mut(folder) {
                    names.insert(name.into(), noted);
                } else {
                    self.entries.insert(folder.to_path_buf(), HashMap::from([(name.into(), noted)]));
                }
            }
            Some(b'-') => {
                if let Some(names) = self.entries.get_mut(folder) {
                    names.remove(name);
                }
            }
            _ => {}
        }
    }
}
