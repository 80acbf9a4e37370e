//! A journal of added and removed batches, one per line. With it, a start does not have to read every metadata file.
//! The files on disk are the truth: entries without a file are ignored, and a lost journal is rebuilt.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use wharfinger_events::name::BatchName;

use super::index::{Entry, Index};
use super::shares::TenantBytes;

const JOURNAL: &str = ".wharfinger-journal";
/// The journal is rewritten when it has many more lines than there are files. This many are always allowed.
const EXTRA_LINES_MAX: usize = 65_536;

/// Batches by folder and name.
pub(super) type Entries = HashMap<PathBuf, HashMap<Box<str>, BatchInfo>>;

#[derive(Clone, Debug)]
pub(super) struct BatchInfo {
    pub(super) bytes: u64,
    pub(super) events: u64,
    pub(super) tenants: TenantBytes,
}

#[derive(Default)]
pub(super) struct JournalContents {
    pub(super) entries: Entries,
    pub(super) lines: usize,
}

impl JournalContents {
    /// Whether the journal lists exactly the files of the index and is not too long.
    pub(super) fn matches(&self, index: &Index) -> bool {
        let listed: usize = self.entries.values().map(HashMap::len).sum();
        listed == index.files()
            && self.lines <= 2 * listed + EXTRA_LINES_MAX
            && index.all().all(|(folder, name, _)| {
                self.entries.get(folder).is_some_and(|names| names.contains_key(name.as_str()))
            })
    }
}

pub(super) struct Journal {
    /// `None` after a write error. The next start rebuilds the journal.
    file: Option<File>,
    lines: usize,
}

impl Journal {
    pub(super) fn read(root: &Path) -> JournalContents {
        let mut contents = JournalContents::default();
        let Ok(file) = File::open(root.join(JOURNAL)) else { return contents };
        let mut reader = BufReader::with_capacity(1 << 20, file);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
            contents.lines += 1;
            // A crash may have cut off the last line, which is ignored.
            if let Some(text) = line.strip_suffix(b"\n").and_then(|line| std::str::from_utf8(line).ok()) {
                contents.apply(text);
            }
            line.clear();
        }
        contents
    }

    pub(super) fn append_to(root: &Path, lines: usize) -> Journal {
        let file = File::options().append(true).create(true).open(root.join(JOURNAL));
        Journal { file: warn_on_error(file), lines }
    }

    pub(super) fn rebuild(root: &Path, index: &Index) -> Journal {
        match write_all(root, index) {
            Ok(()) => Journal::append_to(root, index.files()),
            Err(error) => {
                // An incomplete journal must not be used.
                let _ = fs::remove_file(root.join(JOURNAL));
                Journal { file: warn_on_error(Err(error)), lines: 0 }
            }
        }
    }

    pub(super) fn record_added(&mut self, folder: &Path, name: &BatchName, entry: &Entry) {
        self.write(line_of(folder, name, entry));
    }

    pub(super) fn record_removed(&mut self, folder: &Path, name: &BatchName) {
        self.write(format!("-{}\t{name}\n", folder.display()));
    }

    fn write(&mut self, line: String) {
        self.lines += 1;
        if let Some(file) = &mut self.file
            && let Err(error) = file.write_all(line.as_bytes())
        {
            self.file = warn_on_error(Err(error));
        }
    }

    pub(super) fn compact(&mut self, index: &Index, root: &Path) {
        if self.lines > 4 * index.files() + EXTRA_LINES_MAX {
            *self = Journal::rebuild(root, index);
        }
    }
}

fn warn_on_error(file: io::Result<File>) -> Option<File> {
    file.inspect_err(|error| {
        tracing::warn!(error = %error, "cannot write the spool journal, the next start will read all metadata files");
    })
    .ok()
}

fn line_of(folder: &Path, name: &BatchName, entry: &Entry) -> String {
    let Entry { bytes, events, tenants, .. } = entry;
    format!("+{}\t{name}\t{bytes}\t{events}\t{}\n", folder.display(), tenants.to_json())
}

fn write_all(root: &Path, index: &Index) -> io::Result<()> {
    let fresh = root.join(format!("{JOURNAL}-new"));
    let mut writer = BufWriter::with_capacity(1 << 20, File::create(&fresh)?);
    for (folder, name, entry) in index.all() {
        writer.write_all(line_of(folder, name, entry).as_bytes())?;
    }
    writer.into_inner().map_err(io::IntoInnerError::into_error)?;
    fs::rename(fresh, root.join(JOURNAL))
}

impl JournalContents {
    fn apply(&mut self, line: &str) {
        let mut fields = line.get(1..).unwrap_or_default().split('\t');
        let (Some(folder), Some(name)) = (fields.next(), fields.next()) else { return };
        let folder = Path::new(folder);
        match line.as_bytes().first() {
            Some(b'+') => {
                let mut number = || fields.next()?.parse::<u64>().ok();
                let (Some(bytes), Some(events)) = (number(), number()) else { return };
                let tenants = TenantBytes::from_json(fields.next().unwrap_or_default().as_bytes());
                let info = BatchInfo { bytes, events, tenants };
                if let Some(names) = self.entries.get_mut(folder) {
                    names.insert(name.into(), info);
                } else {
                    self.entries.insert(folder.to_path_buf(), HashMap::from([(name.into(), info)]));
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
